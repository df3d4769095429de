package datastore

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/lambdalock/lambdalock/lockstore"
)

func request() lockstore.Request {
	return lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: 10 * time.Second, HolderInfo: lockstore.HolderInfo{Name: "test"}}
}

// unknown says that an error has no class.
func unknown(t *testing.T, err error) {
	t.Helper()
	assert.Error(t, err)
	for _, class := range []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable} {
		assert.NotErrorIs(t, err, class)
	}
}

func TestFaults(t *testing.T) {
	run := func(name string, do func(t *testing.T, f *fake, s *lockstore.Store)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				do(t, f, store(t, onFake(t, f)))
			})
		})
	}
	for status, want := range map[string]struct{ read, write error }{
		"PERMISSION_DENIED":   {lockstore.ErrUnavailable, lockstore.ErrUnavailable},
		"UNAUTHENTICATED":     {lockstore.ErrUnavailable, lockstore.ErrUnavailable},
		"RESOURCE_EXHAUSTED":  {lockstore.ErrUnavailable, lockstore.ErrUnavailable},
		"NOT_FOUND":           {lockstore.ErrCorrupt, nil}, // of a write: a conflict
		"FAILED_PRECONDITION": {lockstore.ErrCorrupt, nil},
		"INVALID_ARGUMENT":    {lockstore.ErrCorrupt, lockstore.ErrCorrupt},
		"ABORTED":             {lockstore.ErrUnavailable, nil},
		"UNAVAILABLE":         {lockstore.ErrUnavailable, nil},
		"DEADLINE_EXCEEDED":   {lockstore.ErrUnavailable, nil},
		"INTERNAL":            {lockstore.ErrUnavailable, nil},
	} {
		run("the answer to everything is "+status, func(t *testing.T, f *fake, s *lockstore.Store) {
			lease, err := s.Acquire(t.Context(), request())
			require.NoError(t, err)
			f.set(answers, status)
			_, err = s.Acquire(t.Context(), request())
			assert.ErrorIs(t, err, want.read)
			assert.ErrorContains(t, err, status)
			err = s.Release(t.Context(), lease) // begins with a write
			if want.write == nil {
				unknown(t, err)
			} else {
				assert.ErrorIs(t, err, want.write)
			}
		})
	}
}

// The service refuses a token that has not expired, for example because somebody has revoked it.
func TestRefusedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		k := onFake(t, f)
		asked := 0
		k.token = takingTurns(func() (*google.Credentials, error) {
			asked++
			token := &oauth2.Token{AccessToken: fmt.Sprint("token ", asked), Expiry: time.Now().Add(time.Hour)}
			return &google.Credentials{TokenSource: oauth2.StaticTokenSource(token)}, nil
		})
		s := store(t, k)
		acquire := func() error {
			_, err := s.Acquire(t.Context(), request())
			return err
		}
		require.NoError(t, acquire())
		f.set(answers, "PERMISSION_DENIED")
		require.ErrorIs(t, acquire(), lockstore.ErrUnavailable)
		require.Equal(t, 1, asked)
		f.set(answers, "UNAUTHENTICATED")
		require.ErrorIs(t, acquire(), lockstore.ErrUnavailable)
		f.set(works, "")
		require.ErrorIs(t, acquire(), lockstore.ErrRefused)
		require.Equal(t, 2, asked)
		require.ErrorIs(t, acquire(), lockstore.ErrRefused)
		require.Equal(t, 2, asked)
	})
}

// No text shows the token, the owner or what another server has quoted.
func TestNothingShowsASecret(t *testing.T) {
	const secret = "hunter2hunter2hunter2"
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		k := onFake(t, f)
		k.token = func(context.Context, string) (string, error) { return secret, nil }
		s := store(t, k)
		req := request()
		shown := ""
		show := func(v any) { shown += fmt.Sprintf("%v %+v %#v %q\n", v, v, v, fmt.Sprint(v)) }
		lease, err := s.Acquire(t.Context(), req)
		require.NoError(t, err)
		for _, kind := range []fault{quotes, talks, refuses, loseReply, hangs} {
			f.set(kind, "")
			k.client.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			other := request()
			other.Key = "other"
			_, err := s.Acquire(ctx, other)
			show(err)
			show(s.Release(ctx, lease))
			show(s.Leave(ctx, "k", req.Owner))
			_, err = s.Inspect(ctx, "k")
			show(err)
			cancel()
		}
		show(struct{ Inside any }{s})
		require.Contains(t, shown, "HTTP 418")
		require.Contains(t, shown, "the answer is not HTTP")
		require.NotContains(t, shown, secret)
		require.NotContains(t, shown, string(req.Owner))
	})
}
