# What the tests guard: it writes where it is until the gate opens.
import os, pickle, sys, time
from lock import Lock, LockBusy, LockCovered, LockInDoubt, LockLost

inside, gate = (os.path.join(os.environ["JOB_DIR"], name) for name in ("inside", "gate"))


def say(name, what):
    with open(os.path.join(os.environ["JOB_OUT"], name), "w") as file:
        print(what, file=file)


class Hiccup(Exception):
    """As of a credential provider: none of the exceptions that requests raise."""


throws = [Hiccup(), SystemExit(3)][:int(os.environ.get("JOB_THROWS", 0))]


def headers(method, url, body):
    if os.environ.get("JOB_BARE"):
        return None
    if method == "PATCH" and os.environ.get("JOB_FROZEN") == "renewal":
        say("renewing", 1)
        lock._done.wait()  # the block has ended
        freeze("renewal")
    if method == "PATCH" and throws:
        raise throws.pop()
    own = {"Authorization": "Bearer of a test"}
    return own if method == "PUT" else {**own, "content-type": "application/json"}


def freeze(when):
    """An hour, in which the monotonic clock stands still."""
    if os.environ.get("JOB_FROZEN") == when:
        wall = time.time
        time.time = lambda: wall() + 3600


if os.environ.get("JOB_CLOCK"):  # only a sleep takes time, and no real time
    clock = [0]
    time.time = time.monotonic = lambda: clock[0]
    time.sleep = lambda pause: clock.append(clock.pop() + pause)

settings = {name: int(os.environ["LOCKS_" + name.upper()]) for name in ("ttl", "wait") if os.environ["LOCKS_" + name.upper()]}
settings.update({name: os.environ["LOCKS_" + name.upper()] for name in ("coalesce", "event") if "LOCKS_" + name.upper() in os.environ})
try:
    lock = Lock(sys.argv[1], headers=headers, **settings)
    if os.environ.get("JOB_TWICE"):
        lock = pickle.loads(pickle.dumps(lock))  # as for another process
        try:
            with lock:
                sys.exit("the lock was busy")
        except LockBusy:
            pass
        with lock:
            try:
                with lock:
                    sys.exit("two are inside")
            except RuntimeError as e:
                print(e, flush=True)
    with lock:
        if os.path.exists(inside):
            print("overlap", flush=True)
        os.makedirs(inside, exist_ok=True)
        say("fence", lock.fence)
        freeze("begin")
        lock.check()
        while not os.path.exists(gate):
            before = time.time()
            lock.check()
            say("tick", before)
            time.sleep(0.1)
        os.rmdir(inside)
        if os.environ["JOB_STATUS"] != "0":
            sys.exit(int(os.environ["JOB_STATUS"]))
        freeze("end")
except LockBusy:
    sys.exit(75)
except LockCovered:
    sys.exit(76)
except LockLost:
    sys.exit(79)
except LockInDoubt:
    sys.exit(80)
except KeyboardInterrupt:
    sys.exit(130)
