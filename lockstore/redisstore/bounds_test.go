package redisstore

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestTheFirstDatabaseMayBeNamed(t *testing.T) {
	_, err := options(config(t, "redis://127.0.0.1/0"))
	require.NoError(t, err)
	_, err = options(config(t, "redis://127.0.0.1/-1"))
	require.ErrorIs(t, err, lockstore.ErrInvalid)
}

// Only a request that was never written gets the advice about TLS: the end of a
// connection behind a request says nothing about TLS.
func TestAdviceForWhatWasNotWritten(t *testing.T) {
	require.ErrorContains(t, outcome("k", 0, io.EOF), "rediss://")
	require.NotContains(t, outcome("k", written, io.EOF).Error(), "rediss://")
}

func TestForeignEntryWithAndWithoutAnAnswer(t *testing.T) {
	cause := errors.New("WRONGTYPE")
	require.ErrorIs(t, errForeign("k", cause), cause)
	require.ErrorContains(t, errForeign("k", nil), "is damaged")
}

// A call that returns leaves its connection to the next one, whether it had one or not.
func TestAReturnedCallHasNoConnection(t *testing.T) {
	var without, first, next callContext
	stop := without.begin(t.Context())
	without.forget()
	require.True(t, stop())

	used := &conn{}
	first.conn.Store(used)
	used.user = &next
	first.forget()
	require.Same(t, &next, used.user, "the connection is another call's by now")
	used.user = &first
	first.forget()
	require.Nil(t, used.user)
}
