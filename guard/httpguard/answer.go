package httpguard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
	"github.com/lambdalock/lambdalock/internal/tell"
)

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func problem(p httpanswer.Problem) answer {
	header := http.Header{"Content-Type": {httpanswer.ContentType}}
	if p.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	return answer{p.Status, header, httpanswer.Body(p.Status, p.Detail, nil)}
}

// send writes the answer. Headers that a middleware outside has set stay, if the answer has no such header. Cookies
// and Vary stay in any case: handlers add to them, as http.SetCookie does.
func (a answer) send(w http.ResponseWriter, mistake error) {
	if mistake != nil {
		panic(mistake) // the guards and the options were checked before
	}
	for name, values := range a.header {
		name = http.CanonicalHeaderKey(name)
		if name == "Set-Cookie" || name == "Vary" {
			values = slices.Concat(w.Header()[name], values)
		}
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // an error says that the client has left
}

// stored is the form of an answer in the store, and in the command of an operator who resolves a key: that of a
// response of API Gateway, as package httpapi stores it.
type stored struct {
	StatusCode        int                 `json:"statusCode"`
	Headers           map[string]string   `json:"headers,omitempty"`
	MultiValueHeaders map[string][]string `json:"multiValueHeaders"`
	Body              string              `json:"body"`
	IsBase64Encoded   bool                `json:"isBase64Encoded,omitempty"`
	Cookies           []string            `json:"cookies,omitempty"` // are not sent again
}

// MarshalJSON makes the stored form.
func (a answer) MarshalJSON() ([]byte, error) {
	s := stored{StatusCode: a.status, MultiValueHeaders: a.header, Body: string(a.body)}
	if !utf8.Valid(a.body) {
		s.Body, s.IsBase64Encoded = base64.StdEncoding.EncodeToString(a.body), true
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	return b.Bytes(), err
}

// UnmarshalJSON reads the stored form. What cannot be sent is an error.
func (a *answer) UnmarshalJSON(text []byte) error {
	var s stored
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return err
	}
	*a = answer{s.StatusCode, s.MultiValueHeaders, []byte(s.Body)}
	if s.IsBase64Encoded {
		var err error
		if a.body, err = base64.StdEncoding.DecodeString(s.Body); err != nil {
			return err
		}
	}
	if a.status < 200 || a.status > 999 {
		return fmt.Errorf("status %d", a.status)
	}
	if a.header == nil && len(s.Headers) > 0 {
		a.header = http.Header{}
	}
	for name, value := range s.Headers {
		a.header.Set(name, value)
	}
	return nil
}

func (a answer) withoutCookies() answer {
	a.header = maps.Clone(a.header)
	maps.DeleteFunc(a.header, func(name string, _ []string) bool { return strings.EqualFold(name, "Set-Cookie") })
	return a
}

func replayed(in *request, a answer) answer {
	if a.header == nil {
		a.header = http.Header{}
	}
	if p := httpanswer.Replay(in.r.Header, a.header); p != nil {
		return problem(*p)
	}
	return a
}

// record calls the handler and returns its answer.
func record(ctx context.Context, lock guard.Lock, maxAnswer int, next http.Handler, r *http.Request) answer {
	if lock.Fence != 0 {
		ctx = context.WithValue(ctx, lockKey{}, lock)
	}
	w := &recorder{header: http.Header{}, most: maxAnswer}
	next.ServeHTTP(w, r.WithContext(ctx))
	a, err := w.end()
	if err != nil {
		tell.Log(ctx, nil, slog.LevelError, "answer not sent", slog.String("key", lock.Key), slog.String("error", err.Error()))
		return problem(httpanswer.Problem{Status: http.StatusInternalServerError, Detail: "The answer cannot be sent. The request may have been carried out, fully or in part."})
	}
	return a
}

// recorder is the http.ResponseWriter of a handler under a lock.
type recorder struct {
	header http.Header
	most   int
	answer answer // its status is 0 until the handler has given one
	err    error  // why the answer cannot be sent
}

// Header is that of http.ResponseWriter. What middlewares outside have set is not in it.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader is that of http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	switch {
	case w.answer.status != 0:
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httpguard: invalid WriteHeader code %d", status)) // as net/http does
	case status < 200:
		w.fail(fmt.Errorf("httpguard: status %d cannot be sent before the answer, because the answer waits for the end of the lock; leave it out, or send it in a handler around the middleware", status))
	default:
		w.answer.status, w.answer.header = status, w.header.Clone()
	}
}

// Write is that of http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	if w.answer.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if len(b) > w.most-len(w.answer.body) {
		w.fail(fmt.Errorf("httpguard: the answer has more than %d bytes; raise MaxAnswerBytes, or answer with a link and send the data in a handler without the middleware", w.most))
	}
	if w.err != nil {
		return 0, w.err
	}
	w.answer.body = append(w.answer.body, b...)
	return len(b), nil
}

func (w *recorder) fail(err error) {
	if w.err == nil {
		w.err, w.answer.body = err, nil
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

// end is the answer when the handler has returned.
func (w *recorder) end() (answer, error) {
	if w.answer.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	for name := range w.header {
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) {
			w.fail(fmt.Errorf("httpguard: the handler sets trailers (header %q), and the middleware sends none; set a header instead, because the whole answer is known before it is sent", name))
		}
	}
	return w.answer, w.err
}
