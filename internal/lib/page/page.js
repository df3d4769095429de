// Rows and timelines of keys, for lockctl ui and make play. What a key or a holder says is text: nothing here writes markup.

// el describes an element: its class or its attributes, and its children, which are descriptions and texts.
export const el = (name, has, ...children) => ({ name, has: typeof has === 'string' ? { class: has } : has, children });

export const button = (name, onclick) => el('button', { type: 'button', onclick }, name);

// fit gives an element these children, and changes only what differs: a button keeps the focus, and a selection stays.
export function fit(parent, ...children) {
  const wanted = children.flat(Infinity).filter(Boolean);
  wanted.forEach((c, i) => {
    let e = parent.childNodes[i];
    if (!e || e.localName !== c.name) {
      const made = c.name ? document.createElementNS(c.name === 'svg' ? 'http://www.w3.org/2000/svg' : parent.namespaceURI, c.name) : document.createTextNode('');
      if (e) e.replaceWith(made);
      else parent.append(made);
      e = made;
    }
    if (!c.name) {
      if (e.data !== c) e.data = c;
      return;
    }
    for (const { name } of [...e.attributes]) if (!(name in c.has)) e.removeAttribute(name);
    for (const [name, value] of Object.entries(c.has)) {
      if (typeof value === 'function') e[name] = value;
      else if (value === false) e.removeAttribute(name);
      else if (e.getAttribute(name) !== String(value)) e.setAttribute(name, value);
    }
    fit(e, c.children);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

// notice shows a text, or hides its element if there is none.
export function notice(e, text) {
  fit(e, text);
  e.hidden = !text;
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

// numbers describes the four numbers of a snapshot, which may not be there yet.
export const numbers = (s) => [['held', s?.held], ['waiting', s?.waiting], ['oldest wait', s && (s.waiting ? span(s.oldestWaitMs) : 'none')], ['in doubt', s?.inDoubt]]
  .map(([name, value]) => el('div', name === 'in doubt' && value ? 'alarm' : '', el('dt', '', name), el('dd', '', String(value ?? '–'))));

// meaning is what the help of lockctl says of a state.
const meaning = {
  free: 'Nobody has the key.',
  reserved: 'Those who wait get the key first; the next of them may be at work already.',
  held: 'Somebody has a lease of the key. If it is renewed, its process lives: only its log says whether that works or hangs.',
  revoked: 'An operator has ended the lease; the key opens when its run ends or its time is over.',
  completed: 'The work is done, and its result is stored until the time is over.',
  cooldown: 'The work is done, and nobody gets the key until the time is over.',
  'in doubt': 'Nobody knows how the work ended: the key is closed until somebody resolves it.',
};

// Rows shows a row for each key, in the order of the snapshot; while the pointer is in the list, in that of the rows. of.timeline(key) returns the
// lanes of a key; of.actions(key, holder) the buttons for a holder, or with null for the key.
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
    let order = snapshot.keys;
    if (this.list.matches(':hover')) {
      const place = new Map([...old.keys()].map((key, i) => [key, i])), at = (k) => place.get(k.key) ?? old.size;
      order = order.toSorted((a, b) => at(a) - at(b));
    }
    for (const [key, row] of old) if (!keys.has(key)) row.item.remove();
    this.rows = new Map();
    let last = null;
    for (const k of order) {
      const row = old.get(k.key) || new Row(this.of, k.key);
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

let bodies = 0;

class Row {
  constructor(of, key) {
    this.of = of;
    this.seen = new Map();
    this.id = 'key-' + ++bodies;
    this.item = document.createElement('li');
    this.item.dataset.key = key;
  }

  show(k, at) {
    const lease = k.fence + k.state;
    this.most = Math.max(k.leftMs || 0, lease === this.lease ? this.most : 0);
    this.seen = new Map((k.holders || []).map((h) => { // when each lease ends, and when a later end was seen
      const end = at + h.leftMs, seen = this.seen.get(h.fence) || [end, 0];
      return [h.fence, end > seen[0] + 1500 ? [end, at] : seen];
    }));
    [this.k, this.at, this.lease] = [k, at, lease];
  }

  // tick also shows ages and what is left, which change without news.
  tick(now) {
    const { k, id, open } = this, passed = now - this.at, left = Math.max(0, k.leftMs - passed);
    const about = `${k.shown}: ${k.state}${k.who ? ', ' + k.who : ''}${k.waiting ? `, ${k.waiting} wait` : ''}`;
    const toggle = () => {
      this.open = !this.open;
      this.tick(now);
    };
    fit(this.item, el('button', { type: 'button', class: 'head', 'aria-expanded': Boolean(open) + '', 'aria-controls': id, 'aria-label': about, onclick: toggle },
      el('span', 'state ' + word(k.state), k.state), el('span', 'key', k.shown), el('span', 'who', k.who || '–'), el('span', 'age', k.sinceAt ? span(now - k.sinceAt) : '–'),
      el('span', 'left', k.leftMs && el('svg', { class: 'bar ' + word(k.state), viewBox: '0 0 48 8', 'aria-hidden': 'true' }, el('rect', { width: 48 * left / this.most, height: 8 })), k.leftMs ? span(left) : '–'),
      el('span', 'queued', k.waiting ? k.waiting + (k.parked === k.waiting ? ' parked, ' : ', ') + span((k.oldestWaitMs || 0) + passed) : '–'),
      el('span', 'fence', k.fence || '–')),
    el('div', { class: 'body', id, hidden: !open }, open && this.body(now, passed)));
  }

  // body describes what an open row shows.
  body(now, passed) {
    const { k, of, seen } = this, buttons = (holder) => of.actions ? of.actions(k, holder) : [];
    const age = (since) => since ? span(now - since) + ', since ' + clock(since, now) : '–';
    const renewed = (at) => at ? `, renewed ${span(now - at)} ago` : ', no renewal seen yet';
    return [
      el('p', '', meaning[k.state], k.started && (k.state === 'in doubt' ? ' The work had marked its start, and its lease ended without an answer.' : ' The work has marked its start: if its lease ends without an answer, the key is in doubt.')),
      ['in doubt', 'completed'].includes(k.state) && k.who && el('p', '', 'Work by ' + k.who + '.'),
      el('p', 'dim', 'key ', el('b', '', k.shown), ' · last fence ', el('span', 'fence', k.fence || '–')), buttons(null),
      k.holders && [el('h2', '', 'Holders'), el('ul', 'holders', k.holders.map((h) => el('li', '', el('span', '',
        el('span', 'state ' + word(h.state), h.state), ' ', h.who || 'not known before it asks for its full lease', h.maxHolders > 1 && `, seat ${h.seat} of ${h.maxHolders}`, el('br', ''),
        el('span', 'dim', (h.state === 'revoked' ? 'revoked for ' : 'has it for ') + age(Date.parse(h.holder?.since)) + ' · left at most ' + span(h.leftMs - passed),
          h.state === 'held' && renewed(seen.get(h.fence)[1]), el('br', ''), 'fence ' + h.fence)), buttons(h))))],
      el('h2', '', k.waiting ? 'Queue' : 'Nobody waits now'),
      el('ol', 'queue', (k.queue || []).map((p, i) => el('li', '', `${i + 1}. ${p.parked ? 'parked' : 'waits'} for ${span(p.waitedMs + passed)}`))),
      of.timeline && [el('h2', '', 'The last two minutes, as far as this page has looked'),
        timeline(this.item.querySelector('svg.timeline'), of.timeline(k), now - shownTime, now), legend(['held', 'reserved', 'revoked', 'doubt', 'done', 'wait', 'unseen'])],
    ];
  }
}

// shownTime is how much a timeline of a row shows.
const shownTime = 120_000;

const names = {
  held: 'held', overlap: 'overlaps others of the same key', wait: 'waiting for the lock', covered: 'covered by another run', reserved: 'reserved', revoked: 'revoked', doubt: 'in doubt', done: 'completed',
  lost: 'its lease was lost', freeze: 'frozen', kill: 'killed', unseen: 'not looked at',
};

// legend explains kinds of spans.
export const legend = (kinds) => el('div', 'legend', kinds.map((kind) => el('span', '',
  el('svg', { viewBox: '0 0 24 12', 'aria-hidden': 'true' }, el('rect', { class: kind, y: kind === 'wait' ? 5 : 0, width: 24, height: kind === 'wait' ? 2 : 12 })), names[kind])));

// timeline describes lanes of spans from a time to another, as wide as the element in whose place it comes. label is what a time at the axis is called.
export function timeline(old, lanes, from, to, label = (at) => at === to ? 'now' : '−' + span(to - at)) {
  const width = Math.max(320, old?.clientWidth || 1000), margin = 72, height = 26, bottom = lanes.length * height, x = (t) => margin + (width - margin - 8) * (Math.min(to, Math.max(from, t)) - from) / (to - from);
  const bar = (s, top) => {
    const high = s.kind === 'wait' ? Math.max(2, 18 * (s.level || 0)) : s.kind === 'covered' ? 6 : ['freeze', 'kill', 'unseen'].includes(s.kind) ? height - 4 : 16, y = s.kind === 'wait' && s.level ? top + 22 - high : top + (height - high) / 2;
    return el('rect', { class: s.kind, x: x(s.from), y, width: Math.max(s.kind === 'covered' ? 4 : 1.5, x(s.to) - x(s.from)), height: high }, el('title', '', s.text));
  };
  return el('svg', { class: 'timeline', role: 'img', viewBox: `0 0 ${width} ${bottom + 24}` },
    el('title', '', lanes.map((l) => l.name + ': ' + l.spans.map((s) => s.text).join('; ')).join('. ')),
    [0, 1, 2, 3, 4].map((i) => [from + (to - from) * i / 4, i === 4 ? 'end' : 'middle']).map(([at, anchor]) => [
      el('line', { class: 'grid', x1: x(at), x2: x(at), y1: 0, y2: bottom }), el('text', { x: x(at), y: bottom + 17, 'text-anchor': anchor }, label(at))]),
    lanes.map((lane, n) => el('g', '', el('rect', { class: 'lane', x: margin, y: n * height + 2, width: width - margin - 8, height: height - 4 }),
      el('text', { x: margin - 10, y: n * height + 17, 'text-anchor': 'end' }, lane.name), lane.spans.filter((s) => s.to >= from && s.from <= to).map((s) => bar(s, n * height)))));
}

// History remembers what was seen of keys, for the time of a timeline.
export class History {
  keys = new Map();
  gaps = [];
  last = 0;

  // add remembers a snapshot. gap says that nobody has looked for longer than usual.
  add(snapshot, gap) {
    const now = snapshot.at, since = gap ? now : this.last || now, shown = (s) => s.to > now - shownTime;
    const unseen = this.last || now - shownTime;
    if (gap || !this.last) this.gaps.push({ from: unseen, to: now, kind: 'unseen', text: 'not looked at for ' + span(now - unseen) });
    this.gaps = this.gaps.filter(shown);
    for (const k of snapshot.keys) {
      const seen = (k.holders || []).map((h) => [`seat ${h.seat}`, h.state, h.state + ', fence ' + h.fence + (h.who ? ', ' + h.who : '')]);
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
      this.keys.set(key, spans.filter(shown));
      if (!this.keys.get(key).length) this.keys.delete(key);
    }
    this.last = now;
  }

  lanes(key) {
    const spans = this.keys.get(key) || [], seats = new Set(['seat 0', ...spans.map((s) => s.lane), 'waiting']);
    return [...seats].sort((a, b) => (a === 'waiting') - (b === 'waiting') || a.localeCompare(b, 'en', { numeric: true }))
      .map((name) => ({ name, spans: [...this.gaps, ...spans.filter((s) => s.lane === name)] }));
  }
}
