package sqsbatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/batchtest"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestRandomBatches runs batches of any form and checks what must hold for each:
// no two at once on one key, each message at most once, none done after a failed
// one of its ordered group, none done that failed or ran without its lock.
func TestRandomBatches(t *testing.T) {
	done, failed, afterLoss := 0, 0, 0
	for seed := range uint64(300) {
		batchtest.Bubble(fmt.Sprintf("F72 seed %d", seed), t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			pick := func(from ...string) string { return from[random.IntN(len(from))] }
			b := newBench(t, guard.Options{TTL: 3 * time.Second})
			b.opt.Concurrency = 1 + random.IntN(4)
			b.Occupy(t, "held")
			ctx := context.Background()
			if random.IntN(3) == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(8000))*time.Millisecond)
				defer cancel()
			}
			var in []events.SQSMessage
			what, takes := map[string]string{}, map[string]time.Duration{}
			arn := pick(standardARN, fifoARN)
			for i := range 1 + random.IntN(12) {
				id := fmt.Sprintf("m%02d", i)
				in = append(in, events.SQSMessage{MessageId: id, EventSourceARN: arn, Body: pick("a", "a", "a", "b", "b", "c", "held", "nokey"),
					Attributes: map[string]string{"MessageGroupId": pick("g", "g", "h", "i")}})
				what[id] = pick("ok", "ok", "ok", "ok", "ok", "ok", "fail", "panic", "exit", "vanish", "vanish")
				takes[id] = time.Duration(random.IntN(1500)) * time.Millisecond
			}

			var mu sync.Mutex
			inside, gone, wasted := map[string]int{}, map[string]bool{}, map[string]bool{}
			b.Do = func(_ context.Context, id, key string) error {
				mu.Lock()
				inside[key]++
				assert.Equal(t, 1, inside[key], "two at once on %s", key)
				if what[id] == "vanish" {
					b.Vanish(t, key)
					gone[key] = true
				}
				wasted[id] = gone[key]
				mu.Unlock()
				defer func() {
					mu.Lock()
					inside[key]--
					mu.Unlock()
				}()
				<-time.After(takes[id])
				switch what[id] {
				case "fail":
					return errors.New("own")
				case "panic":
					panic("boom")
				case "exit":
					runtime.Goexit()
				}
				return nil
			}
			// A key that is locked again, in a later round, is held again.
			b.Fault = func(c storetest.Call) storetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if c.Kind == driver.Acquire {
					gone[c.Key] = false
				}
				return storetest.Fault{}
			}

			names := b.run(t, ctx, in...)
			ran := b.Ran()
			require.Len(t, slices.Compact(slices.Sorted(slices.Values(ran))), len(ran), "a message ran twice")
			stopped, last := map[string]bool{}, map[string]int{}
			for _, m := range in {
				g := m.Attributes["MessageGroupId"]
				at := slices.Index(ran, m.MessageId)
				if slices.Contains(names, m.MessageId) {
					failed++
					stopped[g] = true
				} else {
					done++
					require.GreaterOrEqual(t, at, 0, "%s never ran and is not named", m.MessageId)
					require.Equal(t, "ok", what[m.MessageId], m.MessageId)
					require.False(t, arn == fifoARN && stopped[g], "%s is done after a failure of its group", m.MessageId)
					require.False(t, wasted[m.MessageId], "%s ran without its lock", m.MessageId)
				}
				if arn == fifoARN && at >= 0 {
					require.GreaterOrEqual(t, at, last[g], "%s ran before an earlier one of its group", m.MessageId)
					last[g] = at
				}
				if wasted[m.MessageId] && what[m.MessageId] == "ok" {
					afterLoss++
				}
			}
			b.Free(t, "a", "b", "c")
		})
	}
	assert.Greater(t, done, 300)
	assert.Greater(t, failed, 300)
	assert.Greater(t, afterLoss, 10)
}
