// Rows and timelines of keys, for lockctl ui and make play. What a key or a holder says is text: nothing here writes markup.

const svgName = 'http://www.w3.org/2000/svg';

export function el(name, className, text, ...children) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text) e.textContent = text;
  e.append(...children);
  return e;
}

function draw(name, attributes, text) {
  const e = document.createElementNS(svgName, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text) e.textContent = text;
  return e;
}

// write changes the page only where it differs, so that a selection, and what a reader of the screen says, stay.
export function write(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// notice shows a text, or hides its element if there is none.
export function notice(e, text) {
  write(e, text);
  e.hidden = !text;
}

export function button(name, does, className = '') {
  const b = el('button', className, name);
  b.type = 'button';
  b.addEventListener('click', does);
  return b;
}

// span is a length in two units at most: "0 s", "41 s", "3m 12s", "2h 5m", "3d 4h".
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  for (const [unit, size, next, part] of [['d', 86400, 'h', 3600], ['h', 3600, 'm', 60], ['m', 60, 's', 1]]) {
    if (s >= size) return Math.floor(s / size) + unit + ' ' + Math.floor(s % size / part) + next;
  }
  return s + ' s';
}

// clock is the time of day, with the day if it is another one.
export function clock(at, now = Date.now()) {
  const t = new Date(at), time = t.toLocaleTimeString('en-GB');
  return t.toDateString() === new Date(now).toDateString() ? time : t.toLocaleDateString('en-CA') + ' ' + time;
}

// word is the class of a state.
const word = (state) => state === 'in doubt' ? 'doubt' : state;

// numbers shows the four numbers of a snapshot.
export function numbers(list, s) {
  const all = [
    ['held', s ? s.held : '–'], ['waiting', s ? s.waiting : '–'],
    ['oldest wait', !s ? '–' : s.waiting ? span(s.oldestWaitMs) : 'none'], ['in doubt', s ? s.inDoubt : '–'],
  ];
  all.forEach(([name, value], i) => {
    const box = list.children[i] || list.appendChild(el('div', '', '', el('dt', '', name), el('dd')));
    write(box.lastChild, String(value));
    box.classList.toggle('alarm', name === 'in doubt' && value > 0);
  });
}

// meaning is what the help of lockctl says of a state.
const meaning = {
  free: 'Nobody has the key.',
  reserved: 'Those who wait get the key first; the next of them may be at work already.',
  held: 'Somebody has a lease of the key.',
  revoked: 'An operator has ended the lease; the key opens when its run ends or its time is over.',
  completed: 'The work is done, and its result is stored until the time is over.',
  cooldown: 'The work is done, and nobody gets the key until the time is over.',
  'in doubt': 'Nobody knows how the work ended: the key is closed until somebody resolves it.',
};

// Rows shows a row for each key, in the order of the snapshot. of.timeline(key) returns the lanes of a key, or nothing; of.actions(key, holder)
// the buttons for a holder, or with null for the key.
export class Rows {
  constructor(list, of = {}) {
    this.list = list;
    this.of = of;
    this.rows = new Map();
    list.addEventListener('keydown', (e) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[e.key], heads = [...list.querySelectorAll('.head')], i = heads.indexOf(e.target);
      if (!step || i < 0) return;
      e.preventDefault();
      heads[Math.min(heads.length - 1, Math.max(0, i + step))].focus();
    });
  }

  // show also keeps the focus, which a row that is moved loses. now is the time by the clock of the snapshot.
  show(snapshot, now = snapshot.at) {
    const old = this.rows, keys = new Set(snapshot.keys.map((k) => k.key)), focus = document.activeElement;
    for (const [key, row] of old) if (!keys.has(key)) row.item.remove();
    this.rows = new Map();
    let last = null;
    for (const k of snapshot.keys) {
      const row = old.get(k.key) || new Row(this.of);
      this.rows.set(k.key, row);
      row.show(k, snapshot.at);
      const next = last ? last.nextSibling : this.list.firstChild;
      if (next && next.nextSibling === row.item) this.list.append(next); // it has a place further down: one row moves, and not all below it
      else if (next !== row.item) this.list.insertBefore(row.item, next);
      last = row.item;
    }
    if (focus !== document.activeElement && this.list.contains(focus)) focus.focus({ preventScroll: true });
    this.tick(now);
  }

  tick(now) {
    for (const row of this.rows.values()) row.tick(now);
  }
}

