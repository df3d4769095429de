package dynamostore_test

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// The first attempt resolves the key, and its reply is lost. Another owner is granted the key before
// the second attempt arrives.
func TestResolveWhoseReplyIsLost(t *testing.T) {
	for _, effect := range []bool{false, true} {
		bubble(t, fmt.Sprintf("F23 effect %t", effect), func(t *testing.T) {
			service := fakedynamo.New(table)
			s, other := newStore(t, service, 0, dynamostore.Options{}), newStore(t, service, 0, dynamostore.Options{})
			lease, err := s.Acquire(t.Context(), request(time.Second))
			require.NoError(t, err)
			require.NoError(t, s.MarkStarted(t.Context(), lease))
			pass(time.Minute)
			before := service.Requests()
			service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
				switch r.N - before {
				case 2:
					f.LoseReply = io.ErrUnexpectedEOF
				case 3:
					f.In = 2 * time.Second
				}
				return f
			}
			var resolved error
			var all sync.WaitGroup
			all.Go(func() {
				if effect {
					resolved = s.ResolveEffect(t.Context(), key, lease.Fence, nil, time.Hour)
				} else {
					resolved = s.ResolveNoEffect(t.Context(), key, lease.Fence)
				}
			})
			pass(time.Second)
			_, err = other.Acquire(t.Context(), request(time.Minute))
			if effect {
				require.ErrorIs(t, err, lockstore.ErrRefused)
			} else {
				require.NoError(t, err)
			}
			all.Wait()
			require.NoError(t, resolved, "the row remembers it")
		})
	}
}

// A place that was asked for before the work was in doubt comes just before the key is closed. It ends
// with the queue.
func TestJoinBeforeAResolveWithEffect(t *testing.T) {
	bubble(t, "F57", func(t *testing.T) {
		service := fakedynamo.New(table)
		s := newStore(t, service, 0, dynamostore.Options{})
		lease, err := s.Acquire(t.Context(), request(time.Second))
		require.NoError(t, err)
		require.NoError(t, s.MarkStarted(t.Context(), lease))
		before := service.Requests()
		service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
			switch r.N - before {
			case 2: // takes the place
				f.In = 11 * time.Second
			case 4: // resolves
				f.In = 2 * time.Second
			}
			return f
		}
		var all sync.WaitGroup
		all.Go(func() {
			req := request(time.Minute)
			req.JoinQueue = true
			_, err := s.Acquire(t.Context(), req)
			refused, ok := errors.AsType[*lockstore.Refused](err)
			assert.True(t, ok && refused.QueuePosition == 1, "%v", err)
		})
		pass(10 * time.Second)
		require.NoError(t, s.ResolveEffect(t.Context(), key, lease.Fence, nil, time.Hour))
		all.Wait()
		require.NotContains(t, fakeRows{service}.get(t, key), "queue")
	})
}
