// A lock over HTTP, held while a function runs. LOCKS_URL is the service.
//
//   await withLock("shared/reports/daily", { wait: 60 }, async (lock) => {
//     for (const page of pages) {
//       lock.check(); // throws LockLost when the lease is over
//       await write(page, { fence: lock.fence, signal: lock.signal });
//     }
//   });
//
// withLock throws LockBusy, LockCovered, LockInDoubt, LockLost, or what the function throws. lock.signal
// aborts when the lock is lost. What you passed it to (fetch, a timer) then throws an AbortError
// whose cause is LockLost.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

// Somebody else held the lock for as long as this program waited.
export class LockBusy extends Error { name = "LockBusy"; }
// Another program of the same work waits for the lock, and does what this one is for, unless it fails.
export class LockCovered extends Error { name = "LockCovered"; }
// Nobody knows how the last work under the lock ended. Nobody gets the lock before an operator resolves it.
export class LockInDoubt extends Error { name = "LockInDoubt"; }
// The lease ended before the function did.
export class LockLost extends Error { name = "LockLost"; }

// Two clocks: the first stands still while the machine is suspended, the second may be set.
const now = () => [performance.now(), Date.now()];

const longest = 1 << 16; // bytes of an answer
const doubtTime = 30_000; // ms for which the service may work on a request without an answer

