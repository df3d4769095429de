package redisstore

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only the error of a request that was never written has the advice about TLS. If the
// connection ends after the request, TLS is not the reason.
func TestAdviceForARequestThatWasNotWritten(t *testing.T) {
	s := &server{address: "cache:6379"}
	require.ErrorContains(t, s.outcome(acquireScript, "k", 0, io.EOF), "no connection to cache:6379 was ready; if this goes on, check the scheme: rediss://")
	require.NotContains(t, s.outcome(acquireScript, "k", written, io.EOF).Error(), "rediss://")
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
