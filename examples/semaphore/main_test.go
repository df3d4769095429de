package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// provider is a slow provider, which counts how many requests it serves at once.
type provider struct {
	wait func(ctx context.Context, id string) // for as long as it serves a request

	mu        sync.Mutex
	now, most int
}

func (p *provider) count(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now += by
	p.most = max(p.most, p.now)
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var t Text
	if err := json.NewDecoder(r.Body).Decode(&t); err != nil {
		panic(err)
	}
	p.count(1)
	defer p.count(-1)
	if p.wait(r.Context(), t.ID); r.Context().Err() != nil {
		w.WriteHeader(http.StatusConflict)
		return
	}
	fmt.Fprint(w, "translated ", t.ID)
}

// Of ten runs three call the provider at once, each with a seat of its own.
func TestNeverMoreAtOnce(t *testing.T) {
	var arrived atomic.Int32
	full := make(chan struct{})
	p := &provider{wait: func(context.Context, string) { // the first three wait for each other
		if arrived.Add(1) == atOnce {
			close(full)
		}
		<-full
	}}
	server := httptest.NewServer(newSeats(atOnce, p))
	defer server.Close()
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	g, err := guard.New(memstore.New(nil), guard.Options{Wait: 30 * time.Second})
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			text, err := limited(g, u).Handle(t.Context(), Text{fmt.Sprint(i)})
			assert.NoError(t, err)
			assert.Equal(t, fmt.Sprint("translated ", i), text)
		})
	}
	all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Equal(t, atOnce, p.most)
}

// seats serves the largest fence of each seat.
func TestSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var takes sync.Map // by id
		p := &provider{wait: func(ctx context.Context, id string) {
			d, _ := takes.Load(id)
			select {
			case <-time.After(d.(time.Duration)):
			case <-ctx.Done():
			}
		}}
		s := newSeats(2, p)
		type answer struct {
			code int
			body string
		}
		ask := func(seat, fence, id string, lasts time.Duration) func() answer {
			takes.Store(id, lasts)
			r := httptest.NewRequest(http.MethodPost, "/translations", strings.NewReader(`{"id":"`+id+`"}`))
			r.Header.Set(seatHeader, seat)
			r.Header.Set(fenceHeader, fence)
			w, done := httptest.NewRecorder(), make(chan struct{})
			go func() {
				defer close(done)
				s.ServeHTTP(w, r)
			}()
			synctest.Wait()
			return func() answer { <-done; return answer{w.Code, w.Body.String()} }
		}
		const refused = http.StatusConflict
		first, other := ask("0", "5", "a", time.Minute), ask("1", "6", "b", time.Minute)
		stale := ask("0", "4", "c", time.Second)
		require.Equal(t, refused, stale().code)
		second := ask("0", "5", "d", time.Minute)
		require.Equal(t, refused, first().code, "another call of the same run, which has given up on its first")
		third := ask("0", "7", "e", time.Second)
		require.Equal(t, refused, second().code)
		require.Equal(t, answer{http.StatusOK, "translated e"}, third())
		require.Equal(t, refused, ask("0", "6", "f", time.Second)().code, "also when the later one has ended")
		require.Equal(t, answer{http.StatusOK, "translated b"}, other())
		for _, wrong := range [][2]string{{"2", "9"}, {"-1", "9"}, {"", "9"}, {"0", ""}} {
			require.Equal(t, http.StatusBadRequest, ask(wrong[0], wrong[1], "g", time.Second)().code, "%q", wrong)
		}
		require.Equal(t, 2, p.most)
	})
}
