package lanes

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1)
		require.NoError(t, l.Enter(t.Context(), From(t.Context())))
		var mu sync.Mutex
		var order []string
		add := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
		}
		enter := func(ctx context.Context, name string, r driver.Request) {
			synctest.Wait() // the one before waits
			go func() {
				if err := l.Enter(ctx, From(With(ctx, r))); err != nil {
					require.ErrorIs(t, err, lockstore.ErrUnavailable)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					add(name + " left")
					return
				}
				add(name)
				<-time.After(time.Second)
				l.Leave()
			}()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		enter(t.Context(), "look", driver.Request{Kind: driver.Inspect})
		enter(t.Context(), "ask", driver.Request{Kind: driver.Acquire})
		enter(short, "short", driver.Request{Kind: driver.Acquire})
		enter(t.Context(), "wait", driver.Request{Kind: driver.AwaitTurn})
		enter(t.Context(), "leave", driver.Request{Kind: driver.Leave})
		enter(t.Context(), "abandon", driver.Request{Kind: driver.Abandon})
		enter(t.Context(), "renew", driver.Request{Kind: driver.Renew})
		enter(t.Context(), "extend", driver.Request{Kind: driver.Acquire, Fence: 1})
		enter(t.Context(), "release", driver.Request{Kind: driver.Release})
		<-time.After(time.Second)
		l.Leave()
		<-time.After(time.Minute)
		synctest.Wait() // all have ended
		mu.Lock()
		defer mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Equal(t, []string{"short left", "renew", "extend", "release", "leave", "abandon", "ask", "wait", "look"}, order)
		require.Equal(t, 1, l.room)

		var none *Lanes
		require.NoError(t, none.Enter(t.Context(), Holds))
		none.Leave()
	})
}
