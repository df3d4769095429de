package castest

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// skewed is a KV whose answers a case changes. nil changes nothing.
type skewed struct {
	casstore.KV
	afterRead  func(e casstore.Entry, now time.Time, fresh bool) (casstore.Entry, time.Time, error)
	afterWrite func(e casstore.Entry, ifVersion string) (casstore.Entry, error)
}

func (s *skewed) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	e, now, err := s.KV.Read(ctx, key, fresh)
	if err != nil || s.afterRead == nil {
		return e, now, err
	}
	return s.afterRead(e, now, fresh)
}

func (s *skewed) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	e, err := s.KV.Write(ctx, key, value, ifVersion)
	if err != nil || s.afterWrite == nil {
		return e, err
	}
	return s.afterWrite(e, ifVersion)
}

// store is a new process's store over the KV.
func (c *check) store() *lockstore.Store { return c.over(c.kv) }

func (c *check) over(r casstore.KV) *lockstore.Store {
	c.Helper()
	s, err := casstore.New(r, casstore.Options{})
	if err != nil {
		c.Fatal(err)
	}
	return s
}

const (
	long  = 10 * time.Minute
	short = lockstore.MinTTL
)

func (c *check) request(ttl time.Duration) lockstore.Request {
	return lockstore.Request{Key: c.key, Owner: lockstore.NewOwner(), TTL: ttl, JoinQueue: false}
}

func (c *check) acquire(s *lockstore.Store, ttl time.Duration) lockstore.Lease {
	c.Helper()
	lease, err := s.Acquire(c.Context(), c.request(ttl))
	if err != nil {
		c.Fatalf("Acquire: %v; want a lease", err)
	}
	return lease
}

// anew deletes the entry of the key, and acquires the key. For a moment an old read may still
// show the entry, and a refusal may be based on any read.
func (c *check) anew(s *lockstore.Store, ttl time.Duration) lockstore.Lease {
	c.Helper()
	c.table.SetValue(c.T, c.key, nil)
	for n := 0; ; n++ {
		lease, err := s.Acquire(c.Context(), c.request(ttl))
		if err == nil {
			return lease
		}
		if n == 100 || !errors.Is(err, lockstore.ErrRefused) {
			c.Fatalf("Acquire of a deleted key: %v; want a lease", err)
		}
		c.sleep(20 * time.Millisecond)
	}
}

func (c *check) renew(s *lockstore.Store, lease lockstore.Lease, ttl time.Duration) time.Duration {
	c.Helper()
	renewed, err := s.Renew(c.Context(), lease, ttl)
	if err != nil {
		c.Fatalf("Renew: %v; want the lease to last", err)
	}
	return renewed.TTL
}

func (c *check) release(s *lockstore.Store, lease lockstore.Lease) {
	c.Helper()
	if err := s.Release(c.Context(), lease); err != nil {
		c.Fatalf("Release: %v; want nil", err)
	}
}

// join takes a place in the queue, behind a lease of ttl that began at began or later. In the second half
// of a lease a slow joiner gets no place, and a busy machine may be that slow.
func (c *check) join(s *lockstore.Store, began time.Time, ttl time.Duration) lockstore.Request {
	c.Helper()
	req := c.request(long)
	req.JoinQueue = true
	_, err := s.Acquire(c.Context(), req)
	var refused *lockstore.Refused
	if !errors.As(err, &refused) || refused.QueuePosition == 0 {
		if refused != nil && time.Since(began) > ttl/2 {
			c.Skip("the machine was too slow for a place")
		}
		c.Fatalf("Acquire with JoinQueue: %v; want a place", err)
	}
	return req
}

// refused wants an acquire by a new owner refused.
func (c *check) refused(s *lockstore.Store, why string) {
	c.Helper()
	lease, err := s.Acquire(c.Context(), c.request(long))
	if err == nil {
		c.Fatalf("granted with fence %d; want it refused: %s", lease.Fence, why)
	}
	if !errors.Is(err, lockstore.ErrRefused) {
		c.Fatalf("Acquire: %v; want it refused: %s", err, why)
	}
}

// free wants an acquire by a new owner granted.
func (c *check) free(s *lockstore.Store, why string) lockstore.Lease {
	c.Helper()
	lease, err := s.Acquire(c.Context(), c.request(long))
	if err != nil {
		c.Fatalf("Acquire: %v; want a lease: %s", err, why)
	}
	return lease
}

// revokes makes an operator's Revoke.
func (c *check) revokes(s *lockstore.Store, lease lockstore.Lease, now bool) (lockstore.Status, error) {
	return s.Revoke(c.Context(), lockstore.RevokeRequest{Key: c.key, Fence: lease.Fence, By: lockstore.HolderInfo{Name: "an operator"}, OpenAtOnce: now})
}

