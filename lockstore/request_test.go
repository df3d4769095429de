package lockstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestRequestValidate(t *testing.T) {
	good := lockstore.Request{Key: "k", Owner: lockstore.Owner(strings.Repeat("~", 64)), TTL: time.Minute}
	assert.NoError(t, good.Validate())
	good.Owner, good.MaxHolders = lockstore.NewOwner(), 32
	assert.NoError(t, good.Validate())
	parked := func(change func(*lockstore.Request)) func(*lockstore.Request) {
		return func(r *lockstore.Request) {
			r.JoinQueue, r.Parked, r.Address = true, lockstore.MaxParkedTurn, lockstore.TaskToken(strings.Repeat("s", 2048))
			change(r)
		}
	}
	for _, turn := range []time.Duration{lockstore.TurnTime, lockstore.MaxParkedTurn} {
		r := good
		parked(func(r *lockstore.Request) { r.Parked = turn })(&r)
		assert.NoError(t, r.Validate())
	}

	for name, tc := range map[string]struct {
		change func(*lockstore.Request)
		field  string
		says   string
	}{
		"no key":         {func(r *lockstore.Request) { r.Key = "" }, "Key", "is empty"},
		"no owner":       {func(r *lockstore.Request) { r.Owner = "" }, "Owner", "has 0 bytes; want 1 to 64"},
		"long owner":     {func(r *lockstore.Request) { r.Owner = lockstore.Owner(strings.Repeat("o", 65)) }, "Owner", "has 65 bytes"},
		"space in owner": {func(r *lockstore.Request) { r.Owner = "a b" }, "Owner", "byte at 1 that is not printable ASCII"},
		"é in owner":     {func(r *lockstore.Request) { r.Owner = "é" }, "Owner", "byte at 0"},
		"MaxHolders -1":  {func(r *lockstore.Request) { r.MaxHolders = -1 }, "MaxHolders", "is -1; want 1 to 32"},
		"MaxHolders 33":  {func(r *lockstore.Request) { r.MaxHolders = 33 }, "MaxHolders", "is 33; want 1 to 32"},
		"no TTL":         {func(r *lockstore.Request) { r.TTL = 0 }, "TTL", "is 0s"},

		"parked for less than a turn":        {parked(func(r *lockstore.Request) { r.Parked = lockstore.TurnTime - 1 }), "Parked", "is 1.999999999s; want 2s to 30s"},
		"parked for more than MaxParkedTurn": {parked(func(r *lockstore.Request) { r.Parked = lockstore.MaxParkedTurn + 1 }), "Parked", "is 30.000000001s; want"},
		"parked for less than 0":             {parked(func(r *lockstore.Request) { r.Parked = -1 }), "Parked", "is -1ns; want"},
		"an address, and not parked":         {parked(func(r *lockstore.Request) { r.Parked = 0 }), "Parked", "is 0s; want"},
		"parked without JoinQueue":           {parked(func(r *lockstore.Request) { r.JoinQueue = false }), "Parked", "without JoinQueue"},
		"parked without an address":          {parked(func(r *lockstore.Request) { r.Address = "" }), "Address", "of no kind"},
		"an address of another kind":         {parked(func(r *lockstore.Request) { r.Address = "https://secret" }), "Address", "of no kind"},
		"an address without a token":         {parked(func(r *lockstore.Request) { r.Address = lockstore.TaskToken("") }), "Address", "0 bytes"},
		"an address that is too long":        {parked(func(r *lockstore.Request) { r.Address = lockstore.TaskToken(strings.Repeat("secret", 342)) }), "Address", "2052 bytes"},
		"a space in an address":              {parked(func(r *lockstore.Request) { r.Address = lockstore.TaskToken("a secret") }), "Address", "byte at 1 "},
		"an address that is not ASCII":       {parked(func(r *lockstore.Request) { r.Address = lockstore.TaskToken("secreté") }), "Address", "byte at 6 "},
		"a control character in an address":  {parked(func(r *lockstore.Request) { r.Address = lockstore.TaskToken("secret\n") }), "Address", "byte at 6 "},
	} {
		t.Run("F48 "+name, func(t *testing.T) {
			r := good
			tc.change(&r)
			err := r.Validate()
			requireInvalid(t, err, tc.field)
			assert.ErrorContains(t, err, tc.says)
			assert.NotContains(t, err.Error(), string(good.Owner))
			assert.NotContains(t, strings.ReplaceAll(err.Error(), "it is a secret", ""), "secret")
		})
	}
}
