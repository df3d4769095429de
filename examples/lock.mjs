// A lock over HTTP, held while a function runs. LOCKS_URL is the service.
//
//   await withLock("shared/reports/daily", { wait: 60 }, async (lock) => {
//     for (const page of pages) {
//       lock.check(); // throws LockLost when the lease is over
//       await write(page, { fence: lock.fence, signal: lock.signal });
//     }
//   });
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

export class LockBusy extends Error {} // another had the lock for as long as this one waited
export class LockLost extends Error {} // the lease ended before the function did

// Two clocks: one stands still while the machine is suspended, the other may be set.
const now = () => [performance.now(), Date.now()];

// ttl and wait are in seconds; headers are such as Authorization.
export async function withLock(key, { ttl = 60, wait = 0, headers = {} }, work) {
  if (/(^|\/)\.{0,2}(\/|$)/.test(key)) throw new RangeError(`key: ${key}`); // a URL would drop such segments
  const url = `${process.env.LOCKS_URL}/locks/${key.split("/").map(encodeURIComponent).join("/")}`;
  let lease, end, status, answer;
  const left = () => Math.min(...now().map((t, i) => end[i] - t)); // ms for which the lease may be trusted

  // ask is true with a lease, which is counted from before the request.
  const ask = async (method, body, more, ms = 10_000) => {
    const sent = now();
    const signal = AbortSignal.timeout(Math.max(1, Math.ceil(ms)));
    try {
      const response = await fetch(url, { method, body, signal, headers: { "Content-Type": "application/json", ...headers, ...more } });
      answer = JSON.parse((await response.text()) || "{}");
      status = response.status;
    } catch (e) {
      [status, answer] = [0, { detail: String(e) }]; // no answer, or half of one
    }
    if (status === 200) [lease, end] = [answer, sent.map((t) => t + answer.expiresIn * 1000)];
    return status === 200;
  };

  let again = randomUUID(), tries = 0;
  const patience = performance.now() + wait * 1000;
  while (!(await ask("PUT", JSON.stringify({ ttl }), { "Idempotency-Key": again })) || left() <= 0) {
    if (status === 409 && performance.now() >= patience) throw new LockBusy(JSON.stringify(answer.holder));
    if (status === 422) again = randomUUID(); // the lease of a lost answer has ended
    // Without an answer it may have been granted: the same Idempotency-Key gets the same lease.
    tries = status === 409 ? 0 : tries + 1;
    if (tries > 5 || [400, 401, 403, 404, 405, 413, 415].includes(status)) throw new Error(`no lock: ${status} ${answer.detail}`);
    await sleep((answer.retryAfter ?? 1) * 1000);
  }

  const done = new AbortController(), lost = new AbortController();
  const check = () => {
    if (left() <= 0) lost.abort(new LockLost(url));
    lost.signal.throwIfAborted();
  };
  const renewing = (async () => {
    for (let pause = (ttl * 1000) / 3; !done.signal.aborted && left() > 0; ) {
      await sleep(Math.min(pause, left()), null, { signal: done.signal }).catch(() => {}); // done ends it
      if (done.signal.aborted || left() <= 0) break;
      const renewed = await ask("PATCH", JSON.stringify({ ttl }), { "Lock-Token": lease.token }, left());
      if (status === 404) end = [0, 0]; // it is lost
      pause = renewed ? (ttl * 1000) / 3 : 500;
    }
    if (left() <= 0) lost.abort(new LockLost(url));
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
      if (status === 204 || status === 404) break; // when none arrives the lease ends by its ttl
    }
  }
  if (status === 404) throw new LockLost(url);
  return result;
}
