package casstore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// contended is a KV that writes nothing until a time, because others are quicker, or because it does not answer.
type contended struct {
	*remote
	until  time.Time
	silent bool
}

func (c *contended) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	switch {
	case time.Now().After(c.until):
		return c.remote.Write(ctx, key, value, ifVersion)
	case c.silent:
		<-ctx.Done()
		return casstore.Entry{}, ctx.Err()
	}
	c.half()
	return casstore.Entry{}, casstore.ErrConflict
}

// A release that meets others for 3 s is done then. One that gets no answer ends after a second.
func TestContendedRelease(t *testing.T) {
	for name, silent := range map[string]bool{"F57 conflicts for 3 s": false, "F28 no answer for 3 s": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kv := &contended{remote: newRemote(5 * time.Millisecond), silent: silent}
				g, err := guard.New(open(t, kv), guard.Options{Observe: func(_ context.Context, r guard.Report) {
					if assert.Equal(t, guard.OutcomeOK, r.Outcome); silent {
						assert.Error(t, r.ReleaseErr)
					} else {
						assert.NoError(t, r.ReleaseErr)
					}
				}})
				require.NoError(t, err)
				var began time.Time
				require.NoError(t, g.WithMaxHolders(2).Do(t.Context(), "k", func(context.Context, guard.Lock) error {
					began = time.Now()
					kv.until = began.Add(3 * time.Second)
					return nil
				}))
				if silent {
					require.InDelta(t, time.Second, time.Since(began), float64(50*time.Millisecond))
				} else {
					require.InDelta(t, 3500*time.Millisecond, time.Since(began), float64(500*time.Millisecond))
				}
			})
		})
	}
}
