// Package ui serves a page that shows locks, on this machine and to who has its address.
package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/serve"
	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/lockstore"
)

//go:embed index.html ui.js
var files embed.FS

// mostKeys is how many keys the page shows.
const mostKeys = 5000

// maxBody is for an action: JSON may write each byte of a key with six.
const maxBody = 16 << 10

type Page struct {
	Store string                                 `json:"store"` // for people
	Which string                                 `json:"which"` // keys, for people
	Every time.Duration                          `json:"-"`
	Read  func(context.Context) (Reading, error) `json:"-"`

	// For a page that may change something; otherwise nil. Act returns what the command prints, and its error. Texts are what the commands
	// say of revoke, atOnce, resolve, effect and noEffect.
	Act   func(context.Context, Action) (string, error) `json:"-"`
	Texts map[string]string                             `json:"texts,omitempty"`
}

// Reading is what one look at the store has found, and what it took.
type Reading struct {
	Keys      []lockstore.Status
	Requests  int
	ReadUnits float64 // of DynamoDB
	Damaged   string  // what is damaged, for people
}

// Action is what a person wants to do to a key. The fence is a text in JSON, because JavaScript would round it.
type Action struct {
	Key    string          `json:"key"`
	Do     string          `json:"do"` // revoke, or how work in doubt has ended
	Fence  lockstore.Fence `json:"fence,string"`
	AtOnce bool            `json:"atOnce,string"`
}

type server struct {
	Page
	token string
	old   atomic.Bool // last is, because somebody has changed a key

	reading      chan struct{} // has room for one: pages that are open at the same time read once
	last         state
	began, ended time.Time // the reading of last
}

func newServer(p Page, token string) *server {
	return &server{Page: p, token: token, reading: make(chan struct{}, 1)}
}

// Serve prints the address of the page, and serves it until the context ends.
func (p Page) Serve(ctx context.Context, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	p.Store, p.Which = exit.Visible(p.Store), exit.Visible(p.Which)
	s := newServer(p, rand.Text())
	if _, err := fmt.Fprintf(out, "http://%s/%s/\n", listener.Addr(), s.token); err != nil {
		return err
	}
	return serve.Until(ctx, listener, s.handler())
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.Handle("GET /page.js", http.FileServerFS(page.Files))
	mux.Handle("GET /page.css", http.FileServerFS(page.Files))
	mux.HandleFunc("GET /state", s.state)
	if s.Act != nil {
		mux.HandleFunc("POST /act", s.act)
	}
	return s.only(http.StripPrefix("/"+s.token, mux))
}

// policy lets the page use what this server has, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// only answers pages of this server that know its token. The path has the token, and no cookie has it: a browser sends the cookies of this
// server to all programs that serve this machine, whatever their port.
func (s *server) only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		own, origin := "http://"+r.Host, r.Header.Get("Origin")
		given, _, whole := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case origin != own && (origin != "" || r.Method != http.MethodGet):
			refuse(w, http.StatusForbidden, "the header Origin is %.60q; want %q", origin, own)
		case !whole || subtle.ConstantTimeCompare([]byte(given), []byte(s.token)) != 1:
			refuse(w, http.StatusForbidden, "this address needs the token with which lockctl ui has printed it: open the whole address. If lockctl was started again, it has printed a new one")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// state is a snapshot, what it cost, and what the page is.
type state struct {
	page.Snapshot
	Page
	EveryMs   int64   `json:"everyMs"`
	AgeMs     int64   `json:"ageMs"` // of the snapshot, when it is sent
	TookMs    int64   `json:"tookMs"`
	Requests  float64 `json:"requests"`  // a minute, if the page is looked at
	ReadUnits float64 `json:"readUnits"` // of DynamoDB, a minute
	Damaged   string  `json:"damaged,omitempty"`
}

func (s *server) state(w http.ResponseWriter, r *http.Request) {
	last, err := s.read(r.Context())
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "%v", err)
		return
	}
	answer(w, http.StatusOK, last)
}

// read reads the store for whoever asks first. The others get what was read while they waited, or less than Every ago.
func (s *server) read(ctx context.Context) (state, error) {
	asked := time.Now()
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done(): // the tab was closed meanwhile
		return state{}, ctx.Err()
	}
	// Pages wait for Every, too, and no clock of theirs is exact.
	if began := time.Now(); s.old.Swap(false) || !asked.Before(s.ended) && began.Sub(s.began) > s.Every*9/10 {
		got, err := s.Read(ctx)
		if err != nil {
			s.old.Store(true) // what was read before this is still old
			return state{}, err
		}
		now := time.Now()
		perMinute := float64(time.Minute) / float64(max(s.Every, now.Sub(began)))
		s.began, s.ended, s.last = began, now, state{
			Snapshot: page.Of(got.Keys, now, mostKeys, exit.Visible), Page: s.Page,
			EveryMs: s.Every.Milliseconds(), TookMs: now.Sub(began).Milliseconds(),
			Requests: float64(got.Requests) * perMinute, ReadUnits: got.ReadUnits * perMinute, Damaged: exit.Visible(got.Damaged),
		}
	}
	last := s.last
	last.AgeMs = time.Since(s.ended).Milliseconds()
	return last, nil
}

// act runs a command. The answer has what it says, also if that is an error.
func (s *server) act(w http.ResponseWriter, r *http.Request) {
	var a Action
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&a); err != nil {
		refuse(w, http.StatusBadRequest, "the request cannot be read: %v", err)
		return
	}
	text, err := s.Act(r.Context(), a)
	s.old.Store(true) // after an error, too: another may have changed the key, or the outcome is unknown
	if err != nil {
		refuse(w, http.StatusConflict, "%s%v", text, err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"text": exit.Visible(strings.TrimSpace(text))})
}

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	answer(w, status, map[string]string{"error": exit.Visible(fmt.Sprintf(format, args...))})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the page has gone
}
