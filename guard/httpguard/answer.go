package httpguard

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

// handled is the answer of a request, in place of a guard's error, too.
func handled(a httpanswer.Answer, err error) httpanswer.Answer {
	if p := httpanswer.OfLock(err); p != nil {
		return *p
	}
	if err != nil {
		panic(err) // a mistake in the program, and the guards and the options were checked before
	}
	return a
}

// send writes the answer. Headers that a middleware outside has set stay, if the answer has no such header. Cookies
// and Vary stay in any case: handlers add to them, as http.SetCookie does.
func send(w http.ResponseWriter, a httpanswer.Answer) {
	for name, values := range a.Header {
		name = http.CanonicalHeaderKey(name)
		if name == "Set-Cookie" || name == "Vary" {
			values = slices.Concat(w.Header()[name], values)
		}
		w.Header()[name] = values
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // an error says that the client has left
	maps.Copy(w.Header(), a.Trailer)
}

// record calls the handler and returns its answer. An error says that the client has left before.
func record(ctx context.Context, lock guard.Lock, maxAnswer int, next http.Handler, r *http.Request, c *client) (httpanswer.Answer, error) {
	ctx, cancel, err := c.begin(ctx, lock.Key)
	if err != nil {
		return httpanswer.Answer{}, err
	}
	defer cancel(nil)
	if lock.Fence != 0 {
		ctx = context.WithValue(ctx, lockKey{}, lock)
	}
	w := &recorder{header: http.Header{}, most: maxAnswer, head: r.Method == http.MethodHead}
	in, end := own(ctx, r)
	defer end()
	w.record(next, in)
	if w.err != nil {
		tell.Log(ctx, nil, slog.LevelError, "answer not sent", slog.String("key", lock.Key), slog.String("error", w.err.Error()))
		return *httpanswer.Problem(http.StatusInternalServerError, "The answer cannot be sent. The request may have been carried out, fully or in part.", nil), nil
	}
	return w.answer, nil
}

// recorder is the http.ResponseWriter of a handler under a lock.
type recorder struct {
	header http.Header
	most   int
	head   bool              // the request is a HEAD
	answer httpanswer.Answer // its status is 0 until the handler has given one
	err    error             // why the answer cannot be sent
}

// What middlewares outside have set is not in Header.
func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	switch {
	case w.answer.Status != 0:
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httpguard: invalid WriteHeader code %d", status)) // as net/http does
	case status == http.StatusSwitchingProtocols:
		w.fail(fmt.Errorf("httpguard: status %d cannot be sent, because the connection cannot be hijacked; leave this handler out of the middleware", status))
	case status < 200: // the answer comes later
	default:
		w.answer.Status, w.answer.Header = status, w.header.Clone()
	}
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.answer.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if len(b) > 0 && !w.mayHaveBody() {
		return 0, http.ErrBodyNotAllowed
	}
	if len(b) > w.most-len(w.answer.Body) {
		w.fail(fmt.Errorf("httpguard: the answer has more than %d bytes; raise MaxAnswerBytes, or answer with a link and send the data in a handler without the middleware", w.most))
	}
	if w.err != nil {
		return 0, w.err
	}
	w.answer.Body = append(w.answer.Body, b...)
	return len(b), nil
}

func (w *recorder) fail(err error) {
	if w.err == nil {
		w.err, w.answer.Body = err, nil
	}
}

// FlushError is for http.ResponseController.
func (w *recorder) FlushError() error { return noStream("flushed") }

// Hijack is that of http.Hijacker.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, noStream("hijacked")
}

func noStream(what string) error {
	return fmt.Errorf("httpguard: the answer waits until the handler has returned and its lock is released, so it cannot be %s; leave this handler out of the middleware, and let it call guard.Guard.Do itself: %w", what, http.ErrNotSupported)
}

func (w *recorder) mayHaveBody() bool {
	return w.answer.Status != http.StatusNoContent && w.answer.Status != http.StatusNotModified
}

// record calls the handler, and completes the answer or says why it cannot be sent.
func (w *recorder) record(next http.Handler, r *http.Request) {
	defer func() {
		if w.err == nil {
			return
		}
		// A handler that passes an answer on, as httputil.ReverseProxy does, aborts after an error of Write. The
		// reason for this is ours.
		if v := recover(); v != nil && v != http.ErrAbortHandler {
			panic(v)
		}
	}()
	next.ServeHTTP(w, r)
	if w.answer.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	length, err := strconv.Atoi(w.answer.Header.Get("Content-Length"))
	if err == nil && length != len(w.answer.Body) && w.mayHaveBody() && !w.head {
		w.fail(fmt.Errorf("httpguard: the handler has announced %d bytes by Content-Length and written %d; leave the header out", length, len(w.answer.Body)))
	}
	w.endTrailer()
}

func (w *recorder) endTrailer() {
	w.answer.Trailer = http.Header{}
	for _, names := range w.answer.Header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values, ok := w.header[name]; ok {
				w.answer.Trailer[name] = values
			}
		}
	}
	for name, values := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			w.answer.Trailer[name] = values
		}
	}
}
