// What the tests guard: it writes where it is until the gate opens.
import { existsSync, mkdirSync, rmdirSync, writeFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import timers, { setTimeout as sleep } from "node:timers/promises";
import { LockBusy, LockCovered, LockInDoubt, LockLost, withLock } from "../../../clients/lock.mjs";

const set = ["ttl", "wait"].map((name) => [name, process.env[`LOCKS_${name.toUpperCase()}`]]).filter(([, value]) => value);
const settings = Object.fromEntries(set.map(([name, value]) => [name, Number(value)]));
for (const name of ["coalesce", "event"]) settings[name] = process.env[`LOCKS_${name.toUpperCase()}`];
const status = Number(process.env.JOB_STATUS);
const [inside, gate] = ["inside", "gate"].map((name) => `${process.env.JOB_DIR}/${name}`);
const say = (name, what) => writeFileSync(`${process.env.JOB_OUT}/${name}`, `${what}\n`);
class Failed extends Error {}
let throws = Number(process.env.JOB_THROWS ?? 0);
let end;
const ended = new Promise((resolve) => { end = resolve; });
const headers = async (method) => {
  if (process.env.JOB_BARE) return null;
  if (method === "PATCH" && process.env.JOB_FROZEN === "renewal") {
    say("renewing", 1);
    await ended;
    await sleep(0); // withLock looks at its lease first
    freeze("renewal");
  }
  if (method === "PATCH" && throws-- > 0) throw null; // not even an Error
  const own = { Authorization: "Bearer of a test" };
  return method === "PUT" ? new Headers(own) : { ...own, "content-type": "application/json" };
};

const freeze = (when) => { // an hour, in which the monotonic clock stands still
  const wall = Date.now;
  if (process.env.JOB_FROZEN === when) Date.now = () => wall() + 3_600_000;
};

if (process.env.JOB_CLOCK) { // only a sleep takes time, and no real time
  let ms = 0;
  Date.now = performance.now = () => ms;
  timers.setTimeout = async (pause) => { ms += pause; };
  syncBuiltinESMExports();
}

try {
  await withLock(process.argv[2], { ...settings, headers }, async (lock) => {
    if (existsSync(inside)) console.log("overlap");
    mkdirSync(inside, { recursive: true });
    say("fence", lock.fence);
    freeze("begin");
    lock.check();
    if (process.env.JOB_WAITS) {
      await new Promise((heard) => lock.signal.addEventListener("abort", heard));
      console.log(`aborted at ${Math.round(performance.now())} ms`);
    }
    while (!existsSync(gate)) {
      const before = Date.now() / 1000;
      lock.check();
      say("tick", before);
      await sleep(100, null, { signal: lock.signal }).catch(() => {}); // check says why
    }
    rmdirSync(inside);
    if (status !== 0) throw new Failed();
    freeze("end");
    end();
  });
} catch (e) {
  if (e instanceof LockBusy) process.exit(75);
  if (e instanceof LockCovered) process.exit(76);
  if (e instanceof LockInDoubt) process.exit(80);
  if (e instanceof LockLost) process.exit(79);
  if (e instanceof Failed) process.exit(status);
  throw e;
}
