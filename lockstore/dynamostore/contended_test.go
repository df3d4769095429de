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
			lease := held(t, s) // alone
			req := request(time.Minute)
			req.MaxHolders, req.JoinQueue = holders, true
			_, err := s.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrRefused)
			require.NoError(t, s.Release(t.Context(), lease))
			service.Fault = from(service.Requests()+2, throttled)
			_, err = s.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrUnavailable)
			require.ErrorIs(t, err, lockstore.ErrContended)
			service.Fault = nil
			_, err = s.Acquire(t.Context(), req)
			require.NoError(t, err)
		})
	}
}

// The context of a release ends during the pause after a conflict. The error says so, as well as that others were quicker.
func TestContextEndsAfterAConflict(t *testing.T) {
	bubble(t, "F57 release", func(t *testing.T) {
		service, s := newFake(t)
		req := request(time.Minute)
		req.MaxHolders = 2
		lease := acquired(t, s, req)
		req.Owner = lockstore.NewOwner()
		other := acquired(t, s, req)
		ctx, cancel := context.WithCancel(t.Context())
		last := service.Requests() + 2 // a read and a write
		service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
			if r.N == last {
				service.Fault = nil
				_, err := s.Renew(t.Context(), other, time.Hour)
				require.NoError(t, err)
				go func() {
					synctest.Wait() // it pauses
					cancel()
				}()
			}
			return f
		}
		err := s.Release(ctx, lease)
		for _, want := range []error{context.Canceled, lockstore.ErrContended, lockstore.ErrUnavailable} {
			require.ErrorIs(t, err, want)
		}
	})
}
