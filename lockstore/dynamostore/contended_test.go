package dynamostore_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// An owner that was handed the key, or that has a place, asks, and its write is throttled. It is not told that it has nothing: its
// turn and its place are there.
func TestThrottledOwnerOfATurn(t *testing.T) {
	for _, holders := range []int{1, 3} {
		bubble(t, fmt.Sprintf("F57 of a key for %d", holders), func(t *testing.T) {
			service, s := newFake(t)
			lease, req := held(t, s), queued(holders)
			isRefused(t, s, req)
			require.NoError(t, s.Release(t.Context(), lease))
			service.Fault = from(service.Requests()+2, throttled)
			_, err := s.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrUnavailable)
			require.ErrorIs(t, err, lockstore.ErrContended)
			service.Fault = nil
			acquired(t, s, req)
		})
	}
}

// The context of a release ends during the pause after a conflict. The error says so, as well as that others were quicker.
func TestContextEndsAfterAConflict(t *testing.T) {
	bubble(t, "F57 release", func(t *testing.T) {
		service, s := newFake(t)
		leases := sharing(t, s, 2)
		ctx, cancel := context.WithCancel(t.Context())
		beforeWrite(service, 1, func() (f fakedynamo.Fault) {
			_, err := s.Renew(t.Context(), leases[1], time.Hour)
			require.NoError(t, err)
			go func() {
				synctest.Wait() // it pauses
				cancel()
			}()
			return f
		})
		err := s.Release(ctx, leases[0])
		for _, want := range []error{context.Canceled, lockstore.ErrContended, lockstore.ErrUnavailable} {
			require.ErrorIs(t, err, want)
		}
	})
}
