import { History, Rows, button, clock, el, fit, notice, numbers, span } from './page.js';

const $ = (id) => document.getElementById(id);
const history = new History(), rows = new Rows($('keys'), { timeline: (k) => history.lanes(k.key), actions });
let snapshot = null; // the last one, and what lockctl says of itself
let readAt = 0; // when lockctl had read it, by performance.now()
let asked = 0; // when the request that is under way was sent; 0 is none
let failed = ''; // why the last request failed
let again = false; // what is shown is old
let news = null; // ends a pause early

// get sends a request, and throws what the server says is wrong.
async function get(path, body) {
  let answer;
  try {
    answer = await fetch(path, body && { method: 'POST', body: JSON.stringify(body) });
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
    const got = await get('state'), before = snapshot;
    [snapshot, readAt, failed] = [got, performance.now() - got.ageMs, ''];
    if (!before || before.at !== got.at) history.add(got, before && got.at - before.at > 3 * Math.max(got.everyMs, got.tookMs) + 2000);
    rows.show(got, now());
  } catch (e) {
    failed = e.message;
  }
  const took = performance.now() - asked, every = snapshot ? snapshot.everyMs : 0;
  asked = 0;
  show();
  await pause(failed ? Math.max(1000, took, Math.min(every, 30000)) : Math.max(every - took, 100));
}

// slow is how long a reading may take before the page says so.
const slow = 3000;

function show() {
  const s = snapshot, waits = asked && performance.now() - asked > slow && performance.now() - readAt > slow + (s ? s.everyMs : 0);
  const since = 'since ' + (s ? clock(s.at) : 'this page was opened');
  notice($('gone'), failed ? `No news ${since}: ${failed} The page asks again by itself.` : waits ? `The store has not answered ${since}. The page waits for it.` : '');
  $('main').classList.toggle('stale', Boolean(failed || waits));
  fit($('numbers'), numbers(s));
  if (!s) return;
  fit($('title'), s.store);
  fit($('about'), s.which + '. ' + (s.texts ? 'This page can revoke and resolve.' : 'This page changes nothing; with --write it can revoke and resolve.'));
  const units = s.readUnits ? ` and ${Math.ceil(s.readUnits)} read units` : '';
  fit($('cost'), `Read at ${clock(s.at)}, once in ${span(Math.max(s.everyMs, s.tookMs))}: ${Math.ceil(s.requests)} requests${units} a minute while you look.`);
  notice($('none'), [!s.keys.length && 'There is no such key.', s.more && `${s.more} more keys are not shown: give lockctl ui a prefix.`, s.damaged].filter(Boolean).join(' '));
  document.title = (s.inDoubt ? s.inDoubt + ' in doubt, ' : '') + (s.waiting ? s.waiting + ' wait, ' : '') + s.store;
}

setInterval(() => {
  if (document.hidden) return;
  if (snapshot && !failed) rows.tick(now());
  show();
}, 1000);

// actions are the buttons for a holder, or for a key. lockctl revoke refuses a key that is reserved alone.
function actions(k, holder) {
  if (!snapshot.texts) return [];
  if (holder && holder.state !== 'revoked' && ['held', 'revoked'].includes(k.state)) return [button('Revoke…', () => revoke(k, holder, snapshot.texts))];
  if (!holder && k.state === 'in doubt') return [button('Resolve…', () => resolve(k, snapshot.texts))];
  return [];
}

const choice = (type, name, value, ...about) => el('label', 'choice', el('input', { type, name, value, required: type === 'radio' }), el('span', '', about));

const revoke = (k, holder, texts) => ask(k, holder.fence, 'Revoke the lease of ' + (holder.who || 'the run that was handed the key'), 'Revoke', [
  el('p', '', texts.revoke), el('p', '', `Fence ${holder.fence}. If another has the key by then, nothing happens. Its lease has at most ${span(holder.leftMs)} left.`),
  el('input', { type: 'hidden', name: 'do', value: 'revoke' }), choice('checkbox', 'atOnce', 'true', texts.atOnce),
]);

const resolve = (k, texts) => ask(k, k.fence, 'Say how the work has ended', 'Resolve', [
  el('p', '', texts.resolve), el('p', '', 'The work of ' + (k.who || 'somebody') + ', fence ' + k.fence + '.'),
  choice('radio', 'do', 'effect', el('b', '', 'effect: '), texts.effect), choice('radio', 'do', 'no-effect', el('b', '', 'no-effect: '), texts.noEffect),
]);

// ask shows a question. Who answers it types the key's name.
function ask(k, fence, title, verb, content) {
  const dialog = $('dialog'), form = document.createElement('form'), asks = () => dialog.open && form.isConnected; // the person may close it, and open another
  let sent = false, wrong = '';
  const draw = () => fit(form, el('h1', { id: 'question' }, title), content,
    el('label', '', el('span', '', 'Type the key to confirm: ', el('b', '', k.shown)), el('input', { id: 'typed', autocomplete: 'off', spellcheck: 'false' })),
    el('p', { class: 'error', role: 'alert' }, wrong),
    el('div', 'row', button('Cancel', () => dialog.close()), el('button', { class: 'danger', disabled: sent || form.elements.typed?.value !== k.shown || !form.checkValidity() }, verb + (form.elements.atOnce?.checked ? ' and open at once' : ''))));
  form.oninput = draw;
  form.onsubmit = async (e) => {
    e.preventDefault();
    const body = { key: k.key, fence, ...Object.fromEntries(new FormData(form)) };
    [sent, wrong] = [true, ''];
    draw();
    try {
      notice($('said'), clock(now()) + ': ' + (await get('act', body)).text);
      if (asks()) dialog.close();
    } catch (e) {
      if (asks()) wrong = e.message;
      else notice($('said'), k.shown + ': ' + e.message);
    }
    sent = false;
    draw();
    refresh(); // what is shown is old in either case
  };
  draw();
  dialog.replaceChildren(form);
  dialog.showModal();
  form.elements.typed.focus();
}

for (;;) await read();