// JSON has no empty lists of keys.
const holders = (k) => k.holders || [], queue = (k) => k.queue || [];

const renewal = (at, now) => at ? `, renewed ${span(now - at)} ago` : ', no renewal seen yet';

let bodies = 0;

class Row {
  constructor(of) {
    this.of = of;
    this.seen = new Map();
    this.parts = Object.fromEntries(['state', 'key', 'who', 'age', 'left', 'queued', 'fence'].map((c) => [c, el('span', c)]));
    this.bar = el('i');
    this.leftText = el('span');
    this.parts.left.append(this.barBox = el('span', 'bar', '', this.bar), this.leftText);
    this.head = el('button', 'head', '', ...Object.values(this.parts));
    this.head.type = 'button';
    this.body = el('div', 'body');
    this.body.id = 'key-' + ++bodies;
    this.body.hidden = true;
    this.head.setAttribute('aria-expanded', 'false');
    this.head.setAttribute('aria-controls', this.body.id);
    this.head.addEventListener('click', () => this.open(this.body.hidden));
    this.item = el('li', '', '', this.head, this.body);
  }

  open(opens) {
    this.body.hidden = !opens;
    this.head.setAttribute('aria-expanded', String(opens));
    this.fill();
    this.tick(this.now);
  }

  show(k, at) {
    [this.k, this.at] = [k, at];
    const { state, key, who } = this.parts;
    state.className = 'state ' + word(k.state);
    write(state, k.state);
    write(key, k.shown);
    write(who, k.who || '–');
    write(this.parts.fence, k.fence || '–');
    this.head.setAttribute('aria-label', `${k.shown}: ${k.state}${k.who ? ', ' + k.who : ''}${k.waiting ? `, ${k.waiting} wait` : ''}`);
    this.item.dataset.key = k.key;
    this.item.dataset.state = k.state;
    this.barBox.className = 'bar ' + word(k.state);
    const lease = k.fence + k.state;
    this.most = Math.max(k.leftMs || 0, lease === this.lease ? this.most : 0);
    this.lease = lease;
    this.seen = new Map(holders(k).map((h) => { // when each lease ends, and when a later end was seen
      const end = at + h.leftMs, seen = this.seen.get(h.fence) || [end, 0];
      return [h.fence, end > seen[0] + 1500 ? [end, at] : seen];
    }));
    this.fill();
  }

  // tick shows ages and what is left, which change without news.
  tick(now) {
    const { k, at, parts } = this, passed = now - at, left = Math.max(0, (k.leftMs || 0) - passed);
    this.now = now;
    write(parts.age, k.sinceAt ? span(now - k.sinceAt) : '–');
    this.barBox.hidden = !k.leftMs;
    write(this.leftText, k.leftMs ? span(left) : '–');
    this.bar.style.width = 100 * left / (this.most || 1) + '%';
    write(parts.queued, k.waiting ? k.waiting + (k.parked === k.waiting ? ' parked, ' : ', ') + span((k.oldestWaitMs || 0) + passed) : '–');
    if (this.body.hidden) return;
    for (const [e, text] of this.counted) write(e, text(now));
    const lanes = this.of.timeline && this.of.timeline(k);
    if (lanes) timeline(this.picture, lanes, now - shownTime, now);
  }

