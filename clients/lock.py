"""A lock over HTTP, held while a with block runs. LOCKS_URL is the service.

    with Lock("shared/reports/daily", wait=60) as lock:
        for page in pages:
            lock.check()  # raises LockLost when the lease is over
            write(page, fence=lock.fence)
"""
import json, math, os, re, secrets, socket, threading, time, urllib.error, urllib.parse, urllib.request


class LockBusy(Exception): """Somebody else held the lock for as long as this program waited."""
class LockCovered(Exception): """Another program of the same work waits for the lock, and does what this one is for, unless it fails."""
class LockInDoubt(Exception): """Nobody knows how the last work under the lock ended. Nobody gets the lock before an operator resolves it."""
class LockLost(Exception): """The lease ended before the block did."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):  # another server would get the token
        return None


# Without TLS a proxy would get the token.
proxies = {scheme: proxy for scheme, proxy in urllib.request.getproxies().items() if scheme == "https"}
open_url = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler(proxies)).open
LONGEST = 1 << 16  # bytes of an answer
DOUBT = 30  # seconds for which the service may work on a request without an answer
entering = threading.Lock()  # a Lock has none of its own: it can be pickled


def now():
    """Two clocks: the first stands still while the machine is suspended, the second may be set."""
    return time.monotonic(), time.time()


def service(plaintext):
    text = os.environ.get("LOCKS_URL", "")
    if not re.fullmatch(r"https?://[^\s@?#]+", text):
        raise ValueError("LOCKS_URL: want the URL of the lock service, such as https://HOST, without a user, ? and #")
    url = urllib.parse.urlsplit(text)
    if url.scheme == "http" and not plaintext and not re.fullmatch(r"(.+\.)?localhost|127(\.\d+){3}|::1", url.hostname or ""):
        raise ValueError("LOCKS_URL is without TLS and its host is not this machine; want https://, or plaintext=True if nobody else can read the traffic")
    return text.rstrip("/")


class Lock:
    def __init__(self, key, ttl=60, wait=0, headers={}, plaintext=False, coalesce="", event=""):
        """ttl and wait are in seconds. headers is a dict, for example with Authorization, or
        a function (method, url, body) -> headers. The function is called for each request,
        for example to sign the request, and has to bound its own time. plaintext allows
        http:// for a host that is not this machine. With coalesce, the name of the work, of
        many programs only one waits: the others raise LockCovered. event is the id of what
        the work is for, the same one when it is tried again. Both need a wait. A Lock is for one
        with at a time."""
        if (coalesce or event) and not (coalesce and event and wait > 0):
            raise ValueError("coalesce: want coalesce, event and a wait above 0, or neither coalesce nor event")
        self.asks = {"coalesce": coalesce, "event": event} if coalesce else {}
        self.url = f"{service(plaintext)}/locks/{urllib.parse.quote(key)}"
        self.ttl, self.wait, self.headers = ttl, wait, headers
        self._used = False

    def left(self):
        """The seconds for which the lease may be trusted."""
        return min(end - t for end, t in zip(self.end, now()))

    def check(self):
        if self.left() <= 0:
            raise LockLost(f"the lease of {self.url} has ended")

    def __enter__(self):
        with entering:
            if self._used:
                raise RuntimeError("a Lock is for one with at a time")
            self._used = True
        try:
            return self._acquire()
        except BaseException:
            self._used = False
            raise

    def _acquire(self):
        holder = f"process {os.getpid()} on {socket.gethostname()}".encode("ascii", "replace").decode()[:128]
        again, tries, doubt, patience = secrets.token_hex(), 0, 0, time.monotonic() + self.wait
        while True:
            sent = time.monotonic()
            # Who waits there has a place in the queue. A lease counts from sent, so its first renewal needs the rest. One that was handed over
            # lasts for 2 s, which no client with a shorter ttl believes.
            if self.wait > 0 and (self.asks or self.ttl > 3):
                self.asks["wait"] = math.ceil(min(5, self.ttl / 3, max(1, patience - sent)))
            if self._ask("PUT", {"ttl": self.ttl, "holder": holder, **self.asks}, {"Idempotency-Key": again}) and self.left() > 0:
                break
            if self._unsure():  # it may get the lock after a later one was refused
                doubt = time.monotonic() + DOUBT
            unsure = time.monotonic() < doubt
            if self._is(409, "covered") and not unsure:
                raise LockCovered(f"another program waits for the lock {self.url}, and does this work")
            if self._is(409, "in-doubt"):
                raise LockInDoubt(f"nobody knows how the last work under the lock {self.url} ended; an operator has to resolve it")
            busy = self._is(409, "busy")
            over = busy and time.monotonic() >= patience
            if over and not unsure:
                name = self.answer.get("holder")
                raise LockBusy(f"{text(name, 'name') or 'somebody else'} holds the lock {self.url}")
            if self._is(422, "ended"):  # the answer was lost, and its lease has ended since
                again, doubt = secrets.token_hex(), 0
            # Without an answer there may be a lease: the same Idempotency-Key gets the same lease.
            tries = 0 if busy else tries + 1
            why = f"{self.status} {text(self.answer, 'detail') or text(self.answer, 'message')}"
            if self.status in (400, 401, 403, 404, 405, 413, 415) or 300 <= self.status < 400:
                hint = "; is the request signed, and may this caller use the key?" if self.status in (401, 403) else ""
                raise OSError(f"no lock: {why}{hint}") from self.error
            if tries > 5 or over:
                raise OSError(f"no lock: {why}; if one of the requests got the lock, it is free after {self.ttl} s") from self.error
            pause = self.answer.get("retryAfter")
            if type(pause) not in (int, float) or not 1 <= pause < float("inf"):
                pause = 1
            # It counts from sent: who has waited there asks again at once, and so does not miss its turn, which is short.
            # A key in its cooldown says when it is free again, which may be in a month.
            time.sleep(max(0, min(sent + pause - time.monotonic(), max(1, patience - time.monotonic()))))
        self._done = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)
        self._renewing.start()
        return self

    def _renew(self):
        pause = self.left() / 3  # of a lease that was waited for less than ttl is left
        while not self._done.wait(pause) and self.left() > 0:
            left = self.left()
            try:  # a request that hangs leaves time for another one, and does not hold up a release for long
                renewed = self._ask("PATCH", {"ttl": self.ttl}, {"Lock-Token": self.token}, min(10, left, max(1, left / 3)))
            except BaseException:  # headers may even call sys.exit
                renewed = False
            if self._is(404, "no-lease"):  # the lock is lost
                self.end = 0, 0
            pause = self.left() / 3 if renewed else 0.5

    def __exit__(self, error, *_):
        try:
            self._release(error)
        finally:
            self._used = False

    def _release(self, error):
        held, unsure = self.left() > 0, False  # now: the lease may end while a renewal is waited for
        self._done.set()
        self._renewing.join()
        for pause in (1, 1, 0):  # when all requests fail, the lease ends by itself
            self._ask("DELETE", None, {"Lock-Token": self.token})
            gone = self._is(404, "no-lease")
            if self.status == 204 or gone:
                break
            unsure = unsure or self._unsure()
            time.sleep(pause)
        if error is None and (not held or gone and not unsure):  # an earlier one may have released it
            raise LockLost(f"the lease of {self.url} has ended")

    def _is(self, status, code):
        return self.status == status and self.answer.get("code") == code

    def _unsure(self):
        """Nobody knows whether the service did what it was asked for, or will do it later."""
        return not (400 <= self.status < 500 or self._is(503, "unavailable"))

    def _ask(self, method, body, headers, timeout=10):
        """Asks the service. True when there is a lease, which is counted from before the request.
        The status is 0 when nobody knows what was done: without an answer, with half of
        one, and with one of the status 200 that is no lease."""
        sent, data = now(), json.dumps(body).encode() if body else None
        self.answer, self.status, self.error = {}, 0, None
        try:
            more = self.headers(method, self.url, data) if callable(self.headers) else self.headers
            headers = {"Content-Type": "application/json", **(more or {}), **headers}
            try:
                reply = open_url(urllib.request.Request(self.url, data, headers, method=method), timeout=timeout)
            except urllib.error.HTTPError as e:
                reply = e
            with reply:
                said = b""
                while part := reply.read1(LONGEST):
                    said += part
                    if len(said) > LONGEST or now()[0] - sent[0] > timeout:
                        raise ValueError("the answer is too long")
            try:
                answer = json.loads(said)
            except (ValueError, RecursionError):  # such as a proxy's page
                answer = None
            self.answer = answer if isinstance(answer, dict) else {}
            if reply.code == 200 and body:
                lease = self._lease(reply.headers.get_content_type(), **self.answer)
                if method == "PATCH" and lease[1] != self.fence:
                    raise ValueError("the answer is of another lease")
                self.token, self.fence, self.end = *lease[:2], tuple(t + lease[2] for t in sent)
            self.status = reply.code
        except Exception as e:
            self.answer, self.error = {"detail": str(e) or type(e).__name__}, e
        return self.status == 200

    def _lease(self, kind, token=None, fence=None, expiresIn=None, **_):
        """Checks an answer that should be a lease: what is none of the service's is no lease."""
        if kind != "application/json" or type(token) is not str or not re.fullmatch("[!-~]{1,1024}", token):
            raise ValueError("the answer is no lease: it is not JSON, or has no token")
        if type(fence) is not int or not 0 < fence < 1 << 63:
            raise ValueError("the answer is no lease: its fence is no whole number above 0")
        if type(expiresIn) not in (int, float) or not 0 < expiresIn <= self.ttl:
            raise ValueError("the answer is no lease: its expiresIn is not above 0 and at most ttl")
        return token, fence, expiresIn


def text(answer, name):
    """A text of an answer, for people: short, and without what steers a terminal."""
    value = answer.get(name) if isinstance(answer, dict) else None
    return re.sub("[^ -~\u00a1-\ud7ff]", "?", value[:200]) if isinstance(value, str) else ""
