package lockstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestHeldError(t *testing.T) {
	held := &lockstore.HeldError{
		Key:       "account/7",
		Holder:    lockstore.HolderInfo{Name: "withdraw", ID: "8f50"},
		Remaining: 30 * time.Second,
	}
	assert.EqualError(t, held, `lock "account/7" is held by withdraw (8f50), for at most 30s more`)

	wrapped := fmt.Errorf("guard: %w", held)
	require.ErrorIs(t, wrapped, lockstore.ErrHeld)
	var found *lockstore.HeldError
	require.ErrorAs(t, wrapped, &found)
	assert.Same(t, held, found)
	for _, other := range []error{lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable} {
		assert.NotErrorIs(t, wrapped, other)
	}
}

func TestHeldErrorIsOneCleanLine(t *testing.T) {
	held := &lockstore.HeldError{Key: "a\nb\x1b[31m", Holder: lockstore.DecodeHolderInfo("a\nb\x1b[31m")}
	assert.NotContains(t, held.Error(), "\n")
	assert.NotContains(t, held.Error(), "\x1b")
}

func TestInvalidf(t *testing.T) {
	cause := errors.New("no number")
	err := lockstore.Invalidf("mystore: the port is %q: %w", "x", cause)
	require.EqualError(t, err, `mystore: the port is "x": no number`)
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, lockstore.ErrCorrupt)
}

func TestNoErrorMatchesASecondOne(t *testing.T) {
	all := []error{lockstore.ErrHeld, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable}
	for i, one := range all {
		for j, two := range all {
			assert.Equal(t, i == j, errors.Is(one, two), "%v, %v", one, two)
		}
	}
}
