package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// memstore and buggyStore without a bug share no code. Random calls, times and steps of the
// clock get the same answers from both.
func TestTwoStoresAgree(t *testing.T) {
	const seeds, calls = 300, 200
	outcomes := map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(seeds) {
			random := rand.New(rand.NewPCG(seed, 1))
			m := newBuggyStore("")
			reference := memstore.New(m.now)
			leases := []lockstore.Lease{{Key: "key0", Owner: "owner0", Fence: 1}}
			for n := range calls {
				call := randomCall(random, leases[max(0, len(leases)-1-random.IntN(3))])
				want, leaseWanted := call(t.Context(), reference)
				got, lease := call(t.Context(), m)
				require.Equal(t, want, got, "seed %d, call %d", seed, n)
				require.Equal(t, leaseWanted, lease, "seed %d, call %d", seed, n)
				outcomes[want[:min(len(want), len("acquire kept"))]]++
				if lease.Fence > 0 {
					leases = append(leases, lease)
				}
				if random.IntN(3) == 0 {
					m.shift += time.Duration(random.Int64N(int64(3 * time.Second)))
				}
				if random.IntN(40) == 0 {
					m.shift -= time.Duration(random.Int64N(int64(time.Minute)))
				}
			}
		}
	})
	t.Log(outcomes)
	for _, o := range []string{
		"acquire nil", "acquire held", "acquire lost", "renew nil", "renew lost", "release nil", "release lost", "begin nil", "begin lost", "keep nil", "keep lost", "acquire kept"} {
		require.Greater(t, outcomes[o], 500, "the random calls reach %q", o)
	}
	for _, o := range []string{"acquire in d", "done nil", "done lost", "done held by", "free nil", "free lost"} {
		require.Greater(t, outcomes[o], 20, "the random calls reach %q", o)
	}
}

type everyInterface interface {
	lockstore.Store
	lockstore.Keeper
	lockstore.Settler
	lockstore.Inspector
}

// randomCall returns a call. Its result is a text and a lease.
func randomCall(random *rand.Rand, lease lockstore.Lease) func(context.Context, everyInterface) (string, lockstore.Lease) {
	owner := fmt.Sprint("owner", random.IntN(8))
	req := lockstore.Request{Key: fmt.Sprint("key", random.IntN(2)), Owner: lockstore.Owner(owner), Holder: lockstore.Holder{Name: owner}}
	req.TTL = time.Second + time.Duration(random.Int64N(int64(20*time.Second)))
	kind := random.IntN(26)
	data := []byte(fmt.Sprint("answer", random.IntN(100)))
	return func(ctx context.Context, s everyInterface) (string, lockstore.Lease) {
		switch {
		case kind < 8:
			l, err := s.Acquire(ctx, req)
			return "acquire " + outcome(err), l
		case kind < 12:
			trusted, err := s.Renew(ctx, lease, req.TTL)
			return "renew " + outcome(err), lockstore.Lease{TTL: trusted}
		case kind < 16:
			return "release " + outcome(s.Release(ctx, lease)), lockstore.Lease{}
		case kind < 18:
			return "abandon " + outcome(s.Release(ctx, lockstore.Lease{Key: lease.Key, Owner: lease.Owner})), lockstore.Lease{}
		case kind < 19:
			return "keep " + outcome(s.Keep(ctx, lease, data, req.TTL)), lockstore.Lease{}
		case kind < 22:
			return "begin " + outcome(s.Begin(ctx, lease)), lockstore.Lease{}
		case kind < 23:
			return "done " + outcome(s.SettleKept(ctx, lease.Key, lease.Fence, data, req.TTL)), lockstore.Lease{}
		case kind < 24:
			return "free " + outcome(s.SettleFree(ctx, lease.Key, lease.Fence)), lockstore.Lease{}
		}
		st, err := s.Inspect(ctx, req.Key)
		return fmt.Sprint("inspect ", outcome(err), " ", st), lockstore.Lease{}
	}
}

// outcome is the meaning of an error, and the content of a held error.
func outcome(err error) string {
	var held *lockstore.HeldError
	var kept *lockstore.KeptError
	var inDoubt *lockstore.DoubtError
	switch {
	case err == nil:
		return "nil"
	case errors.As(err, &kept):
		return fmt.Sprintf("kept %s by %s for %v", []byte(kept.Data), kept.Holder.Name, kept.Remaining)
	case errors.As(err, &inDoubt):
		return "in doubt by " + inDoubt.Holder.Name
	case errors.As(err, &held):
		return "held by " + held.Holder.Name + " " + held.Remaining.String()
	case errors.Is(err, lockstore.ErrLost):
		return "lost"
	}
	return err.Error()
}
