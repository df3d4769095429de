package dynamostore_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// What a run costs that waits as the next one, with pauses of the mean length and requests
// that take no time: the formula of docs/deploy.md, "What it costs". A pause of AwaitTurn is
// 25 ms and a 20th of the time waited, and 300 ms from 5.5 s on. Report.Calls is less.
func TestCostOfAWait(t *testing.T) {
	for _, waited := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, 10 * time.Second} {
		t.Run(waited.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				s := newStore(t, service, 0, dynamostore.Options{})
				s.SetRandom(func(most time.Duration) time.Duration { return most / 2 })
				var report guard.Report
				g, err := guard.New(s.Store, guard.Options{Wait: time.Minute, Observe: func(_ context.Context, r guard.Report) { report = r }})
				require.NoError(t, err)
				lease, err := s.Acquire(t.Context(), request(time.Minute))
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				done := make(chan error)
				go func() { done <- g.Do(ctx, key, func(context.Context, guard.Lock) error { return nil }) }()
				pass(waited)
				require.NoError(t, s.Release(t.Context(), lease))
				require.NoError(t, <-done)

				of := service.Actions()
				assert.Equal(t, 4, of["UpdateItem"]-2, "refused, a place, the grant, the release; two are the holder's")
				seconds := waited.Seconds()
				pauses := math.Log(1+2*min(seconds, 5.5))/math.Log(1.05) + max(0, seconds-5.5)/0.3
				assert.Equal(t, 1+int(math.Ceil(pauses)), of["GetItem"])
				assert.Equal(t, 4, report.Calls)
				t.Logf("%d writes, %d reads, %d calls", of["UpdateItem"]-2, of["GetItem"], report.Calls)
			})
		})
	}
}
