package operate

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// hands is the driver of a store that hands a key over to two parked owners, and has the addresses of neither.
type hands struct{ driver.Driver }

func (hands) Do(context.Context, string, driver.Request) (driver.Answer, error) {
	return driver.Answer{Outcome: driver.Done, Wake: []driver.Owner{"p", "q"}}, nil
}

// Two owners are not woken at the same time: each has its line.
func TestTwoOwnersAreNotWoken(t *testing.T) {
	var said bytes.Buffer
	o := operator{err: &said}
	require.NoError(t, o.waking(lockstore.New("hands", hands{})).Release(t.Context(), lockstore.Lease{Key: "k", Owner: "o", Fence: 7}))
	assert.Equal(t, 2, strings.Count(said.String(), "lockctl: warning: a parked run has to ask for the key again, and was not woken: "), said.String())
}
