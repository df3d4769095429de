package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// The test binary is also the function.
func TestMain(m *testing.M) {
	if os.Getenv("PROVIDER_URL") == "" {
		os.Exit(m.Run())
	}
	main()
}

const (
	environments = atOnce + 3
	ttl          = lockstore.TurnTime // a run that was handed the key has it for a turn at least
)

// provider is a slow provider, which counts how many requests it serves at once.
type provider struct {
	mu        sync.Mutex
	now, most int
	calls     map[string]*call
	end       chan struct{} // closed when the test ends
}

func newProvider() *provider { return &provider{calls: map[string]*call{}, end: make(chan struct{})} }

// call is one call of the function. The provider serves it for a time, or, if that is 0, until
// its context or the test ends.
type call struct {
	takes   time.Duration
	arrived chan struct{} // closed when the provider serves it
	ended   bool          // by its context
}

func (p *provider) expect(id string, takes time.Duration) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &call{takes: takes, arrived: make(chan struct{})}
	p.calls[id] = c
	return c
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var t Text
	if err := json.NewDecoder(r.Body).Decode(&t); err != nil {
		return // killed in the middle of its request
	}
	p.mu.Lock()
	c := p.calls[t.ID]
	p.now++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	close(c.arrived)
	var over <-chan time.Time
	if c.takes > 0 {
		over = time.After(c.takes)
	}
	select {
	case <-over:
	case <-p.end:
	case <-r.Context().Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	if c.ended = r.Context().Err() != nil; c.ended {
		w.WriteHeader(http.StatusConflict)
		return
	}
	fmt.Fprint(w, "translated ", t.ID)
}

func (p *provider) atOnce() (now, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now, p.most
}

// world is a provider, and environments of the function.
type world struct {
	*provider
	t    *testing.T
	ctx  context.Context
	envs lambdatest.Envs
	all  sync.WaitGroup
}

func newWorld(t *testing.T, locks string) *world {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // the calls end in the cleanup
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, provider: newProvider()}
	server := httptest.NewServer(newSeats(atOnce, w.provider))
	t.Cleanup(server.Close)
	binary, err := os.Executable()
	require.NoError(t, err)
	w.envs, err = lambdatest.StartAll(ctx, environments, lambdatest.Config{
		Binary: binary, Name: "semaphore", Timeout: time.Minute,
		Env: []string{"LOCK_URL=" + locks, "LOCK_TTL=" + ttl.String(), "LOCK_WAIT=30s", "PROVIDER_URL=" + server.URL},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		close(w.end)
		w.all.Wait()
		assert.NoError(t, w.envs.Close())
	})
	return w
}

func (w *world) send(e *lambdatest.Environment, id string) lambdatest.Result {
	payload, err := json.Marshal(Text{id})
	assert.NoError(w.t, err)
	r, err := e.Invoke(w.ctx, payload)
	assert.NoError(w.t, err)
	return r
}

// sending sends a text whose call takes as long as its context.
func (w *world) sending(e *lambdatest.Environment, id string) *call {
	c := w.expect(id, 0)
	w.all.Go(func() { w.send(e, id) })
	return c
}

func (w *world) await(c *call, what string) {
	w.t.Helper()
	select {
	case <-c.arrived:
	case <-w.ctx.Done():
		require.Fail(w.t, "not served: "+what)
	}
}

// Processes are killed and frozen. The provider never serves more calls at once than it allows: what a dead or a
// frozen process had is given to another at the end of its lease, and the provider ends the call of the frozen one.
func TestNeverMoreAtOnce(t *testing.T) {
	t.Run("F01 F02 F07 F12", func(t *testing.T) {
		locks := "redis://" + testservers.Redis(t)
		store, err := lockstore.Open(t.Context(), locks, func(string) string { return "" }, redisstore.Opener)
		require.NoError(t, err)
		w := newWorld(t, locks)
		var holders []*call
		for i, e := range w.envs[:atOnce] {
			holders = append(holders, w.sending(e, fmt.Sprint("holder ", i)))
			w.await(holders[i], "one of those that may")
		}
		waits := func(n int) {
			require.Eventually(t, func() bool {
				status, err := store.Inspect(w.ctx, "translations")
				return err == nil && status.Waiting == n
			}, time.Minute, 10*time.Millisecond)
		}
		w.sending(w.envs[atOnce], "killed while it waits")
		waits(1)
		require.NoError(t, w.envs[atOnce].Kill())
		next := []*call{w.sending(w.envs[atOnce+1], "next"), w.sending(w.envs[atOnce+2], "the one after")}
		waits(3)
		require.NoError(t, w.envs[0].Kill())
		require.NoError(t, w.envs[1].Freeze())
		for _, c := range next {
			w.await(c, "after the end of a lease")
		}
		now, most := w.atOnce()
		require.Equal(t, []int{atOnce, atOnce}, []int{now, most})
		w.mu.Lock()
		defer w.mu.Unlock()
		require.Equal(t, []bool{true, true, false}, []bool{holders[0].ended, holders[1].ended, holders[2].ended})
		require.NoError(t, w.envs[1].Thaw())
	})
}

// seats serves the largest fence of each seat.
func TestSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider()
		s := newSeats(2, p)
		type answer struct {
			code int
			body string
		}
		ask := func(seat, fence, id string, takes time.Duration) func() answer {
			p.expect(id, takes)
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
		_, most := p.atOnce()
		require.Equal(t, 2, most)
	})
}
