package casstore_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
)

// counted is a KV that counts requests.
type counted struct {
	*castest.Memory
	reads, fresh, writes int
}

func (c *counted) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	if c.reads++; fresh {
		c.reads, c.fresh = c.reads-1, c.fresh+1
	}
	return c.Memory.Read(ctx, key, fresh)
}

func (c *counted) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	c.writes++
	return c.Memory.Write(ctx, key, value, ifVersion)
}

func tries(ctx context.Context, s *lockstore.Store, req lockstore.Request) error {
	_, err := s.Acquire(ctx, req)
	return err
}

// What each call costs: reads, fresh reads and writes.
func TestRequests(t *testing.T) {
	const key, ttl = "k", 10 * time.Second
	var k *counted
	var lease lockstore.Lease
	var repeat, queued lockstore.Request
	acquire := func(ctx context.Context, s *lockstore.Store) (err error) {
		lease, err = s.Acquire(ctx, request(ttl))
		return err
	}
	ask := func(ctx context.Context, s *lockstore.Store) error { return tries(ctx, s, request(ttl)) }
	askQueued := func(ctx context.Context, s *lockstore.Store) error { return tries(ctx, s, queued) }
	revokes := func(now bool) func(context.Context, *lockstore.Store) error {
		return func(ctx context.Context, s *lockstore.Store) error {
			_, err := s.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: lease.Fence, OpenAtOnce: now})
			return err
		}
	}
	renew := func(ctx context.Context, s *lockstore.Store) error { _, err := s.Renew(ctx, lease, ttl); return err }
	release := func(ctx context.Context, s *lockstore.Store) error { return s.Release(ctx, lease) }
	start := func(ctx context.Context, s *lockstore.Store) error { return s.MarkStarted(ctx, lease) }
	complete := func(ctx context.Context, s *lockstore.Store) error {
		return s.Complete(ctx, lease, []byte("x"), time.Second)
	}
	resolve := func(ctx context.Context, s *lockstore.Store) error { return s.ResolveNoEffect(ctx, key, lease.Fence) }
	leave := func(ctx context.Context, s *lockstore.Store) error { return s.Leave(ctx, key, queued.Owner) }
	// event is an Acquire of another key for an event, which coalesces.
	event := func(id string) func(context.Context, *lockstore.Store) error {
		return func(ctx context.Context, s *lockstore.Store) error {
			req := request(ttl)
			req.Key, req.JoinQueue, req.Work, req.Event = "of events", true, "index", id
			return tries(ctx, s, req)
		}
	}
	expire := func(context.Context, *lockstore.Store) error { <-time.After(ttl + time.Second); return nil }
	steps := []struct {
		what       string
		do         func(context.Context, *lockstore.Store) error
		own, again string // by the process of the requests before, and by another one
	}{
		{"Acquire of a new key", func(ctx context.Context, s *lockstore.Store) (err error) {
			repeat, queued = request(ttl), request(ttl)
			queued.JoinQueue = true
			lease, err = s.Acquire(ctx, repeat)
			return err
		}, "1+0+1", "1+0+1"},
		{"a refusal", ask, "1+0+0", "1+0+0"},
		{"a place", askQueued, "0+0+1", "1+0+1"},
		{"a refusal with a place", askQueued, "1+0+0", "1+0+0"},
		{"Acquire again", func(ctx context.Context, s *lockstore.Store) error { return tries(ctx, s, repeat) }, "1+0+1", "1+0+1"},
		{"Renew while somebody waits", renew, "1+0+1", "1+0+1"},
		{"Leave", leave, "0+1+1", "0+1+1"},
		{"Inspect", func(ctx context.Context, s *lockstore.Store) error { _, err := s.Inspect(ctx, key); return err }, "0+1+0", "0+1+0"},
		{"an abandon", func(ctx context.Context, s *lockstore.Store) error {
			return s.Abandon(ctx, key, lockstore.NewOwner())
		}, "1+0+1", "1+0+1"},
		{"Release", release, "0+0+1", "1+0+1"},
		{"Renew of a lost lease", renew, "1+1+0", "1+1+0"},
		{"Acquire of a released key", acquire, "0+0+1", "1+0+1"},
		{"MarkStarted", start, "0+0+1", "1+0+1"},
		{"Revoke of started work", revokes(true), "0+1+0", "0+1+0"},
		{"Complete", complete, "0+0+1", "1+0+1"},
		{"Acquire of a completed key", ask, "1+0+0", "1+0+0"},
		{"", expire, "0+0+0", "0+0+0"},
		{"Acquire after a cooldown", acquire, "1+0+2", "1+0+2"},
		{"", expire, "0+0+0", "0+0+0"},
		{"a takeover", acquire, "1+0+2", "1+0+2"},
		{"", expire, "0+0+0", "0+0+0"},
		{"Renew of an expired lease", renew, "1+0+1", "1+0+1"},
		{"Release of an expired lease", release, "0+0+1", "1+0+1"},
		{"", acquire, "0+0+1", "1+0+1"},
		{"", start, "0+0+1", "1+0+1"},
		{"ResolveNoEffect of a live lease", resolve, "0+1+0", "0+1+0"},
		{"", expire, "0+0+0", "0+0+0"},
		{"Acquire of a key in doubt", ask, "1+0+1", "1+0+1"},
		{"ResolveNoEffect", resolve, "0+1+2", "0+1+2"},
		{"", acquire, "0+0+1", "1+0+1"},
		{"Revoke", revokes(false), "0+1+1", "0+1+1"},
		{"Revoke at once", revokes(true), "0+1+1", "0+1+1"},
		{"", acquire, "0+0+1", "1+0+1"},
		{"", release, "0+0+1", "1+0+1"},
		{"", func(ctx context.Context, _ *lockstore.Store) error {
			return acquire(ctx, open(t, k))
		}, "0+1+1", "0+1+1"},
		{"a refusal, when another process has taken the key", ask, "0+1+1", "1+0+0"},
		{"", func(ctx context.Context, s *lockstore.Store) error {
			queued.Owner = lockstore.NewOwner()
			return tries(ctx, s, queued)
		}, "1+0+1", "1+0+1"},
		{"Release with a hand-over", release, "1+0+1", "1+0+1"},
		{"Leave by who was handed the key", leave, "0+1+0", "0+1+0"},
		{"Acquire by who was handed the key", askQueued, "0+0+1", "1+0+1"},
		{"Acquire of a new key for an event", event("1"), "1+0+1", "1+0+1"},
		{"a place of an event", event("2"), "0+0+1", "1+0+1"},
		{"a covered event", event("3"), "1+1+0", "1+1+0"},
	}
	for _, process := range []string{"the same process", "another process", "a new process"} {
		t.Run(process, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k = &counted{Memory: castest.NewMemory(time.Millisecond)}
				s := open(t, k)
				_, _ = s.Inspect(t.Context(), "another key")
				for _, step := range steps {
					want := step.own
					if process != "the same process" {
						want, s = step.again, open(t, k)
					}
					if process == "another process" { // which knows the service's time
						_, _ = s.Inspect(t.Context(), "another key")
					}
					k.reads, k.fresh, k.writes = 0, 0, 0
					_ = step.do(t.Context(), s)
					got := fmt.Sprintf("%d+%d+%d", k.reads, k.fresh, k.writes)
					if process == "a new process" { // its first read is a fresh one
						assert.LessOrEqual(t, k.reads+k.fresh, 1, step.what)
						assert.Zero(t, k.reads, step.what)
						got = fmt.Sprint(k.writes)
						want = want[len(want)-1:]
					}
					assert.Equal(t, want, got, step.what)
				}
			})
		})
	}
}
