package lockstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestNextFence(t *testing.T) {
	now := time.UnixMicro(1_790_942_400_000_000)
	for name, tc := range map[string]struct{ previous, want lockstore.Fence }{
		"none":                             {0, 1_790_942_400_000_000},
		"earlier":                          {5, 1_790_942_400_000_000},
		"one microsecond ago":              {1_790_942_399_999_999, 1_790_942_400_000_000},
		"the same microsecond":             {1_790_942_400_000_000, 1_790_942_400_000_001},
		"F20 clock behind the earlier one": {1_790_942_500_000_000, 1_790_942_500_000_001},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, lockstore.NextFence(tc.previous, now))
		})
	}
	assert.Equal(t, lockstore.Fence(1), lockstore.NextFence(0, time.Unix(-5, 0)), "a clock before 1970 gives no fence below 1")
	text, err := lockstore.Fence(1_790_942_400_000_001).MarshalBinary() // as an argument of go-redis
	require.NoError(t, err)
	assert.Equal(t, "1790942400000001", string(text))
}
