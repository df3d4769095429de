# What the trials guard: it says where it is until the gate opens.
import os, sys, time
from lock import Lock, LockBusy, LockLost

inside, gate = (os.path.join(os.environ["JOB_DIR"], name) for name in ("inside", "gate"))
try:
    with Lock(sys.argv[1], ttl=int(os.environ["LOCKS_TTL"]), wait=int(os.environ["LOCKS_WAIT"]),
              headers=lambda method, url, body: {"Authorization": "Bearer of a test"}) as lock:
        print("begin", lock.fence, flush=True)
        if os.path.exists(inside):
            print("overlap", flush=True)
        os.makedirs(inside, exist_ok=True)
        while not os.path.exists(gate):
            before = time.time()
            lock.check()
            print("tick", before, flush=True)
            time.sleep(0.1)
        os.rmdir(inside)
        print("end", flush=True)
        sys.exit(int(os.environ["JOB_STATUS"]))
except LockBusy:
    sys.exit(75)
except LockLost:
    sys.exit(70)
except KeyboardInterrupt:
    sys.exit(130)
