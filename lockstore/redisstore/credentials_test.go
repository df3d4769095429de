package redisstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The client asks for the password when it makes a connection.
func TestClientWithCredentials(t *testing.T) {
	addr := testservers.Redis(t)
	admin := openClient(t, "redis://"+addr)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locks", "on", ">token-1", "~lambdalock:*",
		"+evalsha", "+eval", "+get", "+set", "+setrange", "+pexpire", "+time").Err())

	asked, password := 0, "token-1"
	client, err := ClientWithCredentials(config(t, "redis://ignored:ignored@"+addr), func(context.Context) (string, string, error) {
		asked++
		return "locks", password, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	store := storeOn(t, client)
	cycle := func() error {
		lease, err := store.Acquire(t.Context(), newRequest("k"))
		if err != nil {
			return err
		}
		return store.Release(t.Context(), lease)
	}
	require.NoError(t, cycle())
	require.NoError(t, cycle())
	require.Equal(t, 1, asked, "once for each connection")

	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locks", "resetpass", ">token-2").Err())
	require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "USER", "locks").Err())
	require.Eventually(t, func() bool { return cycle() != nil }, 5*time.Second, 10*time.Millisecond)
	err = cycle()
	require.ErrorIs(t, err, lockstore.ErrUnavailable, "F71 a refused token is neither a lock nor busy")
	password = "token-2"
	require.Eventually(t, func() bool { return cycle() == nil }, 5*time.Second, 10*time.Millisecond)
}

// A credentials function can limit its own time, sees its caller's deadline and values, and
// ends with its caller.
func TestCredentialsHaveTheCallersContext(t *testing.T) {
	type name struct{}
	for limit, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), name{}, "the caller"), 3*time.Second)
			defer cancel()
			m := newMini(t)
			s := storeOn(t, openWith(t, mini, func(opt *redis.UniversalOptions) {
				dials(m)(opt)
				opt.CredentialsProviderContext = func(got context.Context) (string, string, error) {
					want, _ := ctx.Deadline()
					deadline, _ := got.Deadline()
					require.True(t, want.Equal(deadline), "%v, %v", want, deadline)
					require.Equal(t, "the caller", got.Value(name{}))
					own, cancel := context.WithTimeout(got, limit)
					defer cancel()
					<-own.Done() // a service that hangs
					return "", "", own.Err()
				}
			}))
			began := time.Now()
			_, err := s.Acquire(ctx, newRequest("k"))
			require.ErrorIs(t, err, lockstore.ErrUnavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, want, time.Since(began))
		})
	}
}

// lateHook keeps the context of a command after the store's call has returned.
type lateHook struct {
	hook // has the other methods
	call *callContext
}

func (h *lateHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.call = ctx.Value(callKey{}).(*callContext)
		return next(ctx, cmd)
	}
}

// After a call nothing of it stays in memory, and a hook that goes on can limit its time: the context has the caller's deadline.
func TestAHookThatGoesOnAfterTheCall(t *testing.T) {
	s, _, _ := stillStore(t)
	h := &lateHook{}
	driverOf(s).client.AddHook(h)
	_, err := s.Inspect(context.Background(), "k")
	require.NoError(t, err)
	_, limited := h.call.Deadline()
	require.False(t, limited)
	calls.Lock()
	defer calls.Unlock()
	for _, call := range calls.by {
		require.NotSame(t, h.call, call)
	}
}
