package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// A waiter that nobody wakes begins with a read every shortLook. The pause is longer with each place before it and with the time
// that it has waited, up to longLook. One that is woken reads only in case that a wake-up got lost, or that the holder died.
const (
	shortLook = 10 * time.Millisecond
	longLook  = 500 * time.Millisecond
	wokenLook = 650 * time.Millisecond

	// trustMargin is what is not trusted of the turn of a new holder that was woken.
	trustMargin = 250 * time.Millisecond

	// missed is how many payloads for nobody are kept.
	missed = 32

	// idleTime is how long the store listens after the last wait.
	idleTime = 5 * time.Second

	// listenAgain is how long after its beginning a Listen that has failed is called again.
	listenAgain = time.Second
)

// Await implements driver.Driver. It waits for a wake-up, if it is woken, or lets a pause pass. Then it reads once.
func (s *server) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	began, ask := time.Now(), driver.Answer{Outcome: driver.Ask, Hint: r.Hint}
	seen, known := readNote(r.Hint)
	look := min(longLook, time.Duration(max(1, seen.place))*shortLook+r.Elapsed/20)
	if s.Listen != nil {
		look = wokenLook
	}
	w := s.enter(key, r.Owner, seen.fence)
	defer s.leave(w)
	select {
	case news := <-w.news:
		ttl := driver.TurnTime - r.Elapsed - trustMargin
		if !known || news.fence <= seen.fence || ttl < driver.LeastTrust {
			return ask, nil
		}
		return driver.Answer{Outcome: driver.Granted, Fence: news.fence, Seat: news.seat, TTL: ttl, Hint: r.Hint}, nil
	case <-time.After(look*3/4 + rand.N(look/2)):
	case <-ctx.Done():
		return driver.Answer{}, ctx.Err()
	}
	got, c, err := s.send(ctx, key, driver.Request{Kind: r.Kind, Owner: r.Owner})
	if err != nil {
		return ask, ctx.Err()
	}
	a, err := got.answer(c)
	switch {
	case err != nil:
		return driver.Answer{}, err
	case a.Outcome == driver.NotYet:
		seen.place = got.place
		a = driver.Answer{Outcome: driver.NotYet, Hint: seen.text()}
		if !known {
			a.Hint = ""
		}
	case a.Outcome == driver.Granted && a.TTL-time.Since(began) >= driver.LeastTrust:
		a.TTL, a.Hint = min(a.TTL, driver.TurnTime), r.Hint
	default:
		a = ask
	}
	return a, nil
}

// wakeUps are the waits of one process. Whoever hands the key over sends a payload: where the waiters of the key are, the fence, the seat,
// and a proof that only who knows the owner can make, because everybody who may connect to the database can send notifications.
type wakeUps struct {
	lock    sync.Mutex
	waiters map[string][]*waiter // by route
	waiting int
	missed  []string // the last payloads for nobody: the owner may not wait yet

	listens sync.WaitGroup
	stop    context.CancelFunc // nil: it does not listen
	begun   time.Time
	idle    *time.Timer
	closed  bool
}

type waiter struct {
	key   string
	route string
	owner driver.Owner
	news  chan news
}

// news is a hand-over; fence 0 says that the waiter should ask.
type news struct {
	fence driver.Fence
	seat  int
}

func route(key string) string { return digest(key)[:16] }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// read is what a payload says to a waiter; false is nothing. It checks no proof of a hand-over with a fence up to after.
func (w *waiter) read(payload string, after driver.Fence) (n news, ok bool) {
	at, rest, handed := strings.Cut(payload, " ")
	if !handed {
		return n, at == "" || at == w.route
	}
	fence, rest, _ := strings.Cut(rest, " ")
	seat, proof, _ := strings.Cut(rest, " ")
	f, err := strconv.ParseInt(fence, 10, 64)
	n.fence = driver.Fence(f)
	if at != w.route || err != nil || n.fence <= after {
		return n, false
	}
	n.seat, _ = strconv.Atoi(seat)
	return n, proof == digest(w.key + "\n" + string(w.owner) + " " + fence + " " + seat)[:32]
}

// enter begins a wait, and listens. seen was the last fence when the owner got its place: what is kept of earlier hand-overs is for others.
func (s *server) enter(key string, owner driver.Owner, seen driver.Fence) *waiter {
	w := &waiter{key, route(key), owner, make(chan news, 1)}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.waiters == nil {
		s.waiters = map[string][]*waiter{}
	}
	s.waiters[w.route] = append(s.waiters[w.route], w)
	s.waiting++
	for _, payload := range s.missed {
		if n, ok := w.read(payload, seen); ok {
			w.news = make(chan news, 1)
			w.news <- n // the last one is the newest
		}
	}
	if s.Listen != nil && s.stop == nil && !s.closed && time.Since(s.begun) >= listenAgain {
		ctx, stop := context.WithCancel(context.Background())
		s.stop, s.begun = stop, time.Now()
		s.listens.Go(func() {
			defer stop()
			_ = s.Listen(ctx, s.channel, s.woken)
			s.lock.Lock()
			defer s.lock.Unlock()
			s.stop = nil
		})
	}
	return w
}

func (s *server) leave(w *waiter) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.waiters[w.route] = slices.DeleteFunc(s.waiters[w.route], func(o *waiter) bool { return o == w })
	if len(s.waiters[w.route]) == 0 {
		delete(s.waiters, w.route)
	}
	if s.waiting--; s.waiting > 0 || s.stop == nil {
		return
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	s.idle = time.AfterFunc(idleTime, func() {
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.waiting == 0 && s.stop != nil {
			s.stop()
		}
	})
}

// woken gives a payload to who waits for it.
func (s *server) woken(payload string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	at, rest, handed := strings.Cut(payload, " ")
	found := false
	for name, all := range s.waiters {
		if payload != "" && name != at {
			continue
		}
		for _, w := range all {
			n, ok := w.read(payload, 0)
			if !ok {
				continue
			}
			found = true
			select {
			case w.news <- n:
			default: // it has something to read already
			}
		}
	}
	if handed && rest != "" && !found {
		s.missed = append(s.missed[max(0, len(s.missed)-missed+1):], payload)
	}
}

// Close ends listening.
func (s *server) Close() error {
	s.lock.Lock()
	s.closed = true
	if s.stop != nil {
		s.stop()
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	s.lock.Unlock()
	s.listens.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stmt == nil {
		return nil
	}
	stmt := s.stmt
	s.stmt = nil
	return stmt.Close()
}