  // fill makes what an open row shows. Its buttons stay while they are for the same lease.
  fill() {
    if (this.body.hidden || !this.k) return;
    const { k } = this, shape = JSON.stringify([k.state, k.fence, k.started, holders(k).map((h) => [h.fence, h.state, h.seat, h.who]), queue(k).map((p) => p.parked)]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(k);
    }
  }

  build(k) {
    this.counted = []; // elements, each with its text at a time
    const counts = (name, text) => {
      const e = el(name);
      this.counted.push([e, text]);
      return e;
    };
    const age = ({ holder }, now) => {
      const since = Date.parse(holder && holder.since);
      return since ? span(now - since) + ', since ' + clock(since, now) : '–';
    };
    const left = (h, now) => span(h.leftMs - (now - this.at)) + renewal(this.seen.get(h.fence)[1], now);
    const waits = (p, now) => (p.parked ? 'parked for ' : 'waits for ') + span(p.waitedMs + now - this.at);
    const buttons = (holder) => this.of.actions ? this.of.actions(k, holder) : [];
    const all = [el('p', '', meaning[k.state] + (k.started ? ' The work has started and marked it: if its lease ends without an answer, the key is in doubt.' : '')), el('p', 'dim', '', 'key ', el('b', '', k.shown), ' · last fence ', el('span', 'fence', k.fence || '–'))];
    if (k.state === 'in doubt' || k.state === 'completed') all.splice(1, 0, el('p', '', k.who ? 'Work by ' + k.who + '.' : ''));
    all.push(...buttons(null));
    if (holders(k).length) {
      const about = (h, i) => [
        el('span', 'state ' + word(h.state), h.state), ' ', h.who || 'not known before it asks for its full lease', h.maxHolders > 1 ? `, seat ${h.seat} of ${h.maxHolders}` : '', el('br'),
        el('span', 'dim', '', 'has it for ', counts('span', (now) => age(this.k.holders[i], now)), ' · left at most ', counts('span', (now) => left(this.k.holders[i], now)), ' · fence ', h.fence),
      ];
      all.push(el('h2', '', 'Holders'), el('ul', 'holders', '', ...holders(k).map((h, i) => el('li', '', '', el('span', '', '', ...about(h, i)), ...buttons(h)))));
    }
    all.push(el('h2', '', k.waiting ? 'Queue' : 'Nobody waits'), el('ol', 'queue', '', ...queue(k).map((_, i) => counts('li', (now) => i + 1 + '. ' + waits(this.k.queue[i], now)))));
    if (this.of.timeline) {
      this.picture = draw('svg', { class: 'timeline', role: 'img' });
      const kinds = el('div', 'legend');
      legend(kinds, ['held', 'reserved', 'revoked', 'doubt', 'done', 'wait', 'unseen']);
      all.push(el('h2', '', 'The last two minutes, as far as this page has looked'), this.picture, kinds);
    }
    this.body.replaceChildren(...all);
  }
}

// shownTime is how much a timeline of a row shows.
const shownTime = 120_000;

const names = {
  held: 'held', overlap: 'overlaps others of the same key', wait: 'waiting for the lock', reserved: 'handed over', revoked: 'revoked', doubt: 'in doubt', done: 'completed',
  lost: 'its lease was lost', freeze: 'frozen', kill: 'killed', unseen: 'not looked at',
};

// legend explains kinds of spans.
export function legend(box, kinds) {
  box.replaceChildren(...kinds.map((kind) => {
    const sample = draw('svg', { class: 'timeline', viewBox: '0 0 24 12', 'aria-hidden': 'true' });
    sample.append(draw('rect', { class: kind, y: kind === 'wait' ? 5 : 0, width: 24, height: kind === 'wait' ? 2 : 12 }));
    return el('span', '', '', sample, names[kind]);
  }));
}

