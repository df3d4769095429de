package lockstore_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestValidateTTL(t *testing.T) {
	t.Run("F48 within its bounds and out of them", func(t *testing.T) {
		for _, ttl := range []time.Duration{time.Second, time.Second + 1, time.Minute, 24*time.Hour - 1, 24 * time.Hour} {
			assert.NoError(t, lockstore.ValidateTTL(ttl), ttl)
		}
		for _, ttl := range []time.Duration{0, -1, 1, -time.Minute, time.Millisecond, time.Second - 1, 24*time.Hour + 1, math.MaxInt64, math.MinInt64} {
			err := lockstore.ValidateTTL(ttl)
			requireInvalid(t, err, "TTL")
			assert.ErrorContains(t, err, "is "+ttl.String()+"; want 1s to 24h0m0s")
		}
	})
}

func TestRequestValidate(t *testing.T) {
	good := lockstore.Request{Key: "k", Owner: "o", TTL: time.Minute}
	assert.NoError(t, good.Validate())
	good.Owner = lockstore.Owner(strings.Repeat("~", 64))
	assert.NoError(t, good.Validate())
	good.Owner = lockstore.NewOwner()
	assert.NoError(t, good.Validate())
	good.MaxHolders = 64
	assert.NoError(t, good.Validate())

	for name, tc := range map[string]struct {
		change func(*lockstore.Request)
		field  string
		says   string
	}{
		"no key":         {func(r *lockstore.Request) { r.Key = "" }, "Key", "is empty"},
		"no owner":       {func(r *lockstore.Request) { r.Owner = "" }, "Owner", "has 0 bytes; want 1 to 64"},
		"long owner":     {func(r *lockstore.Request) { r.Owner = lockstore.Owner(strings.Repeat("o", 65)) }, "Owner", "has 65 bytes"},
		"space in owner": {func(r *lockstore.Request) { r.Owner = "a b" }, "Owner", "byte at 1 that is not printable ASCII"},
		"DEL in owner":   {func(r *lockstore.Request) { r.Owner = "ab\x7f" }, "Owner", "byte at 2"},
		"é in owner":     {func(r *lockstore.Request) { r.Owner = "é" }, "Owner", "byte at 0"},
		"NUL in owner":   {func(r *lockstore.Request) { r.Owner = "\x00" }, "Owner", "byte at 0"},
		"MaxHolders -1":  {func(r *lockstore.Request) { r.MaxHolders = -1 }, "MaxHolders", "is -1; want 1 to 64"},
		"MaxHolders 65":  {func(r *lockstore.Request) { r.MaxHolders = 65 }, "MaxHolders", "is 65; want 1 to 64"},
		"no TTL":         {func(r *lockstore.Request) { r.TTL = 0 }, "TTL", "is 0s"},
	} {
		t.Run("F48 "+name, func(t *testing.T) {
			r := good
			tc.change(&r)
			err := r.Validate()
			requireInvalid(t, err, tc.field)
			assert.ErrorContains(t, err, tc.says)
			assert.NotContains(t, err.Error(), string(good.Owner))
		})
	}
}

func TestLeaseValidate(t *testing.T) {
	t.Run("F48 within its bounds and out of them", func(t *testing.T) {
		good := lockstore.Lease{Key: "k", Owner: "o", Fence: 1}
		assert.NoError(t, good.Validate())
		good.Fence = 0
		assert.NoError(t, good.Validate(), "fence 0 abandons")
		good.Fence = math.MaxInt64
		assert.NoError(t, good.Validate())
		good.TTL = -time.Hour
		assert.NoError(t, good.Validate(), "the TTL of an answer that came late is negative")

		for _, tc := range []struct {
			lease lockstore.Lease
			field string
		}{
			{lockstore.Lease{Key: "", Owner: "o"}, "Key"},
			{lockstore.Lease{Key: "k", Owner: ""}, "Owner"},
			{lockstore.Lease{Key: "k", Owner: "o", Fence: -1}, "Fence"},
			{lockstore.Lease{Key: "k", Owner: "o", Fence: math.MinInt64}, "Fence"},
		} {
			requireInvalid(t, tc.lease.Validate(), tc.field)
		}
	})
}
