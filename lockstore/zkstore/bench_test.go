package zkstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// testHandOver logs how long hand-overs take: 16 processes that need a millisecond of work
// each, again and again. It also logs how many others were granted the key during a wait,
// which a busy machine does not change much. It compares no time with a bound.
func testHandOver(t *testing.T, addr string) {
	const processes, rounds, work = 16, 20, time.Millisecond
	var (
		mu            sync.Mutex
		freed         time.Time
		handed, waits []time.Duration
		others        []int // that were granted the key during a wait
		all           sync.WaitGroup
	)
	began := time.Now()
	for range processes {
		s := openStore(t, "zookeeper://"+addr)
		_, err := s.Inspect(t.Context(), "hand-over") // makes the session
		require.NoError(t, err)
		all.Go(func() {
			for range rounds {
				req := newRequest("hand-over")
				req.JoinQueue = true
				mu.Lock()
				granted := len(waits)
				mu.Unlock()
				start := time.Now()
				lease, err := s.Acquire(t.Context(), req)
				for errors.Is(err, lockstore.ErrRefused) {
					if err = storetest.AwaitTurn(t.Context(), s.Store, req.Key, req.Owner); err == nil {
						lease, err = s.Acquire(t.Context(), req)
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if !freed.IsZero() {
					handed = append(handed, time.Since(freed))
				}
				waits, others = append(waits, time.Since(start)), append(others, len(waits)-granted)
				mu.Unlock()
				<-time.After(work)
				mu.Lock()
				freed = time.Now()
				mu.Unlock()
				if err := s.Release(context.WithoutCancel(t.Context()), lease); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	require.Len(t, waits, processes*rounds)
	at := func(d []time.Duration, part float64) time.Duration {
		slices.Sort(d)
		return d[int(part*float64(len(d)-1))].Round(10 * time.Microsecond)
	}
	slices.Sort(others)
	t.Logf("%d processes: %v a round, hand-over p50 %v, p99 %v, longest %v; wait p50 %v, p99 %v; others p50 %d, p99 %d, most %d", processes, (took / time.Duration(len(waits))).Round(10*time.Microsecond),
		at(handed, 0.5), at(handed, 0.99), at(handed, 1), at(waits, 0.5), at(waits, 0.99),
		others[len(others)/2], others[len(others)*99/100], others[len(others)-1])
}
