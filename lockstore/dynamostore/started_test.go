package dynamostore_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// A mark that DynamoDB writes 20 s after the end of its lease puts no key in doubt, also if the SDK sends it twice, or if somebody
// asks before it is removed.
func TestStartThatComesTooLate(t *testing.T) {
	const slow = 22 * time.Second
	for name, faults := range map[string][2]fakedynamo.Fault{ // of the mark and of its removal
		"slow":                             {{In: slow}, {}},
		"its reply is lost":                {{In: slow, LoseReply: errReset}, {}},
		"the reply to its removal is lost": {{In: slow}, {LoseReply: errReset}},
		"others ask meanwhile":             {{In: slow}, {}},
	} {
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			other := newStore(t, service, 0, dynamostore.Options{})
			lease := acquired(t, s, request(2*time.Second))
			beforeWrite(service, 1, func() fakedynamo.Fault {
				beforeWrite(service, 1, func() fakedynamo.Fault {
					if req := queued(1); name == "others ask meanwhile" {
						isRefused(t, other, req)
						require.NoError(t, other.Leave(t.Context(), key, req.Owner))
					}
					return faults[1]
				})
				return faults[0]
			})
			require.ErrorIs(t, s.MarkStarted(t.Context(), lease), lockstore.ErrLost)
			require.Equal(t, lockstore.Free, inspected(t, other).State)
			held(t, other)
		})
	}
}

// A repeat of a MarkStarted says that the work may begin. A late copy of the first one, which nobody waits for any more, must
// not remove the mark.
func TestStartAndItsRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(2*time.Second))
		var n atomic.Int64
		service.Fault = func(fakedynamo.Request) (f fakedynamo.Fault) {
			switch n.Add(1) {
			case 1:
				f.LoseReply = errReset
			case 2:
				f.In = 22 * time.Second
			}
			return f
		}
		first := make(chan error)
		go func() { first <- s.MarkStarted(t.Context(), lease) }()
		pass(time.Second)
		require.NoError(t, newStore(t, service, 0, dynamostore.Options{}).MarkStarted(t.Context(), lease), "the repeat")
		require.ErrorIs(t, <-first, lockstore.ErrLost)
		require.Equal(t, lockstore.InDoubt, inspected(t, s).State)
	})
}

// The row of work that goes on stays for as long as work that has just started, and it takes no more requests but once a day.
func TestStartedWorkOfMonths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(2*time.Hour))
		require.NoError(t, s.MarkStarted(t.Context(), lease))
		before := service.Requests()
		for range 40 * 24 {
			pass(time.Hour)
			_, err := s.Renew(t.Context(), lease, 2*time.Hour)
			require.NoError(t, err)
			row := fakeRows{service}.get(t, key)
			end := time.UnixMilli(number(t, row, "expires"))
			require.False(t, time.Unix(number(t, row, "ttl"), 0).Before(end.Add(lockstore.StartMarkTime)), "%v", end)
			require.Equal(t, row["ttl"], row["started"])
		}
		require.LessOrEqual(t, service.Requests()-before, 40*(24+3))
		pass(3 * time.Hour)
		require.Equal(t, lockstore.InDoubt, inspected(t, s).State)
	})
}
