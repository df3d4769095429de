package lockstore_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestValidateComplete(t *testing.T) {
	t.Run("F48 within its bounds and out of them", func(t *testing.T) {
		good := lockstore.Lease{Key: "k", Owner: "o", Fence: 1}
		for _, d := range []time.Duration{time.Second, time.Minute, 31 * 24 * time.Hour} {
			assert.NoError(t, lockstore.ValidateComplete(good, make([]byte, 256<<10), d))
			assert.NoError(t, lockstore.ValidateResolveEffect("k", 1, nil, d))
		}
		for _, d := range []time.Duration{0, -1, time.Millisecond, time.Second - 1, 31*24*time.Hour + 1, math.MaxInt64, math.MinInt64} {
			err := lockstore.ValidateComplete(good, nil, d)
			requireInvalid(t, err, "the time of the result")
			assert.ErrorContains(t, err, "is "+d.String()+"; want 1s to 744h0m0s")
			requireInvalid(t, lockstore.ValidateResolveEffect("k", 1, nil, d), "the time of the result")
		}
		err := lockstore.ValidateComplete(good, make([]byte, 256<<10+1), time.Minute)
		requireInvalid(t, err, "Result")
		assert.ErrorContains(t, err, "262145 bytes; want at most 262144")

		requireInvalid(t, lockstore.ValidateComplete(lockstore.Lease{Owner: "o", Fence: 1}, nil, time.Minute), "Key")
		requireInvalid(t, lockstore.ValidateResolveNoEffect("", 1), "Key")
		requireInvalid(t, lockstore.ValidateResolveNoEffect("k", 0), "Fence")
		good.Fence = 0
		requireInvalid(t, lockstore.ValidateComplete(good, nil, time.Minute), "Fence")
		requireInvalid(t, lockstore.ValidateGrant(good), "Fence")
	})
}