// takeover is how long a case waits for the end of a lease of ttl that was just granted.
func (c *check) takeover(ttl time.Duration) time.Duration {
	return ttl + 2*c.kv.ClockResolution() + 100*time.Millisecond
}

var storeCases = []testCase{
	{
		"store/a renewal begins anew, whatever a joiner has copied",
		"A joiner's write keeps the beginning of the lease. A renewal that keeps it too does not make the lease longer, and the holder trusts it for longer.",
		func(c *check) {
			s, began := c.store(), time.Now()
			lease := c.acquire(s, 4*short)
			c.sleep(short)
			joined := c.join(c.store(), began, 4*short) // the first in the queue, whose turn it is
			sent := time.Now()
			if sent.Sub(began) > 3*short {
				return // on a busy machine the lease may be over
			}
			trusted := c.renew(s, lease, 4*short)
			c.sleep(trusted - time.Since(sent) - 100*time.Millisecond)
			for _, other := range []*lockstore.Store{c.store(), c.over(&skewed{KV: c.kv, afterRead: ahead(time.Hour)})} {
				_, err := other.Acquire(c.Context(), joined)
				if err == nil && time.Since(sent) < trusted { // a busy machine may be too late
					c.Fatal("granted while the holder trusts its lease")
				}
			}
		},
	},
	{
		"store/a joiner's write does not make a lease longer",
		"Owners that wait would keep a dead holder's lease alive.",
		func(c *check) {
			ttl := 3*short + 4*c.kv.ClockResolution()
			asked := time.Now()
			c.acquire(c.store(), ttl)
			began := time.Now()
			first := c.join(c.store(), asked, ttl)
			for range 3 { // more joiners write; a late one may get no place
				c.sleep(short / 10)
				req := c.request(long)
				req.JoinQueue = true
				_, err := c.store().Acquire(c.Context(), req)
				if err == nil && time.Since(began) < ttl {
					c.Error("granted, though another has the key")
				}
			}
			c.sleep(c.takeover(ttl) - time.Since(began))
			if _, err := c.store().Acquire(c.Context(), first); err != nil {
				c.Errorf("Acquire by the first in the queue after the end: %v; want a lease", err)
			}
		},
	},
	{
		"store/believed times are wrong by an hour",
		"The time of a read is a hint. It grants nothing, ends nothing, and nobody is told that a live lease is lost.",
		func(c *check) {
			for _, d := range []time.Duration{time.Hour, -time.Hour} {
				s, wrong := c.store(), c.over(&skewed{KV: c.kv, afterRead: ahead(d)})
				req := c.request(long)
				lease, err := s.Acquire(c.Context(), req)
				if err != nil {
					c.Fatal(err)
				}
				c.refused(wrong, "the lease is live")
				again, err := c.over(&skewed{KV: c.kv, afterRead: ahead(d)}).Acquire(c.Context(), req)
				if err != nil || again.Fence != lease.Fence || again.TTL > long {
					c.Errorf("Acquire again: %v %v; want the same lease for at most %v", again, err, long)
				}
				c.renew(c.over(&skewed{KV: c.kv, afterRead: ahead(d)}), lease, long)
				if err := s.MarkStarted(c.Context(), lease); err != nil {
					c.Fatal(err)
				}
				for name, err := range map[string]error{
					"ResolveEffect":   wrong.ResolveEffect(c.Context(), c.key, lease.Fence, nil, long),
					"ResolveNoEffect": wrong.ResolveNoEffect(c.Context(), c.key, lease.Fence),
				} {
					if !errors.Is(err, lockstore.ErrRefused) {
						c.Errorf("%s of a live lease: %v; want ErrRefused", name, err)
					}
				}
				c.release(wrong, lease)
			}
		},
	},
	{
		"store/an old read does not set the clock back",
		"A process that has not read an entry for long would believe that the lease has just begun, and wait for another TTL.",
		func(c *check) {
			waiter := c.store()
			if _, err := waiter.Inspect(c.Context(), c.key); err != nil { // it knows the time
				c.Fatal(err)
			}
			c.step()
			c.acquire(c.store(), short)
			c.sleep(c.takeover(short))
			c.free(waiter, "the lease is over")
		},
	},
	{
		"store/a conflict is the echo of one's own write",
		"A client that repeats a write by itself gets a conflict with its own first copy. The answer must be that of the write.",
		func(c *check) {
			for name, f := range map[string]func(s *lockstore.Store, lease lockstore.Lease) error{
				"Renew":       func(s *lockstore.Store, l lockstore.Lease) error { _, err := s.Renew(c.Context(), l, long); return err },
				"Release":     func(s *lockstore.Store, l lockstore.Lease) error { return s.Release(c.Context(), l) },
				"MarkStarted": func(s *lockstore.Store, l lockstore.Lease) error { return s.MarkStarted(c.Context(), l) },
				"Complete":    func(s *lockstore.Store, l lockstore.Lease) error { return s.Complete(c.Context(), l, nil, short) },
				"Abandon": func(s *lockstore.Store, l lockstore.Lease) error {
					return s.Release(c.Context(), lockstore.Lease{Key: l.Key, Owner: l.Owner})
				},
				"Revoke":         func(s *lockstore.Store, l lockstore.Lease) error { _, err := c.revokes(s, l, false); return err },
				"Revoke at once": func(s *lockstore.Store, l lockstore.Lease) error { _, err := c.revokes(s, l, true); return err },
			} {
				lease := c.anew(c.over(&skewed{KV: c.kv, afterWrite: echoes(1)}), long)
				if err := f(c.over(&skewed{KV: c.kv, afterWrite: echoes(1)}), lease); err != nil {
					c.Errorf("%s: %v; want nil", name, err)
				}
			}
			c.anew(c.store(), long)
			s := c.over(&skewed{KV: c.kv, afterWrite: echoes(1)})
			req := c.join(s, time.Now(), long)
			if status, err := s.Inspect(c.Context(), c.key); err != nil || status.Waiting != 1 {
				c.Errorf("after a join whose write was echoed: %+v %v; want one place", status, err)
			}
			if err := c.over(&skewed{KV: c.kv, afterWrite: echoes(1)}).Leave(c.Context(), c.key, req.Owner); err != nil {
				c.Errorf("Leave: %v; want nil", err)
			}
		},
	},
	{
		"store/after a conflict with its own write a plain read is old",
		"The caller would be told that another has the key, and it has it itself. Nobody would end this lease.",
		func(c *check) {
			other := c.store()
			lease := c.acquire(other, long)
			old, _ := c.read(true)
			c.release(other, lease)
			echoed := false
			s := c.over(&skewed{KV: c.kv,
				afterWrite: func(e casstore.Entry, _ string) (casstore.Entry, error) {
					if !echoed {
						echoed = true
						return casstore.Entry{}, casstore.ErrConflict
					}
					return e, nil
				},
				afterRead: func(e casstore.Entry, now time.Time, fresh bool) (casstore.Entry, time.Time, error) {
					if echoed && !fresh {
						return old, time.Time{}, nil
					}
					return e, now, nil
				}})
			c.free(s, "its first write has taken it")
		},
	},
	{
		"store/the first copy of a write was applied, and the entry has forgotten its owner",
		"More owners had the key since than the entry remembers. \"Lost\" would say that the release, or the result, came too late.",
		func(c *check) {
			for name, f := range map[string]func(*lockstore.Store, lockstore.Lease) error{
				"Release":  func(s *lockstore.Store, l lockstore.Lease) error { return s.Release(c.Context(), l) },
				"Complete": func(s *lockstore.Store, l lockstore.Lease) error { return s.Complete(c.Context(), l, nil, short) },
			} {
				lease := c.anew(c.store(), long)
				c.unknown(name, f(c.over(&skewed{KV: c.kv, afterWrite: func(casstore.Entry, string) (casstore.Entry, error) {
					if name == "Complete" {
						c.sleep(c.takeover(short))
					}
					others := c.store()
					for range 17 {
						c.release(others, c.free(others, "the write was applied"))
					}
					return casstore.Entry{}, casstore.ErrConflict
				}}), lease))
			}
		},
	},
	{
		"store/the first copy of a Revoke opened the key, and another has it",
		"The entry remembers that it was the Revoke. When it has forgotten that, nobody knows whether it was the Revoke or the holder that opened the key. \"Nothing was done\" would be a lie.",
		func(c *check) {
			for _, forgotten := range []bool{false, true} {
				lease := c.anew(c.store(), long)
				status, err := c.revokes(c.over(&skewed{KV: c.kv, afterWrite: func(casstore.Entry, string) (casstore.Entry, error) {
					others := c.store()
					for range 17 {
						if forgotten {
							c.release(others, c.free(others, "the write was applied"))
						}
					}
					c.free(others, "the write was applied")
					return casstore.Entry{}, casstore.ErrConflict
				}}), lease, true)
				switch {
				case forgotten:
					c.unknown("Revoke at once", err)
				case err != nil || status.State != lockstore.Held:
					c.Errorf("Revoke at once: %+v, %v; want the state after it, held by another", status, err)
				}
			}
		},
	},
	{
		"store/after a conflict the entry cannot be read",
		"The conflict may be the echo of one's own write, so the outcome is unknown. \"Not applied\" would be a lie.",
		func(c *check) {
			for name, f := range map[string]func(*lockstore.Store, lockstore.Lease) error{
				"Acquire": func(s *lockstore.Store, _ lockstore.Lease) error {
					req := c.request(long)
					req.Key += "/new"
					_, err := s.Acquire(c.Context(), req)
					return err
				},
				"Renew":   func(s *lockstore.Store, l lockstore.Lease) error { _, err := s.Renew(c.Context(), l, long); return err },
				"Release": func(s *lockstore.Store, l lockstore.Lease) error { return s.Release(c.Context(), l) },
			} {
				lease := c.anew(c.store(), long)
				unreadable := false
				s := c.over(&skewed{KV: c.kv,
					afterWrite: func(casstore.Entry, string) (casstore.Entry, error) {
						unreadable = true
						return casstore.Entry{}, casstore.ErrConflict
					},
					afterRead: func(e casstore.Entry, now time.Time, _ bool) (casstore.Entry, time.Time, error) {
						if unreadable {
							return casstore.Entry{}, time.Time{}, lockstore.ErrUnavailable
						}
						return e, now, nil
					}})
				c.unknown(name, f(s, lease))
			}
		},
	},
	{
		"store/a reply to a write has the old version or no time",
		"The store could not tell whether the service has written anything.",
		func(c *check) {
			lease := c.acquire(c.store(), long)
			for what, reply := range map[string]func(casstore.Entry, string) (casstore.Entry, error){
				"the old version": func(e casstore.Entry, old string) (casstore.Entry, error) { e.Version = old; return e, nil },
				"no version":      func(e casstore.Entry, _ string) (casstore.Entry, error) { e.Version = ""; return e, nil },
				"no time":         func(e casstore.Entry, _ string) (casstore.Entry, error) { e.WrittenAt = time.Time{}; return e, nil },
			} {
				_, err := c.over(&skewed{KV: c.kv, afterWrite: reply}).Renew(c.Context(), lease, long)
				c.unknown("Renew, when the reply has "+what, err)
			}
		},
	},
	{
		"store/plain reads are old",
		"Only a refusal may rest on an old read. A holder would be told that its lease is lost, and a lease would look free.",
		func(c *check) {
			s := c.store()
			old, _ := c.read(false) // no entry
			stale := func(e casstore.Entry) *lockstore.Store {
				s := c.over(&skewed{KV: c.kv, afterRead: func(now casstore.Entry, at time.Time, fresh bool) (casstore.Entry, time.Time, error) {
					if fresh {
						return now, at, nil
					}
					return e, time.Time{}, nil
				}})
				// The first read of a process is fresh, for the time.
				if _, err := s.Inspect(c.Context(), c.key+"/other"); err != nil {
					c.Fatal(err)
				}
				return s
			}
			lease := c.acquire(s, long)
			c.renew(stale(old), lease, long)
			if status, err := stale(old).Inspect(c.Context(), c.key); err != nil || status.State != lockstore.Held {
				c.Errorf("Inspect: %+v %v; want it held", status, err)
			}
			before, _ := c.read(false)
			req := c.join(c.store(), time.Now(), long)
			if err := stale(before).Leave(c.Context(), c.key, req.Owner); err != nil {
				c.Errorf("Leave: %v", err)
			}
			if status, err := s.Inspect(c.Context(), c.key); err != nil || status.Waiting != 0 {
				c.Errorf("after Leave by an old read: %+v %v; want no place", status, err)
			}
			c.release(stale(old), lease)
			c.free(c.store(), "it was released")
		},
	},
}

// ahead shifts the times of reads.
func ahead(d time.Duration) func(casstore.Entry, time.Time, bool) (casstore.Entry, time.Time, error) {
	return func(e casstore.Entry, now time.Time, _ bool) (casstore.Entry, time.Time, error) {
		if !now.IsZero() {
			now = now.Add(d)
		}
		return e, now, nil
	}
}

// echoes answers the first n writes, which are applied, as conflicts.
func echoes(n int) func(casstore.Entry, string) (casstore.Entry, error) {
	return func(e casstore.Entry, _ string) (casstore.Entry, error) {
		if n--; n >= 0 {
			return casstore.Entry{}, casstore.ErrConflict
		}
		return e, nil
	}
}

func (c *check) unknown(what string, err error) {
	c.Helper()
	if err == nil {
		c.Fatalf("%s: no error; want an unknown outcome", what)
	}
	for _, wrong := range []error{lockstore.ErrUnavailable, lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt} {
		if errors.Is(err, wrong) {
			c.Errorf("%s: %v; want an unknown outcome", what, err)
		}
	}
}
