// The page of make play. The program, play.wasm, is the guard over memstore; here are its time and its buttons.
import { Rows, el, fit, legend, notice, numbers, timeline } from './page.js';

const $ = (id) => document.getElementById(id);
const birth = 1000; // when the world begins, in milliseconds since 1970: fences, which begin with the time, stay short
const axes = [2, 5, 10, 20, 30, 60, 120].map((s) => s * 1000);
const mostStep = 30000;

// clock is the time of one program. Its time, timers and random numbers are those of this class, so every run of a situation is the same.
class Clock {
  constructor(go) {
    this.now = birth;
    this.due = new Map(); // of each timer of the Go runtime
    let timers = 0, random = 1;
    const mem = () => go.mem;
    Object.assign(go.importObject.gojs, {
      'runtime.nanotime1': (sp) => mem().setBigInt64((sp >>> 0) + 8, BigInt(this.now) * 1000000n, true),
      'runtime.walltime': (sp) => {
        mem().setBigInt64((sp >>> 0) + 8, BigInt(Math.floor(this.now / 1000)), true);
        mem().setInt32((sp >>> 0) + 16, this.now % 1000 * 1000000, true);
      },
      'runtime.scheduleTimeoutEvent': (sp) => {
        this.due.set(++timers, this.now + Number(mem().getBigInt64((sp >>> 0) + 8, true)));
        mem().setInt32((sp >>> 0) + 16, timers, true);
      },
      'runtime.clearTimeoutEvent': (sp) => this.due.delete(mem().getInt32((sp >>> 0) + 8, true)),
      'runtime.getRandomData': (sp) => {
        const at = Number(mem().getBigInt64((sp >>> 0) + 8, true)), n = Number(mem().getBigInt64((sp >>> 0) + 16, true));
        for (let i = 0; i < n; i++) mem().setUint8(at + i, (random = random * 48271 % 2147483647) >> 8 & 255);
      },
    });
    this.resume = () => go._resume();
  }

  // next is the moment of the first timer.
  next() { return Math.min(...this.due.values()); }

  // advance runs the program until this moment. When all its goroutines wait, the time is that of the next timer.
  advance(to) {
    for (let at = this.next(); at <= to; at = this.next()) {
      this.now = at;
      this.resume();
    }
    this.now = Math.max(this.now, to);
  }
}

const rows = new Rows($('rows'));
let program, clock, world, picture, begun = 0, playing = false, last = 0;

async function begin() {
  const name = location.hash.slice(1) || 'without', go = new Go(), own = new Clock(go), mine = ++begun;
  try {
    program ??= await WebAssembly.compile(await (await fetch('play.wasm')).arrayBuffer());
    const instance = await WebAssembly.instantiate(program, go.importObject);
    if (mine !== begun) return; // another situation has been chosen
    go.argv = ['play', name];
    go.run(instance);
  } catch (e) {
    return notice($('error'), 'The program of the page does not run: ' + e.message);
  }
  [clock, world] = [own, globalThis.lockWorld];
  const links = [...$('situations').children], known = links.find((a) => a.hash === '#' + name), link = known || links[0];
  notice($('error'), known ? '' : `There is no situation "${name}".`);
  for (const a of links) a.ariaCurrent = a === link ? 'page' : null;
  fit($('title'), link.textContent);
  fit($('text'), link.dataset.text);
  document.title = link.textContent + ' – lambdalock';
  fit($('story'));
  rows.show({ at: 0, keys: [] });
  look();
  for (const [name, value] of Object.entries(picture.set)) $('set-' + name).value = value;
  setPlaying(!matchMedia('(prefers-reduced-motion: reduce)').matches);
}

function setPlaying(now) {
  playing = now;
  fit($('play'), playing ? 'Pause' : 'Play');
  document.body.dataset.state = playing ? 'playing' : picture.idle ? 'ended' : 'paused';
}

const seconds = (ms) => (ms / 1000).toFixed(1) + ' s';

// strike describes a button that does something to an environment.
const strike = (lane, name, what, pressed) => el('button', { type: 'button', 'aria-pressed': pressed, onclick: () => {
  world.strike(lane, what);
  look();
} }, name);

// look shows the world as it is now.
function look() {
  picture = JSON.parse(world.picture($('story').childElementCount));
  const { idle, facts, lanes, story, keys } = picture, from = Math.max(birth, clock.now - axes.at(-1));
  fit($('clock'), seconds(clock.now - birth));
  fit($('verdict'), el('span', facts.overlaps || idle && facts.stored < facts.wanted ? 'bad' : '',
    `${facts.overlaps} of ${facts.runs} runs overlap; invoices stored: ${facts.stored} of ${facts.wanted}`));
  fit($('timeline'), timeline($('timeline'), lanes, from, from + axes.find((ms) => ms >= clock.now - from), (at) => seconds(at - birth)));
  fit($('legend'), legend(['held', 'overlap', 'wait', 'covered', 'lost', 'freeze', 'kill'].filter((kind) => lanes.some((l) => l.spans.some((s) => s.kind === kind)))));
  fit($('facts'), [
    ['events', facts.events], ['most at work at once', facts.most], ['waiting that is paid for', seconds(facts.paidWait)],
    ['covered by another run', facts.covered], ['answered with an error', facts.unserved, facts.unserved], ['stale writes refused', facts.refused],
  ].map(([name, value, bad]) => el('div', bad ? 'bad' : '', el('dt', '', name), el('dd', '', String(value)))));
  fit($('environments'), lanes.map(({ name, frozen, slow }, i) => el('div', '', el('span', '', name), strike(i, 'Freeze', frozen ? 'thaw' : 'freeze', String(frozen)),
    strike(i, 'Kill', 'kill', false), strike(i, 'Slow', slow ? 'fast' : 'slow', String(slow)))));
  fit($('numbers'), numbers(keys));
  rows.show(keys);
  for (const { at, who, text } of story) {
    const line = document.createElement('li');
    fit(line, el('span', 'dim', seconds(at - birth)), el('span', '', who), el('span', /cancelled|refused|still|killed/.test(text) ? 'weighty' : '', text));
    $('story').prepend(line);
  }
}

function frame(at) {
  const passed = Math.min(100, at - last);
  last = at;
  if (playing) {
    clock.advance(Math.round(clock.now + passed * $('speed').value));
    look();
    if (picture.idle) setPlaying(false);
  }
  requestAnimationFrame(frame);
}

$('play').addEventListener('click', () => setPlaying(!playing));
$('again').addEventListener('click', begin);
$('step').addEventListener('click', () => {
  const end = clock.now + (picture.idle ? 1000 : mostStep);
  do {
    clock.advance(Math.min(clock.next(), end));
    look();
  } while (clock.now < end && !picture.story.length);
  setPlaying(false);
});
for (const b of document.querySelectorAll('[data-send]')) {
  b.addEventListener('click', () => {
    world.send(Number(b.dataset.send));
    setPlaying(true);
  });
}
for (const name of ['lock', 'holders', 'keys']) {
  $('set-' + name).addEventListener('change', () => world.choose($('set-lock').value, Number($('set-holders').value), Number($('set-keys').value)));
}
addEventListener('hashchange', begin);
addEventListener('resize', () => picture && look());
begin().then(() => requestAnimationFrame(frame));