function service(plaintext) {
  const text = process.env.LOCKS_URL ?? "";
  if (!/^https?:\/\/[^\s@?#]+$/.test(text) || !URL.canParse(text)) {
    throw new Error("LOCKS_URL: want the URL of the lock service, such as https://HOST, without a user, ? and #");
  }
  const url = new URL(text);
  if (url.protocol === "http:" && !plaintext && !/^((.+\.)?localhost|127(\.\d+){3}|\[::1\])$/.test(url.hostname)) {
    throw new Error("LOCKS_URL is without TLS and its host is not this machine; want https://, or plaintext: true if nobody else can read the traffic");
  }
  return text.replace(/\/+$/, "");
}

async function read(response) {
  const parts = [];
  let size = 0;
  for await (const part of response.body ?? []) {
    if ((size += part.length) > longest) throw new Error("the answer is too long");
    parts.push(part);
  }
  try {
    const answer = JSON.parse(Buffer.concat(parts).toString());
    return answer !== null && typeof answer === "object" ? answer : {};
  } catch {
    return {}; // such as a proxy's page
  }
}

// checkLease checks an answer that should be a lease: what is none of the service's is no lease.
function checkLease(kind, { token, fence, expiresIn }, ttl) {
  if (!/^application\/json *(;|$)/i.test(kind) || typeof token !== "string" || !/^[!-~]{1,1024}$/.test(token)) {
    throw new Error("the answer is no lease: it is not JSON, or has no token");
  }
  if (!Number.isSafeInteger(fence) || fence <= 0) throw new Error("the answer is no lease: its fence is no whole number above 0");
  if (typeof expiresIn !== "number" || !(expiresIn > 0 && expiresIn <= ttl)) {
    throw new Error("the answer is no lease: its expiresIn is not above 0 and at most ttl");
  }
}

// show returns a text of an answer, for people: short, and without what steers a terminal.
const show = (text) => (typeof text === "string" ? text.slice(0, 200).replace(/[^ -~\u00a1-\ud7ff]/g, "?") : "");

// ttl and wait are in seconds. headers is an object or Headers, for example with Authorization, or a
// function (method, url, body) -> headers. The function is called for each request, for
// example to sign the request, and has to bound its own time. plaintext allows http:// for a
// host that is not this machine. With NODE_USE_ENV_PROXY=1 Node sends http:// requests, also those to
// this machine, to the proxy of http_proxy, which gets the token: set no_proxy. With coalesce, the
// name of the work, of many programs only one waits: the others throw LockCovered. event is the id
// of what the work is for, the same one when it is tried again. Both need a wait.
export async function withLock(key, { ttl = 60, wait = 0, headers = {}, plaintext = false, coalesce = "", event = "" }, work) {
  if ((coalesce || event) && !(coalesce && event && wait > 0)) {
    throw new RangeError("coalesce: want coalesce, event and a wait above 0, or neither coalesce nor event");
  }
  if (/(^|\/)\.{0,2}(\/|$)/.test(key)) throw new RangeError(`key: ${key}`); // a URL would drop such segments
  const url = `${service(plaintext)}/locks/${key.split("/").map(encodeURIComponent).join("/")}`;
  let lease, end, status, answer, failure;
  const left = () => Math.min(...now().map((t, i) => end[i] - t)); // ms for which the lease may be trusted
  const is = (s, code) => status === s && answer.code === code;
  // Nobody knows whether the service did what it was asked for, or will do it later.
  const isUnsure = () => !((status >= 400 && status < 500) || is(503, "unavailable"));

  // ask returns true when it got a lease. The lease is counted from before the request. The
  // status is 0 when nobody knows what was done: without an answer, with half of one, and with one
  // of the status 200 that is no lease.
  const ask = async (method, body, more, ms = 10_000) => {
    const sent = now();
    const signal = AbortSignal.timeout(Math.max(1, Math.ceil(ms)));
    [status, answer, failure] = [0, {}, undefined];
    try {
      const own = typeof headers === "function" ? await headers(method, url, body) : headers;
      const all = new Headers({ "Content-Type": "application/json" });
      for (const some of [own, more]) new Headers(some ?? {}).forEach((value, name) => all.set(name, value));
      // A redirect is not followed: another server would get the token.
      const response = await fetch(url, { method, body, signal, redirect: "manual", headers: all });
      answer = await read(response);
      if (response.status === 200 && body) {
        checkLease(response.headers.get("Content-Type") ?? "", answer, ttl);
        if (method === "PATCH" && answer.fence !== lease.fence) throw new Error("the answer is of another lease");
        [lease, end] = [answer, sent.map((t) => t + answer.expiresIn * 1000)];
      }
      status = response.status;
    } catch (e) {
      failure = e;
      answer = { detail: [e, e?.cause?.message || e?.cause?.code].filter(Boolean).join(": ") };
    }
    return status === 200;
  };

  const holder = `process ${process.pid} on ${hostname()}`.replace(/[^ -~]/g, "?").slice(0, 128);
  const asks = coalesce ? { coalesce, event } : {};
  let again = randomUUID(), tries = 0, doubt = 0;
  const patience = performance.now() + wait * 1000;
  for (;;) {
    const sent = performance.now();
    // Who waits there has a place in the queue. A lease counts from sent, so its first renewal needs the rest.
    // One that was handed over lasts for 2 s, which no client with a shorter ttl believes.
    if (wait > 0 && (coalesce || ttl > 3)) asks.wait = Math.ceil(Math.min(5, ttl / 3, Math.max(1, (patience - sent) / 1000)));
    if ((await ask("PUT", JSON.stringify({ ttl, holder, ...asks }), { "Idempotency-Key": again })) && left() > 0) break;
    if (isUnsure()) doubt = performance.now() + doubtTime; // it may get the lock after a later one was refused
    const unsure = performance.now() < doubt;
    if (is(409, "covered") && !unsure) throw new LockCovered(`another program waits for the lock ${url}, and does this work`);
    if (is(409, "in-doubt")) throw new LockInDoubt(`nobody knows how the last work under the lock ${url} ended; an operator has to resolve it`);
    const busy = is(409, "busy");
    const over = busy && performance.now() >= patience;
    if (over && !unsure) throw new LockBusy(`${show(answer.holder?.name) || "somebody else"} holds the lock ${url}`);
    if (is(422, "ended")) [again, doubt] = [randomUUID(), 0]; // the answer was lost, and its lease has ended since
    // Without an answer there may be a lease: the same Idempotency-Key gets the same lease.
    tries = busy ? 0 : tries + 1;
    const why = `${status} ${show(answer.detail) || show(answer.message)}`;
    if ([400, 401, 403, 404, 405, 413, 415].includes(status) || (status >= 300 && status < 400)) {
      const hint = status === 401 || status === 403 ? "; is the request signed, and may this caller use the key?" : "";
      throw new Error(`no lock: ${why}${hint}`);
    }
    if (tries > 5 || over) throw new Error(`no lock: ${why}; if one of the requests got the lock, it is free after ${ttl} s`, { cause: failure });
    const pause = Number.isFinite(answer.retryAfter) ? Math.max(1, answer.retryAfter) : 1;
    // It counts from sent: who has waited there asks again at once, and so does not miss its turn, which is short.
    // A key in its cooldown says when it is free again, which may be in a month.
    await sleep(Math.max(0, Math.min(sent + pause * 1000 - performance.now(), Math.max(1000, patience - performance.now()))));
  }

  const done = new AbortController(), lost = new AbortController();
  const check = () => {
    if (left() <= 0) lost.abort(new LockLost(`the lease of ${url} has ended`));
    lost.signal.throwIfAborted();
  };
  const renewing = (async () => { // of a lease that was waited for less than ttl is left
    for (let pause = left() / 3; !done.signal.aborted && left() > 0; ) {
      await sleep(Math.min(pause, left()), null, { signal: done.signal }).catch(() => {}); // done ends it
      if (done.signal.aborted || left() <= 0) break;
      // A request that hangs leaves time for another one, and does not hold up a release for long.
      const renewed = await ask("PATCH", JSON.stringify({ ttl }), { "Lock-Token": lease.token }, Math.min(10_000, left(), Math.max(1000, left() / 3)));
      if (is(404, "no-lease")) end = [0, 0]; // the lock is lost
      pause = renewed ? left() / 3 : 500;
    }
    if (left() <= 0) lost.abort(new LockLost(`the lease of ${url} has ended`));
  })();
  let result, unsure = false;
  try {
    result = await work({ fence: lease.fence, signal: lost.signal, check });
    check();
  } finally {
    done.abort();
    await renewing;
    for (const pause of [1000, 1000, 0]) { // when all requests fail, the lease ends by itself
      await ask("DELETE", undefined, { "Lock-Token": lease.token });
      if (status === 204 || is(404, "no-lease")) break;
      unsure ||= isUnsure();
      await sleep(pause);
    }
  }
  if (is(404, "no-lease") && !unsure) throw new LockLost(`the lease of ${url} has ended`);
  return result;
}
