"""A lock over HTTP, held while a with block runs. LOCKS_URL is the service.

    with Lock("shared/reports/daily", wait=60) as lock:
        for page in pages:
            lock.check()  # raises LockLost when the lease is over
            write(page, fence=lock.fence)
"""
import http.client, json, os, secrets, socket, threading, time, urllib.error, urllib.parse, urllib.request


class LockBusy(Exception): """Somebody else held the lock for as long as this program waited."""
class LockLost(Exception): """The lease ended before the block did."""


def now():
    """Two clocks: the first stands still while the machine is suspended, the second may be set."""
    return time.monotonic(), time.time()


class Lock:
    def __init__(self, key, ttl=60, wait=0, headers={}):
        """ttl and wait are in seconds. headers is a dict, for example with Authorization, or
        a function (method, url, body) -> headers. The function is called for each request,
        for example to sign the request, and has to bound its own time."""
        if not os.environ.get("LOCKS_URL"):
            raise ValueError("LOCKS_URL is not set; want the URL of the lock service")
        self.url = f"{os.environ['LOCKS_URL'].rstrip('/')}/locks/{urllib.parse.quote(key)}"
        self.ttl, self.wait, self.headers = ttl, wait, headers

    def left(self):
        """The seconds for which the lease may be trusted."""
        return min(end - t for end, t in zip(self.end, now()))

    def check(self):
        if self.left() <= 0:
            raise LockLost(f"the lease of {self.url} has ended")

    def __enter__(self):
        holder = f"process {os.getpid()} on {socket.gethostname()}".encode("ascii", "replace").decode()[:128]
        again, tries, patience = secrets.token_hex(), 0, time.monotonic() + self.wait
        while not self._ask("PUT", {"ttl": self.ttl, "holder": holder}, {"Idempotency-Key": again}) or self.left() <= 0:
            if self.status == 409 and time.monotonic() >= patience:
                raise LockBusy(self.answer.get("holder"))
            if self.status == 422:  # the answer was lost, and its lease has ended since
                again = secrets.token_hex()
            # Without an answer there may be a lease: the same Idempotency-Key gets the same lease.
            tries = 0 if self.status == 409 else tries + 1
            if tries > 5 or self.status in (400, 401, 403, 404, 405, 413, 415):
                hint = "; is the request signed, and may this caller use the key?" if self.status in (401, 403) else ""
                raise OSError(f"no lock: {self.status} {self.answer.get('detail') or self.answer.get('message')}{hint}")
            # A key in its cooldown says when it is free again, which may be in a month.
            time.sleep(min(self.answer.get("retryAfter", 1), max(1, patience - time.monotonic())))
        self._done = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)
        self._renewing.start()
        return self

    def _renew(self):
        pause = self.ttl / 3
        while not self._done.wait(pause) and self.left() > 0:
            renewed = self._ask("PATCH", {"ttl": self.ttl}, {"Lock-Token": self.token}, self.left())
            if self.status == 404:  # the lock is lost
                self.end = 0, 0
            pause = self.ttl / 3 if renewed else 0.5

    def __exit__(self, error, *_):
        self._done.set()
        self._renewing.join()
        held = self.left() > 0
        for _ in range(3):  # when all requests fail, the lease ends by itself
            self._ask("DELETE", None, {"Lock-Token": self.token})
            if self.status in (204, 404):
                break
        if error is None and (not held or self.status == 404):
            raise LockLost(f"the lease of {self.url} has ended")

    def _ask(self, method, body, headers, timeout=10):
        """Asks the service. True when there is a lease, which is counted from before the request."""
        sent, data = now(), json.dumps(body).encode() if body else None
        try:
            more = self.headers(method, self.url, data) if callable(self.headers) else self.headers
            headers = {"Content-Type": "application/json", **more, **headers}
            try:
                answer = urllib.request.urlopen(urllib.request.Request(self.url, data, headers, method=method), timeout=timeout)
            except urllib.error.HTTPError as e:
                answer = e
            with answer:
                self.answer, self.status = json.loads(answer.read() or "{}"), answer.code
        except (OSError, ValueError, http.client.HTTPException) as e:  # no answer, or half of one
            self.answer, self.status = {"detail": str(e)}, 0
        if self.status == 200:
            self.end = tuple(t + self.answer["expiresIn"] for t in sent)
            self.token, self.fence = self.answer["token"], self.answer["fence"]
        return self.status == 200
