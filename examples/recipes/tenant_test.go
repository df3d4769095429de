package recipes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const (
	each  = 2
	total = 3
)

// process is one process. When it has died, its store gets no request any more.
type process struct {
	driver.Driver
	end context.Context
}

func (p *process) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if p.end.Err() != nil {
		return driver.Answer{}, fmt.Errorf("%w: dead", lockstore.ErrUnavailable)
	}
	return p.Driver.Do(ctx, key, r)
}

// Processes die while they wait for the first lock, hold it and wait for the second, or hold both.
// Another repeats each run that died. All runs end soon, though they would wait for an hour, and never
// more than allowed work at once.
func TestTenantWithDeaths(t *testing.T) {
	deaths := 0
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("F01 F02 seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New(nil)
				var mu sync.Mutex
				running := map[string]int{}
				count := func(tenant string, by int) {
					mu.Lock()
					defer mu.Unlock()
					running[tenant] += by
					running["all"] += by
					assert.LessOrEqual(t, running[tenant], each)
					assert.LessOrEqual(t, running["all"], total)
				}
				began := time.Now()
				var all sync.WaitGroup
				for client := range uint64(12) {
					tenant := []string{"busy", "busy", "a", "b"}[client%4]
					all.Go(func() {
						random := rand.New(rand.NewPCG(seed, client))
						upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
						for done := 0; done < 5; {
							end, die := context.WithCancel(t.Context())
							if random.IntN(3) == 0 {
								time.AfterFunc(upTo(5*time.Second), die)
							}
							p := &process{end: end}
							g, err := guard.New(store.WrapDriver(func(d driver.Driver) driver.Driver { p.Driver = d; return p }), guard.Options{TTL: 4 * time.Second, Wait: time.Hour})
							assert.NoError(t, err)
							err = Tenant(end, g, tenant, each, total, func(ctx context.Context, _ guard.Lock) error {
								count(tenant, 1)
								defer count(tenant, -1)
								select {
								case <-time.After(upTo(time.Second)):
								case <-ctx.Done():
								}
								return ctx.Err()
							})
							if err == nil {
								done++
							} else if assert.Error(t, end.Err(), "%v", err) {
								mu.Lock()
								deaths++
								mu.Unlock()
							}
							die()
						}
					})
				}
				all.Wait()
				require.Less(t, time.Since(began), 5*time.Minute)
			})
		})
	}
	t.Log(deaths, "deaths")
	require.Greater(t, deaths, 50)
}
