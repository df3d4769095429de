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

// "An IAM authenticated connection will automatically be disconnected after 12 hours" (Amazon ElastiCache, Authenticating
// with IAM): the client ends each one long before.
func TestConnectionsWithCredentialsEnd(t *testing.T) {
	client, err := ClientWithCredentials(config(t, "rediss://host"), func(context.Context) (string, string, error) { return "", "", nil })
	require.NoError(t, err)
	defer client.Close()
	lifetime := client.(*redis.Client).Options().ConnMaxLifetime
	require.Positive(t, lifetime)
	require.LessOrEqual(t, lifetime, 6*time.Hour)
}

// A credentials function can limit its own time, sees its caller's deadline and values, and
// ends with its caller.
func TestCredentialsHaveTheCallersContext(t *testing.T) {
	type name struct{}
	for what, c := range map[string]struct {
		caller, own, want time.Duration
		cause             error
	}{
		"its own limit ends first": {time.Minute, 5 * time.Second, 5 * time.Second, context.DeadlineExceeded},
		"no deadline of a caller":  {0, time.Second, time.Second, context.DeadlineExceeded},
		"the caller's deadline":    {3 * time.Second, time.Hour, 3 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.WithValue(t.Context(), name{}, "the caller")
				if c.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.caller)
					defer cancel()
				}
				m := newMini(t)
				credentials := func(got context.Context) (string, string, error) {
					want, has := ctx.Deadline()
					deadline, ok := got.Deadline()
					require.Equal(t, has, ok)
					require.True(t, want.Equal(deadline), "%v, %v", want, deadline)
					require.Equal(t, "the caller", got.Value(name{}))
					own, cancel := context.WithTimeout(got, c.own)
					defer cancel()
					select {
					case <-own.Done():
					case <-time.After(time.Minute): // a service that hangs
					}
					return "", "", own.Err()
				}
				s := storeOn(t, openWith(t, mini, func(opt *redis.UniversalOptions) {
					dials(m)(opt)
					opt.CredentialsProviderContext = credentials
				}))
				began := time.Now()
				_, err := s.Acquire(ctx, newRequest("k"))
				require.ErrorIs(t, err, lockstore.ErrUnavailable)
				require.ErrorIs(t, err, c.cause)
				require.Equal(t, c.want, time.Since(began))
			})
		})
	}
}

// lateHook uses the context of a command after the store's call has returned.
type lateHook struct {
	hook    // has the other methods
	returns chan struct{}
	limits  chan time.Duration
	call    *callContext
}

func (h *lateHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.call = ctx.Value(callKey{}).(*callContext)
		go func() {
			<-h.returns
			began := time.Now()
			limited, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			select {
			case <-limited.Done():
			case <-time.After(time.Minute):
			}
			h.limits <- time.Since(began)
		}()
		return next(ctx, cmd)
	}
}

// After a call nothing of it stays in memory, and a hook that goes on can limit its time.
func TestAHookThatGoesOnAfterTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openMini(t).Store
		h := &lateHook{returns: make(chan struct{}), limits: make(chan time.Duration)}
		driverOf(s).client.AddHook(h)
		_, err := s.Inspect(t.Context(), "k")
		require.NoError(t, err)
		close(h.returns)
		require.Equal(t, 5*time.Second, <-h.limits)
		calls.Lock()
		defer calls.Unlock()
		for _, call := range calls.by {
			require.NotSame(t, h.call, call)
		}
	})
}
