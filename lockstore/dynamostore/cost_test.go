package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// rtt is a network of 5 ms, as between Lambda and DynamoDB.
func rtt(fakedynamo.Request) fakedynamo.Fault {
	return fakedynamo.Fault{In: 2500 * time.Microsecond, Out: 2500 * time.Microsecond}
}

// extendAfter is when a caller extends a lease that was handed over.
const extendAfter = 250 * time.Millisecond

// waitedRun is one run of a caller that waits as a guard does. It returns how long it had the key.
func waitedRun(ctx context.Context, s *dynamostore.Store, req lockstore.Request, work time.Duration) error {
	lease, err := s.Acquire(ctx, req)
	handed := false
	for errors.Is(err, lockstore.ErrRefused) {
		refused, _ := errors.AsType[*lockstore.Refused](err)
		req.Note = refused.Note
		var news lockstore.Awaited
		for err = nil; err == nil && !news.Ask && news.Lease.Fence == 0; req.Note = news.Note {
			news, err = s.AwaitTurn(ctx, lockstore.Place{Key: req.Key, Owner: req.Owner, Note: req.Note})
		}
		if lease = news.Lease; err == nil && lease.Fence == 0 {
			lease, err = s.Acquire(ctx, req)
			continue
		}
		handed = true
	}
	if err != nil {
		return err
	}
	if handed && work > extendAfter {
		pass(extendAfter)
		req.Fence = lease.Fence
		if lease, err = s.Acquire(ctx, req); err != nil {
			return err
		}
		work -= extendAfter
	}
	pass(work)
	return s.Release(ctx, lease)
}

// What a run costs that waits among others. Each of 16 clients has ten runs, one after the other.
func TestCostOfAQueue(t *testing.T) {
	const clients, runs = 16, 10
	for _, most := range []struct {
		work          time.Duration
		holders       int
		writes, reads float64
		handOver      time.Duration
	}{
		{20 * time.Millisecond, 1, 2.1, 4, 12 * time.Millisecond},
		{time.Second, 1, 3.1, 30, 25 * time.Millisecond},
		{20 * time.Millisecond, 5, 5, 5, 0},
	} {
		work := most.work
		t.Run(fmt.Sprint(work, " for ", most.holders), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				weak := 0
				var mu sync.Mutex
				service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
					mu.Lock()
					defer mu.Unlock()
					if r.Weak {
						weak++
					}
					return rtt(r)
				}
				var all sync.WaitGroup
				var waits []time.Duration
				start := time.Now()
				for range clients {
					s := newStore(t, service, 0, dynamostore.Options{})
					all.Go(func() {
						for range runs {
							began := time.Now()
							req := request(time.Minute)
							req.JoinQueue, req.MaxHolders = true, most.holders
							assert.NoError(t, waitedRun(t.Context(), s, req, work))
							mu.Lock()
							waits = append(waits, time.Since(began))
							mu.Unlock()
						}
					})
				}
				all.Wait()
				took := time.Since(start)
				of, n := service.Actions(), float64(clients*runs)
				slices.Sort(waits)
				t.Logf("%v of work: a run takes %v, the median waits %v, the last %v; %.2f writes, %.2f reads, %.2f of them at half the price", work, (took / (clients * runs)).Round(100*time.Microsecond),
					waits[len(waits)/2], waits[len(waits)-1], float64(of["UpdateItem"])/n, float64(of["GetItem"])/n, float64(weak)/n)
				require.LessOrEqual(t, float64(of["UpdateItem"])/n, most.writes)
				require.LessOrEqual(t, float64(of["GetItem"])/n, most.reads)
				require.LessOrEqual(t, took/(clients*runs)-work, most.handOver)
			})
		})
	}
}