// timeline draws lanes of spans from a time to another, as wide as the picture is. label is what a time at the axis is called.
export function timeline(svg, lanes, from, to, label = (at) => at === to ? 'now' : '−' + span(to - at)) {
  const width = Math.max(320, svg.clientWidth || 1000), margin = 72, height = 26, bottom = lanes.length * height, x = (t) => margin + (width - margin - 8) * (Math.min(to, Math.max(from, t)) - from) / (to - from);
  svg.setAttribute('viewBox', `0 0 ${width} ${bottom + 24}`);
  const all = [draw('title', {}, lanes.map((l) => l.name + ': ' + l.spans.map((s) => s.text).join('; ')).join('. '))];
  for (let i = 0; i <= 4; i++) {
    const at = from + (to - from) * i / 4;
    all.push(draw('line', { class: 'grid', x1: x(at), x2: x(at), y1: 0, y2: bottom }),
      draw('text', { x: x(at), y: bottom + 17, 'text-anchor': i === 4 ? 'end' : 'middle' }, label(at)));
  }
  lanes.forEach((lane, n) => {
    const top = n * height;
    all.push(draw('rect', { class: 'lane', x: margin, y: top + 2, width: width - margin - 8, height: height - 4 }),
      draw('text', { x: margin - 10, y: top + 17, 'text-anchor': 'end' }, lane.name));
    for (const s of lane.spans) {
      if (s.to < from || s.from > to) continue;
      const high = s.kind === 'wait' ? Math.max(2, 18 * (s.level || 0)) : ['freeze', 'kill', 'unseen'].includes(s.kind) ? height - 4 : 16;
      const bar = draw('rect', { class: s.kind, x: x(s.from), width: Math.max(1.5, x(s.to) - x(s.from)), height: high, y: s.kind === 'wait' && s.level ? top + 22 - high : top + (height - high) / 2 });
      bar.append(draw('title', {}, s.text));
      all.push(bar);
    }
  });
  svg.replaceChildren(...all);
}

// History remembers what was seen of keys, for the time of a timeline.
export class History {
  constructor() {
    this.keys = new Map();
    this.gaps = [];
    this.last = 0;
  }

  // add remembers a snapshot. gap says that nobody has looked for longer than usual.
  add(snapshot, gap) {
    const now = snapshot.at, since = gap ? now : this.last || now;
    if (gap && this.last) this.gaps.push({ from: this.last, to: now, kind: 'unseen', text: 'not looked at for ' + span(now - this.last) });
    this.gaps = this.gaps.filter((g) => g.to > now - shownTime);
    for (const k of snapshot.keys) {
      const seen = holders(k).map((h) => [`seat ${h.seat}`, h.state, h.state + ', fence ' + h.fence + (h.who ? ', ' + h.who : '')]);
      if (!seen.length && k.state !== 'free' && k.state !== 'reserved') seen.push(['seat 0', ['completed', 'cooldown'].includes(k.state) ? 'done' : word(k.state), k.state]);
      if (k.waiting) seen.push(['waiting', 'wait', k.waiting + ' wait', Math.min(1, k.waiting / 16)]);
      if (!this.keys.has(k.key)) this.keys.set(k.key, []);
      const spans = this.keys.get(k.key);
      for (const [lane, kind, text, level] of seen) {
        const open = spans.find((s) => s.to === this.last && !gap && s.lane === lane && s.text === text);
        if (open) open.to = now;
        else spans.push({ lane, kind, text, level, from: since, to: now });
      }
    }
    for (const [key, spans] of this.keys) {
      const left = spans.filter((s) => s.to > now - shownTime);
      if (left.length) this.keys.set(key, left);
      else this.keys.delete(key);
    }
    this.last = now;
  }

  lanes(key) {
    const spans = this.keys.get(key) || [], seats = new Set(['seat 0', ...spans.map((s) => s.lane), 'waiting']);
    return [...seats].sort((a, b) => (a === 'waiting') - (b === 'waiting') || a.localeCompare(b, 'en', { numeric: true }))
      .map((name) => ({ name, spans: [...this.gaps, ...spans.filter((s) => s.lane === name)] }));
  }
}
