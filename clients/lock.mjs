// A lock over HTTP, held while a function runs. LOCKS_URL is the service.
//
//   await withLock("shared/reports/daily", { wait: 60 }, async (lock) => {
//     for (const page of pages) {
//       lock.check(); // throws LockLost when the lease is over
//       await write(page, { fence: lock.fence, signal: lock.signal });
//     }
//   });
//
// withLock throws LockBusy, LockLost, or what the function throws. lock.signal aborts
// when the lock is lost. What you passed it to (fetch, a timer) then throws an AbortError
// whose cause is LockLost.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

// Somebody else held the lock for as long as this program waited.
export class LockBusy extends Error { name = "LockBusy"; }
// The lease ended before the function did.
export class LockLost extends Error { name = "LockLost"; }

// Two clocks: the first stands still while the machine is suspended, the second may be set.
const now = () => [performance.now(), Date.now()];

// ttl and wait are in seconds. headers is an object, for example with Authorization, or a
// function (method, url, body) -> headers. The function is called for each request, for
// example to sign the request, and has to bound its own time.
export async function withLock(key, { ttl = 60, wait = 0, headers = {} }, work) {
  if (/(^|\/)\.{0,2}(\/|$)/.test(key)) throw new RangeError(`key: ${key}`); // a URL would drop such segments
  if (!process.env.LOCKS_URL) throw new Error("LOCKS_URL is not set; want the URL of the lock service");
  const url = `${process.env.LOCKS_URL.replace(/\/$/, "")}/locks/${key.split("/").map(encodeURIComponent).join("/")}`;
  let lease, end, status, answer;
  const left = () => Math.min(...now().map((t, i) => end[i] - t)); // ms for which the lease may be trusted

  // ask returns true when it got a lease. The lease is counted from before the request.
  const ask = async (method, body, more, ms = 10_000) => {
    const sent = now();
    const signal = AbortSignal.timeout(Math.max(1, Math.ceil(ms)));
    try {
      const own = typeof headers === "function" ? await headers(method, url, body) : headers;
      const response = await fetch(url, { method, body, signal, headers: { "Content-Type": "application/json", ...own, ...more } });
      answer = JSON.parse((await response.text()) || "{}");
      status = response.status;
    } catch (e) {
      [status, answer] = [0, { detail: [e, e.cause?.message || e.cause?.code].filter(Boolean).join(": ") }]; // no answer, or half of one
    }
    if (status === 200) [lease, end] = [answer, sent.map((t) => t + answer.expiresIn * 1000)];
    return status === 200;
  };

  const holder = `process ${process.pid} on ${hostname()}`.replace(/[^ -~]/g, "?").slice(0, 128);
  let again = randomUUID(), tries = 0;
  const patience = performance.now() + wait * 1000;
  while (!(await ask("PUT", JSON.stringify({ ttl, holder }), { "Idempotency-Key": again })) || left() <= 0) {
    if (status === 409 && performance.now() >= patience) throw new LockBusy(`${answer.holder?.name ?? "somebody else"} holds the lock ${url}`);
    if (status === 422) again = randomUUID(); // the answer was lost, and its lease has ended since
    // Without an answer there may be a lease: the same Idempotency-Key gets the same lease.
    tries = status === 409 ? 0 : tries + 1;
    if (tries > 5 || [400, 401, 403, 404, 405, 413, 415].includes(status)) {
      const hint = status === 401 || status === 403 ? "; is the request signed, and may this caller use the key?" : "";
      throw new Error(`no lock: ${status} ${answer.detail ?? answer.message}${hint}`);
    }
    // A key in its cooldown says when it is free again, which may be in a month.
    await sleep(Math.min((answer.retryAfter ?? 1) * 1000, Math.max(1000, patience - performance.now())));
  }

  const done = new AbortController(), lost = new AbortController();
  const check = () => {
    if (left() <= 0) lost.abort(new LockLost(`the lease of ${url} has ended`));
    lost.signal.throwIfAborted();
  };
  const renewing = (async () => {
    for (let pause = (ttl * 1000) / 3; !done.signal.aborted && left() > 0; ) {
      await sleep(Math.min(pause, left()), null, { signal: done.signal }).catch(() => {}); // done ends it
      if (done.signal.aborted || left() <= 0) break;
      const renewed = await ask("PATCH", JSON.stringify({ ttl }), { "Lock-Token": lease.token }, left());
      if (status === 404) end = [0, 0]; // the lock is lost
      pause = renewed ? (ttl * 1000) / 3 : 500;
    }
    if (left() <= 0) lost.abort(new LockLost(`the lease of ${url} has ended`));
  })();
  let result;
  try {
    result = await work({ fence: lease.fence, signal: lost.signal, check });
    check();
  } finally {
    done.abort();
    await renewing;
    for (let i = 0; i < 3; i++) {
      await ask("DELETE", undefined, { "Lock-Token": lease.token });
      if (status === 204 || status === 404) break; // when no request arrives, the lease ends by itself
    }
  }
  if (status === 404) throw new LockLost(`the lease of ${url} has ended`);
  return result;
}
