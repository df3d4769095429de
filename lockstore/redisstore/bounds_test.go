package redisstore

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestDatabaseZeroIsAllowed(t *testing.T) {
	_, err := options(config(t, "redis://127.0.0.1/0"))
	require.NoError(t, err)
	_, err = options(config(t, "redis://127.0.0.1/-1"))
	require.ErrorIs(t, err, lockstore.ErrInvalid)
}

// Only the error of a request that was never written has the advice about TLS. If the
// connection ends after the request, TLS is not the reason.
func TestAdviceForARequestThatWasNotWritten(t *testing.T) {
	s := &server{address: "cache:6379"}
	require.ErrorContains(t, s.outcome(acquireScript, "k", 0, io.EOF), "no connection to cache:6379 was ready; if this goes on, check the scheme: rediss://")
	require.NotContains(t, s.outcome(acquireScript, "k", written, io.EOF).Error(), "rediss://")
}

func TestForeignEntryWithAndWithoutAnAnswer(t *testing.T) {
	cause := errors.New("WRONGTYPE")
	require.ErrorIs(t, errForeign("k", cause), cause)
	require.ErrorContains(t, errForeign("k", nil), "is damaged")
}

// A call that has returned does not change the connection of the next call.
func TestAReturnedCallHasNoConnection(t *testing.T) {
	var without, first, next callContext
	stop := without.begin(t.Context())
	without.forget()
	require.True(t, stop())

	used := &conn{}
	first.conn.Store(used)
	used.user = &next
	first.forget()
	require.Same(t, &next, used.user, "another call uses the connection now")
	used.user = &first
	first.forget()
	require.Nil(t, used.user)
}
