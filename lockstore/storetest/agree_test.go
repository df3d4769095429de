package storetest

import (
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

// The reference store and the model were written apart. Random calls, times
// and clock steps get the same answers from both.
func TestReferenceAndModelAgree(t *testing.T) {
	const seeds, calls = 300, 200
	outcomes := map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(seeds) {
			random := rand.New(rand.NewPCG(seed, 1))
			m := newModel("")
			reference := memstore.New(m.now)
			var leases []lockstore.Lease
			for n := range calls {
				call := randomCall(random, leases)
				want, leaseWanted := call(t, reference)
				got, lease := call(t, m)
				require.Equal(t, want, got, "seed %d, call %d", seed, n)
				require.Equal(t, leaseWanted, lease, "seed %d, call %d", seed, n)
				outcomes[want[:min(len(want), 12)]]++
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
	for _, o := range []string{"acquire nil", "acquire held", "acquire lost", "renew nil", "renew lost", "release nil", "release lost"} {
		require.Greater(t, outcomes[o], 500, "the random calls reach %q", o)
	}
}

// randomCall returns a call that says what came of it, as text and lease.
func randomCall(random *rand.Rand, leases []lockstore.Lease) func(*testing.T, lockstore.Store) (string, lockstore.Lease) {
	key := fmt.Sprint("key", random.IntN(2))
	owner := lockstore.Owner(fmt.Sprint("owner", random.IntN(8)))
	ttl := time.Second + time.Duration(random.Int64N(int64(20*time.Second)))
	lease := lockstore.Lease{Key: key, Owner: owner, Fence: 1}
	if len(leases) > 0 {
		lease = leases[max(0, len(leases)-1-random.IntN(3))]
	}
	switch random.IntN(10) {
	case 0, 1, 2, 3:
		return func(t *testing.T, s lockstore.Store) (string, lockstore.Lease) {
			l, err := s.Acquire(t.Context(), lockstore.Request{Key: key, Owner: owner, TTL: ttl, Holder: lockstore.Holder{Name: string(owner)}})
			return "acquire " + outcome(err), l
		}
	case 4, 5:
		return func(t *testing.T, s lockstore.Store) (string, lockstore.Lease) {
			trusted, err := s.Renew(t.Context(), lease, ttl)
			return "renew " + outcome(err), lockstore.Lease{TTL: trusted}
		}
	case 6, 7:
		return func(t *testing.T, s lockstore.Store) (string, lockstore.Lease) {
			return "release " + outcome(s.Release(t.Context(), lease)), lockstore.Lease{}
		}
	case 8:
		lease.Fence = 0
		return func(t *testing.T, s lockstore.Store) (string, lockstore.Lease) {
			return "abandon " + outcome(s.Release(t.Context(), lease)), lockstore.Lease{}
		}
	default:
		closes := random.IntN(2) == 0
		return func(t *testing.T, s lockstore.Store) (string, lockstore.Lease) {
			if closes {
				return "close " + outcome(s.(lockstore.CooldownReleaser).ReleaseAfter(t.Context(), lease, ttl)), lockstore.Lease{}
			}
			st, err := s.(lockstore.Inspector).Inspect(t.Context(), key)
			return fmt.Sprint("inspect ", outcome(err), " ", st), lockstore.Lease{}
		}
	}
}

// outcome is an error's one meaning, and all that a held error says.
func outcome(err error) string {
	var held *lockstore.HeldError
	switch {
	case err == nil:
		return "nil"
	case errors.As(err, &held):
		return "held by " + held.Holder.Name + " " + held.Remaining.String()
	case errors.Is(err, lockstore.ErrLost):
		return "lost"
	}
	return err.Error()
}
