import { History, Rows, button, clock, el, notice, numbers, span, write } from './page.js';

const $ = (id) => document.getElementById(id);
const history = new History();
let about = null; // what the server says of itself
let snapshot = null; // the last one
let readAt = 0; // when lockctl had read it, by performance.now()
let asked = 0; // when the request that is under way was sent; 0 is none
let failed = ''; // why the last request failed
let again = false; // what is shown is old
let news = null; // ends a pause early

const rows = new Rows($('keys'), { timeline: (k) => history.lanes(k.key), actions });

// get sends a request, and throws what the server says is wrong.
async function get(path, body) {
  const post = body && { method: 'POST', body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, { ...post, cache: 'no-store' });
  } catch {
    throw new Error('lockctl does not answer. If it has ended, start it again, and open the address that it prints.');
  }
  const got = await answer.json();
  if (!answer.ok) throw new Error(got.error || answer.statusText);
  return got;
}

// now is the time of the snapshots: that of lockctl, and not of the browser. It stands still while there are no news.
const now = () => snapshot.at + (failed ? 0 : performance.now() - readAt);

// pause ends after a time, or with news; it lasts while nobody looks at the page.
async function pause(ms) {
  if (!again) await new Promise((done) => { news = done; setTimeout(done, ms); });
  while (document.hidden) await new Promise((done) => document.addEventListener('visibilitychange', done, { once: true }));
}

// refresh reads at once, or again if a request is under way.
function refresh() {
  again = true;
  news?.();
}

async function read() {
  asked = performance.now();
  again = false;
  try {
    about = about || await get('about');
    const got = await get('state'), before = snapshot;
    [snapshot, readAt, failed] = [got, performance.now() - got.ageMs, ''];
    if (!before || before.at !== got.at) history.add(got, before && got.at - before.at > 3 * Math.max(about.everyMs, got.tookMs) + 2000);
    rows.show(got, now());
  } catch (e) {
    failed = e.message;
  }
  const took = performance.now() - asked;
  asked = 0;
  show();
  const every = about ? about.everyMs : 0;
  await pause(failed ? Math.max(1000, took, Math.min(every, 30000)) : Math.max(every - took, 100));
}

// slow is how long a reading may take before the page says so.
const slow = 3000;

function show() {
  const waits = asked && performance.now() - asked > slow && performance.now() - readAt > slow + (about ? about.everyMs : 0);
  const since = snapshot ? 'since ' + clock(snapshot.at) : 'since this page was opened';
  notice($('gone'), failed ? `No news ${since}: ${failed} The page asks again by itself.` : waits ? `The store has not answered ${since}. The page waits for it.` : '');
  $('main').classList.toggle('stale', Boolean(failed || waits));
  if (about) {
    const what = about.keys ? 'Keys ' + about.names.join(', ') : about.names.length ? 'Keys that begin with ' + about.names.join(' or ') : 'All keys';
    write($('title'), about.store);
    write($('about'), what + (about.keys ? '' : ' that are held, reserved, revoked or in doubt') + '. ' + (about.texts ? 'This page can revoke and resolve.' : 'This page changes nothing.'));
  }
  numbers($('numbers'), snapshot);
  if (!snapshot) return;
  const s = snapshot, units = s.readUnits ? ` and ${Math.ceil(s.readUnits)} read units` : '';
  write($('cost'), `Read at ${clock(s.at)}, once in ${span(Math.max(about.everyMs, s.tookMs))}: ${Math.ceil(s.requests)} requests${units} a minute while you look.`);
  const none = [];
  if (!s.keys.length && !about.keys) none.push('No such key is held, reserved, revoked or in doubt.');
  if (s.more) none.push(`${s.more} more keys are not shown: give lockctl ui a prefix.`);
  if (s.damaged) none.push(`${s.damaged} entries are damaged or another program's, such as ${s.damagedNames.join(', ')}.`);
  notice($('none'), none.join(' '));
  document.title = (s.inDoubt ? s.inDoubt + ' in doubt, ' : '') + (s.waiting ? s.waiting + ' wait, ' : '') + about.store;
}

