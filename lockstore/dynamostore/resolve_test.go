package dynamostore_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// The first attempt revokes one of several leases, and its reply is lost. Before the second attempt arrives,
// the lease ends, and perhaps another one, which the row remembers in its place.
func TestRevokeWhoseReplyIsLost(t *testing.T) {
	const applied, lost, unknown = "applied", "lost", "unknown"
	type meanwhile func(context.Context, *dynamostore.Store, [2]lockstore.Lease)
	nothing := meanwhile(func(context.Context, *dynamostore.Store, [2]lockstore.Lease) {})
	expires := meanwhile(func(context.Context, *dynamostore.Store, [2]lockstore.Lease) { pass(2 * time.Minute) })
	release := meanwhile(func(ctx context.Context, s *dynamostore.Store, leases [2]lockstore.Lease) {
		_ = s.Release(ctx, leases[0])
	})
	abandon := meanwhile(func(ctx context.Context, s *dynamostore.Store, leases [2]lockstore.Lease) {
		leases[0].Fence = 0
		release(ctx, s, leases)
	})
	both := meanwhile(func(ctx context.Context, s *dynamostore.Store, leases [2]lockstore.Lease) {
		release(ctx, s, leases)
		_ = s.Release(ctx, leases[1])
	})
	for name, c := range map[string]struct {
		atOnce, arrives bool // the first attempt
		meanwhile       meanwhile
		want            string
	}{
		"nothing happens":                          {false, true, nothing, applied},
		"at once, nothing happens":                 {true, true, nothing, applied},
		"it expires":                               {false, true, expires, applied},
		"its owner releases":                       {false, true, release, applied},
		"its owner abandons":                       {false, true, abandon, unknown},
		"both owners release":                      {false, true, both, unknown},
		"at once, both owners release":             {true, true, both, unknown},
		"not applied, both owners release":         {false, false, both, unknown},
		"at once, not applied, its owner releases": {true, false, release, lost},
	} {
		bubble(t, "F23 "+name, func(t *testing.T) {
			service := fakedynamo.New(table)
			s, other := newStore(t, service, 0, dynamostore.Options{}), newStore(t, service, 0, dynamostore.Options{})
			var leases [2]lockstore.Lease
			for i := range leases {
				req := request(time.Minute)
				req.MaxHolders = 2
				var err error
				leases[i], err = s.Acquire(t.Context(), req)
				require.NoError(t, err)
			}
			before := service.Requests()
			service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
				switch {
				case r.N == before+2 && c.arrives:
					f.LoseReply = io.ErrUnexpectedEOF
				case r.N == before+2:
					f.Refuse, f.LoseReply = &fakedynamo.Failure{Status: 400, Code: "ThrottlingException"}, io.ErrUnexpectedEOF
				case r.N == before+3:
					service.Fault = nil
					c.meanwhile(t.Context(), other, leases)
				}
				return f
			}
			status, err := s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: leases[0].Fence, OpenAtOnce: c.atOnce, By: lockstore.HolderInfo{Name: "operator"}})
			switch c.want {
			case applied:
				require.NoError(t, err)
				require.Equal(t, "operator", status.Holder.Name)
			case lost:
				require.ErrorIs(t, err, lockstore.ErrLost)
			case unknown:
				require.True(t, isUnknown(err), "%v", err)
			}
		})
	}
}
