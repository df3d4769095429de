package lockstore_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestValidateKeep(t *testing.T) {
	t.Run("F48 within its bounds and out of them", func(t *testing.T) {
		good := lockstore.Lease{Key: "k", Owner: "o", Fence: 1}
		for _, d := range []time.Duration{time.Second, time.Minute, 31 * 24 * time.Hour} {
			assert.NoError(t, lockstore.ValidateComplete(good, make([]byte, 256<<10), d))
			assert.NoError(t, lockstore.ValidateResolveEffect("k", 1, nil, d))
		}
		for _, d := range []time.Duration{0, -1, time.Millisecond, time.Second - 1, 31*24*time.Hour + 1, math.MaxInt64, math.MinInt64} {
			err := lockstore.ValidateComplete(good, nil, d)
			requireInvalid(t, err, "Complete")
			assert.ErrorContains(t, err, "is for "+d.String()+"; want 1s to 744h0m0s")
			requireInvalid(t, lockstore.ValidateResolveEffect("k", 1, nil, d), "Complete")
		}
		err := lockstore.ValidateComplete(good, make([]byte, 256<<10+1), time.Minute)
		requireInvalid(t, err, "Data")
		assert.ErrorContains(t, err, "262145 bytes; want at most 262144")

		requireInvalid(t, lockstore.ValidateComplete(lockstore.Lease{Owner: "o", Fence: 1}, nil, time.Minute), "Key")
		requireInvalid(t, lockstore.ValidateResolveNoEffect("", 1), "Key")
		requireInvalid(t, lockstore.ValidateResolveNoEffect("k", 0), "Fence")
		good.Fence = 0
		requireInvalid(t, lockstore.ValidateComplete(good, nil, time.Minute), "Fence")
		requireInvalid(t, lockstore.ValidateGrant(good), "Fence")
	})
}

func TestKeptError(t *testing.T) {
	kept := &lockstore.KeptError{
		HeldError: lockstore.HeldError{Key: "k", Holder: lockstore.HolderInfo{Name: "f"}, Remaining: time.Minute},
		Result:    lockstore.Secret("a secret answer"),
	}
	inDoubt := &lockstore.DoubtError{HeldError: kept.HeldError}
	for _, err := range []error{kept, inDoubt} {
		require.ErrorIs(t, err, lockstore.ErrHeld)
		held, ok := errors.AsType[*lockstore.HeldError](fmt.Errorf("wrapped: %w", err))
		require.True(t, ok)
		require.Equal(t, "k", held.Key)
	}
	require.EqualError(t, kept, `lock "k": the work was done by f, and this is kept for at most 1m0s more (an answer of 15 bytes)`)
	require.EqualError(t, inDoubt, `lock "k" is in doubt: f began the work and did not say how it ended; somebody has to settle the key`)

	text, err := json.Marshal(kept)
	require.NoError(t, err)
	for _, shown := range []string{
		string(text), fmt.Sprintf("%v %+v %#v %s %q %x %d", kept.Result, kept.Result, kept.Result, kept.Result, kept.Result, kept.Result, kept.Result),
		fmt.Sprintf("%v %+v %#v", *kept, *kept, kept),
	} {
		assert.Contains(t, shown, "15 bytes")
		assert.NotContains(t, shown, "secret")
		assert.NotContains(t, shown, fmt.Sprintf("%d", []byte("secret"))[1:8])
		assert.NotContains(t, shown, fmt.Sprintf("%x", "secret"))
	}
	require.Equal(t, "a secret answer", string([]byte(kept.Result)))
}