setInterval(() => {
  if (document.hidden) return;
  if (snapshot && !failed) rows.tick(now());
  show();
}, 1000);

// actions are the buttons for a holder, or for a key. lockctl revoke refuses a key that is reserved alone.
function actions(k, holder) {
  if (!about || !about.texts) return [];
  if (holder && holder.state !== 'revoked' && ['held', 'revoked'].includes(k.state)) return [button('Revoke…', () => revoke(k, holder))];
  if (!holder && k.state === 'in doubt') return [button('Resolve…', () => resolve(k))];
  return [];
}

function revoke(k, holder) {
  const atOnce = el('input');
  atOnce.type = 'checkbox';
  ask(k, 'Revoke the lease of ' + (holder.who || 'the run that was handed the key'), 'Revoke', [
    ...paragraphs(about.texts.revoke),
    el('p', '', 'Fence ' + holder.fence + '. If another has the key by then, nothing happens.'),
    el('label', 'choice', '', atOnce, el('span', '', about.texts.atOnce)),
  ], () => ['revoke', { fence: holder.fence, atOnce: atOnce.checked }]);
}

function resolve(k) {
  const choice = (value, about) => {
    const e = el('input');
    [e.type, e.name, e.value, e.required] = ['radio', 'how', value, true];
    return [e, el('label', 'choice', '', e, el('span', '', '', el('b', '', value + ': '), about.replace(/\s+/g, ' ')))];
  };
  const [effect, effectLabel] = choice('effect', about.texts.effect), [none, noneLabel] = choice('no-effect', about.texts.noEffect);
  const result = el('textarea'), version = el('input'), time = el('input');
  result.rows = 3;
  time.placeholder = '24h';
  const more = el('div', '', '', el('label', '', '--result, JSON; empty is none', result), el('label', '', '--result-version', version), el('label', '', '--result-time', time));
  more.hidden = true;
  for (const e of [effect, none]) e.addEventListener('change', () => { more.hidden = !effect.checked; });
  ask(k, 'Say how the work has ended', 'Resolve', [...paragraphs(about.texts.resolve), el('p', '', 'The work of ' + (k.who || 'somebody') + ', fence ' + k.fence + '.'), effectLabel, more, noneLabel], () => ['resolve', {
    fence: k.fence, how: effect.checked ? effect.value : none.checked ? none.value : '',
    ...(effect.checked && { result: result.value, version: version.value, time: time.value }),
  }]);
}

const paragraphs = (text) => [el('p', '', text.replace(/\s+/g, ' '))];

// ask shows a question. Who answers it types the key's name.
function ask(k, title, verb, content, answer) {
  const typed = el('input'), wrong = el('p', 'error'), go = el('button', 'danger', verb), head = el('h1', '', title), form = el('form', '', '', head, ...content);
  let sent = false;
  const check = () => { go.disabled = sent || typed.value !== k.shown || !form.checkValidity(); };
  head.id = 'question';
  wrong.setAttribute('role', 'alert');
  typed.name = 'typed';
  typed.autocomplete = 'off';
  typed.spellcheck = false;
  go.disabled = true;
  form.addEventListener('input', check);
  form.append(el('label', '', '', el('span', '', '', 'Type the key to confirm: ', el('b', '', k.shown)), typed), wrong, el('div', 'row', '', button('Cancel', () => $('dialog').close()), go));
  form.addEventListener('submit', async (e) => {
    e.preventDefault();
    if (go.disabled) return;
    const [path, body] = answer(), asks = () => $('dialog').open && form.isConnected; // the person may have closed it, and opened another
    sent = true;
    check();
    write(wrong, '');
    try {
      notice($('said'), (await get(path, { key: k.key, typed: typed.value, ...body })).text);
      if (asks()) $('dialog').close();
    } catch (e) {
      if (asks()) write(wrong, e.message);
      else notice($('said'), k.shown + ': ' + e.message);
    }
    sent = false;
    check();
    refresh(); // what is shown is old in either case
  });
  $('dialog').replaceChildren(form);
  $('dialog').showModal();
  typed.focus();
}

for (;;) await read();
