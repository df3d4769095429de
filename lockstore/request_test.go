package lockstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
)

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
