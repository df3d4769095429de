package casstore_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// noWaker is a KV that wakes nobody.
type noWaker struct{ casstore.KV }

// As many readers as may hold the key read again and again, and a writer comes. Each reader releases the
// key, and the writer gets it.
func TestWritersAmongManyReaders(t *testing.T) {
	for name, hide := range map[string]func(casstore.KV) casstore.KV{
		"F57 woken":    func(kv casstore.KV) casstore.KV { return kv },
		"F57 no Waker": func(kv casstore.KV) casstore.KV { return noWaker{kv} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const work, wait = 20 * time.Millisecond, 30 * time.Second
				kv := hide(newRemote(5 * time.Millisecond))
				newGuard := func(holders int) *guard.Guard {
					g, err := guard.New(open(t, kv), guard.Options{Wait: wait, Observe: func(_ context.Context, r guard.Report) {
						assert.NoError(t, r.ReleaseErr, "%s after %d calls", r.Outcome, r.Calls)
					}})
					require.NoError(t, err)
					return g.WithMaxHolders(holders)
				}
				run := func(g *guard.Guard) {
					assert.NoError(t, g.Do(t.Context(), "k", func(context.Context, guard.Lock) error { <-time.After(work); return nil }))
				}
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for range lockstore.MaxHolders {
					g := newGuard(lockstore.MaxHolders)
					all.Go(func() {
						for ctx.Err() == nil {
							run(g)
						}
					})
				}
				<-time.After(time.Second / 2)
				began := time.Now()
				run(newGuard(1))
				took := time.Since(began)
				t.Logf("a writer took %v", took)
				assert.LessOrEqual(t, took, 10*time.Second)
				cancel()
				all.Wait()
			})
		})
	}
}
