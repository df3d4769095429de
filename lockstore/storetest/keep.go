package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The cases of lockstore.Completer and lockstore.Resolver. Those of a Complete without data are the
// cooldownCases.
var keepCases = []testCase{
	{
		"keep/the data comes back unchanged",
		"An answer is bytes of the user. Whoever asks again gets each of them, and knows whose answer it is.",
		func(c *check) {
			c.keeper()
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			for _, data := range [][]byte{
				nil, {}, []byte("answer"), []byte("an answer\n"), []byte("\n"), []byte("first\nsecond "), []byte("one two "), {0}, []byte("a\x00b"), all, largest(),
				[]byte("lambdalock1 H owner 1 2 3 released abandoned holder"), []byte(`{"status":201,"body":"é"}`),
			} {
				req, lease := c.take(long)
				c.keep(lease, data, long)
				for range 2 {
					kept := c.kept(req.Key, data)
					if kept.Holder.Encode() != req.HolderInfo.Encode() {
						c.Errorf("the answer is that of %v; want %v", kept.Holder, req.HolderInfo)
					}
				}
			}
		},
	},
	{
		"keep/an error does not show the data",
		"Errors go to logs. An answer may be anything, also a secret.",
		func(c *check) {
			c.keeper()
			const secret = "card 4111-1111"
			_, lease := c.take(long)
			c.keep(lease, []byte(secret), long)
			_, err := c.tryAcquire(newRequest(lease.Key, long))
			for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
				if strings.Contains(text, secret) {
					c.Errorf("the error shows the kept data: %s", text)
				}
			}
		},
	},
	{
		"keep/for its time, and for as long as a month",
		"Nobody gets the key before the time is over: an event that comes again on the last day still has one effect. Then the key is free.",
		func(c *check) {
			c.keeper()
			_, lease := c.take(long)
			start := c.elapsed()
			c.keep(lease, []byte("answer"), lockstore.MaxResultTime)
			c.between("Remaining", c.kept(lease.Key, []byte("answer")).Remaining, lockstore.MaxResultTime-(c.elapsed()-start), lockstore.MaxResultTime)
			if c.virtual {
				c.sleepUntil(start + lockstore.MaxResultTime - tick)
				c.kept(lease.Key, []byte("answer"))
				c.expire(tick)
				c.next(lease)
			}
			c.ends(5, func(int) taken {
				_, lease := c.take(long)
				start := c.elapsed()
				c.keep(lease, []byte("answer"), edgeTTL)
				return taken{lease.Key, start + edgeTTL, c.elapsed() + edgeTTL}
			})
		},
	},
	{
		"keep/nothing is kept after the next grant",
		"The next holder's lease is a lease like any other, and the entry is as small as before.",
		func(c *check) {
			c.keeper()
			req, lease := c.take(long)
			c.keep(lease, largest(), short)
			c.expire(short)
			req.Owner, req.TTL = lockstore.NewOwner(), short
			next := c.acquire(req)
			c.grew(lease.Fence, next.Fence)
			c.plain(req.Key)
			if c.Dump != nil {
				if n := len(c.Dump(c.t, req.Key)); n > lockstore.MaxResultBytes/16 {
					c.Errorf("the entry has %d bytes after the next grant; want the answer gone", n)
				}
			}
			c.expire(short)
			_, last := c.next(next)
			c.plain(req.Key)
			c.release(last)
			c.next(last)
		},
	},
	{
		"keep/again is nil and changes neither the data nor the time F25",
		"If the reply is lost, the caller sends the same call again.",
		func(c *check) {
			c.keeper()
			const d = 30 * time.Second
			_, lease := c.take(long)
			c.keep(lease, []byte("first"), d)
			done := c.elapsed()
			c.sleep(time.Second)
			c.keep(lease, []byte("second"), long)
			c.kept(lease.Key, []byte("first"))
			c.endsBy("a second Complete", lease.Key, done+d)
		},
	},
	{
		"keep/after the end of the lease, if nobody was granted the key",
		"The work is done, and its caller was slow to say so. No other work has run, so the answer still counts.",
		func(c *check) {
			c.keeper()
			for _, begun := range []bool{false, true} {
				_, lease := c.take(short)
				if begun {
					c.begin(lease)
				}
				c.expire(short)
				c.keep(lease, []byte("answer"), long)
				c.kept(lease.Key, []byte("answer"))
			}
		},
	},
	{
		"keep/after a release or an abandon is lost",
		"Released is not kept: the next caller runs the work again, and this caller must know that.",
		func(c *check) {
			c.keeper()
			for _, end := range []func(lockstore.Request, lockstore.Lease){
				func(_ lockstore.Request, lease lockstore.Lease) { c.release(lease) },
				func(req lockstore.Request, _ lockstore.Lease) { c.abandon(req) },
			} {
				req, lease := c.take(long)
				end(req, lease)
				c.wantErr("Complete after the end", c.tryKeep(lease, []byte("late"), long), lockstore.ErrLost)
				c.next(lease)
				c.plain(req.Key)
			}
		},
	},
	{
		"keep/after another's grant is lost F10",
		"Another run has the key, or has kept its own answer. The late caller must not replace it.",
		func(c *check) {
			c.keeper()
			_, old := c.take(short)
			c.expire(short)
			_, lease := c.next(old)
			c.wantErr("Complete after another's grant", c.tryKeep(old, []byte("late"), long), lockstore.ErrLost)
			c.plain(lease.Key)
			c.keep(lease, []byte("answer"), long)
			c.wantErr("Complete after another's Complete", c.tryKeep(old, []byte("late"), long), lockstore.ErrLost)
			c.kept(lease.Key, []byte("answer"))
		},
	},
	{
		"keep/again after others does not change what is theirs F62",
		"A late duplicate of a Complete arrives when others have had the key since.",
		func(c *check) {
			c.keeper()
			_, old := c.take(long)
			c.keep(old, []byte("old"), short)
			c.expire(short)
			req, lease := c.next(old)
			c.wantNilOr("Complete again after another's grant", c.tryKeep(old, []byte("old"), long), lockstore.ErrLost)
			c.held(req.Key)
			c.plain(req.Key)
			c.keep(lease, []byte("answer"), long)
			c.wantNilOr("Complete again after another's Complete", c.tryKeep(old, []byte("old"), long), lockstore.ErrLost)
			c.kept(req.Key, []byte("answer"))
		},
	},
	{
		"keep/late duplicates do not change a kept key F26",
		"Each request of the run that is over may arrive once more, and so may those of others.",
		func(c *check) {
			c.keeper()
			const d = 30 * time.Second
			req, lease := c.take(long)
			c.begin(lease)
			c.keep(lease, []byte("answer"), d)
			done := c.elapsed()
			for range 2 {
				c.notGranted("Acquire by the owner that has kept its answer", req)
				c.renewLost("Renew after Complete", lease)
				c.wantErr("MarkStarted after Complete", c.tryBegin(lease), lockstore.ErrLost)
				c.wantNilOr("Release after Complete", c.tryRelease(lease), lockstore.ErrLost)
				c.abandon(req)
				c.abandon(newRequest(req.Key, long))
				for _, s := range strangers(lease) {
					c.wantErr("MarkStarted"+s.what, c.tryBegin(s.lease), lockstore.ErrLost)
					c.wantNilOr("Release"+s.what, c.tryRelease(s.lease), lockstore.ErrLost)
				}
				c.kept(req.Key, []byte("answer"))
				c.endsBy("late duplicates", req.Key, done+d)
			}
		},
	},
	{
		"keep/only by the lease that holds the key F10",
		"What is kept ends the lease. Nobody else may do that, also not with the right owner or the right fence alone.",
		func(c *check) {
			c.keeper()
			req, lease := c.take(long)
			for _, s := range strangers(lease) {
				c.wantErr("Complete"+s.what, c.tryKeep(s.lease, []byte("strange"), long), lockstore.ErrLost)
			}
			c.keeps(req, lease)
			unknown := lockstore.Lease{Key: newKey(), Owner: lockstore.NewOwner(), Fence: lease.Fence}
			c.wantErr("Complete of a new key", c.tryKeep(unknown, []byte("strange"), long), lockstore.ErrLost)
			c.acquire(newRequest(unknown.Key, long))
		},
	},
	{
		"keep/Inspect shows it",
		"A waiter that polls has to learn that the key will not be free soon.",
		func(c *check) {
			c.keeper()
			c.inspector()
			req, lease := c.take(long)
			if status := c.inspect(req.Key); status.Kept || status.InDoubt {
				c.Errorf("Inspect of a held key: %+v; want it neither kept nor in doubt", status)
			}
			c.keep(lease, []byte("answer"), short)
			status := c.inspect(req.Key)
			if !status.Held || !status.Kept || status.InDoubt || status.Remaining <= 0 || status.Holder.Encode() != req.HolderInfo.Encode() || status.Fence < lease.Fence {
				c.Errorf("Inspect of a kept key: %+v; want it held and kept, by %v with fence %d", status, req.HolderInfo, lease.Fence)
			}
			c.expire(short)
			if status = c.inspect(req.Key); status.Held || status.Kept {
				c.Errorf("Inspect after the time of Complete: %+v; want it free", status)
			}
		},
	},
	{
		"keep/a clock that is an hour off F15 F16",
		"The end is written by a clock. If that clock is wrong, the key must still open neither early nor late.",
		func(c *check) {
			c.keeper()
			c.need("ShiftClock", c.ShiftClock != nil)
			for _, shift := range []time.Duration{-time.Hour, time.Hour, -time.Hour} {
				c.ends(1, func(int) taken {
					_, lease := c.take(long)
					c.ShiftClock(c.t, shift) // the first request of the wrong clock is the Complete
					start := c.elapsed()
					c.keep(lease, []byte("answer"), edgeTTL)
					return taken{lease.Key, start + edgeTTL, c.elapsed() + edgeTTL}
				})
			}
		},
	},
	{
		"keep/lost replies of MarkStarted and Complete are unknown F25",
		"The caller sends the same request again, and learns that it was applied.",
		func(c *check) {
			c.keeper()
			_, lease := c.take(long)
			c.loseReply("MarkStarted", func() error { return c.tryBegin(lease) })
			c.begin(lease)
			c.loseReply("Complete", func() error { return c.tryKeep(lease, []byte("answer"), long) })
			c.kept(lease.Key, []byte("answer"))
			c.keep(lease, []byte("answer"), long)

			req, lease := c.take(short)
			c.loseReply("MarkStarted", func() error { return c.tryBegin(lease) })
			c.expire(short)
			c.inDoubt(req)
			c.release(lease) // nothing ran
			c.next(lease)
		},
	},
	{
		"keep/arguments out of bounds F48",
		"An answer that is too large, or a time that is a mistake, is refused before it is sent.",
		func(c *check) {
			c.keeper()
			req, lease := c.take(long)
			c.sends("calls with bad arguments", 0, func() {
				for _, d := range []time.Duration{0, -1, time.Millisecond, lockstore.MinTTL - 1, lockstore.MaxResultTime + 1, math.MaxInt64, math.MinInt64} {
					c.wantInvalid("Complete for "+d.String(), c.tryKeep(lease, nil, d), "Complete")
				}
				c.wantInvalid("Complete of too much", c.tryKeep(lease, append(largest(), 1), long), "Data")
				for _, fence := range []lockstore.Fence{0, -1} {
					bad := lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: fence}
					c.wantInvalid("Complete", c.tryKeep(bad, nil, long), "Fence")
					c.wantInvalid("MarkStarted", c.tryBegin(bad), "Fence")
				}
			})
			c.keeps(req, lease)
		},
	},
	{
		"keep/who waits in the queue learns the answer at once",
		"The answer is for all who wait. They do not wait for their turns.",
		func(c *check) {
			c.keeper()
			q := c.queuer()
			_, lease := c.take(long)
			var waiters []lockstore.Request
			for n := range 8 {
				waiters = append(waiters, c.join(lease.Key, n+1))
			}
			kept := c.whileAllAwait(q, waiters, func() { c.keep(lease, []byte("answer"), long) })
			for _, err := range kept {
				c.isKept(err, lease.Key, []byte("answer"))
			}
			c.heldPlace(queued(lease.Key), 0)
			c.waiting(lease.Key, 0)
		},
	},
	{
		"keep/who waits in the queue learns that the key is in doubt",
		"Nobody gets a turn, so nobody must wait for one.",
		func(c *check) {
			c.keeper()
			q := c.queuer()
			ttl := c.toJoin()
			req, lease := c.take(ttl)
			first, second := c.join(lease.Key, 1), c.join(lease.Key, 2)
			c.begin(lease)
			for _, err := range c.whileAllAwait(q, []lockstore.Request{first, second}, func() { c.expire(ttl) }) {
				c.isInDoubt(err, req)
			}
		},
	},
	{
		"keep/a place that is taken at the same time is none",
		"A request for a place and a Complete meet. No place may be left behind a kept key.",
		func(c *check) {
			c.keeper()
			c.queuer()
			c.sideBySide(4, func(int) {
				_, lease := c.take(long)
				c.join(lease.Key, 1)
				errs := make([]error, 6)
				atOnce(7, func(i int) {
					if i < 6 {
						_, errs[i] = c.tryAcquire(queued(lease.Key))
						return
					}
					c.keep(lease, []byte("answer"), short)
				})
				for _, err := range errs {
					c.wantErr("Acquire while another keeps its answer", err, lockstore.ErrHeld)
				}
				c.kept(lease.Key, []byte("answer"))
				c.waiting(lease.Key, 0)
				c.expire(short)
				c.next(lease)
			})
		},
	},
}

// largest is data of the largest size. It has no pattern that a store could use.
func largest() []byte {
	data := make([]byte, lockstore.MaxResultBytes)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

// keeper skips the case if the store is no Completer.
func (c *check) keeper() lockstore.Completer {
	c.Helper()
	k, ok := lockstore.As[lockstore.Completer](c.Store)
	c.need("Completer", ok)
	return k
}

func (c *check) tryKeep(lease lockstore.Lease, data []byte, d time.Duration) error {
	k := c.keeper()
	return c.call(method{"Complete", func(ctx context.Context) error { return k.Complete(ctx, lease, data, d) }})
}

func (c *check) keep(lease lockstore.Lease, data []byte, d time.Duration) {
	c.Helper()
	if err := c.tryKeep(lease, data, d); err != nil {
		c.fatalf("Complete of %q with fence %d: %v; want nil", lease.Key, lease.Fence, err)
	}
}

// kept wants the key refused to a new owner, with this data.
func (c *check) kept(key string, data []byte) *lockstore.KeptError {
	c.Helper()
	_, err := c.tryAcquire(newRequest(key, long))
	return c.isKept(err, key, data)
}

func (c *check) isKept(err error, key string, data []byte) *lockstore.KeptError {
	c.Helper()
	kept, ok := errors.AsType[*lockstore.KeptError](err)
	if !ok {
		c.fatalf("Acquire of a kept key: %v (%T); want a *lockstore.KeptError", err, err)
	}
	c.wantErr("Acquire of a kept key", err, lockstore.ErrHeld)
	if !bytes.Equal(kept.Result, data) {
		c.fatalf("the kept data has %d bytes: %.60q; want %d bytes: %.60q", len(kept.Result), []byte(kept.Result), len(data), data)
	}
	if kept.Key != key || kept.Remaining <= 0 || kept.QueuePosition != 0 || kept.Reserved {
		c.Errorf("the error is about key %q with %v remaining, place %d, free %v; want key %q, more than 0, no place", kept.Key, kept.Remaining, kept.QueuePosition, kept.Reserved, key)
	}
	return kept
}

// plain wants the key refused because of a lease, with nothing kept and not in doubt.
func (c *check) plain(key string) {
	c.Helper()
	_, err := c.tryAcquire(newRequest(key, long))
	c.wantErr("Acquire of a held key", err, lockstore.ErrHeld)
	_, kept := errors.AsType[*lockstore.KeptError](err)
	_, inDoubt := errors.AsType[*lockstore.DoubtError](err)
	if kept || inDoubt {
		c.fatalf("Acquire of a held key: %v; want no more than a *lockstore.HeldError", err)
	}
}

// whileAllAwait calls AwaitTurn for all, and during meanwhile. All must return soon after
// it. Each then asks once more; whileAllAwait returns the answers.
func (c *check) whileAllAwait(q lockstore.Queuer, waiters []lockstore.Request, during func()) []error {
	c.Helper()
	const most = 5 * time.Second
	var all sync.WaitGroup
	returned := make([]error, len(waiters))
	for i, req := range waiters {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(c.t.Context(), callTimeout)
			defer cancel()
			// AwaitTurn may return early: then the owner asks, and waits again.
			for {
				if returned[i] = q.AwaitTurn(ctx, req.Key, req.Owner); returned[i] != nil {
					return
				}
				_, returned[i] = c.Store.Acquire(ctx, req)
				_, kept := errors.AsType[*lockstore.KeptError](returned[i])
				_, inDoubt := errors.AsType[*lockstore.DoubtError](returned[i])
				if kept || inDoubt || returned[i] == nil {
					return
				}
			}
		})
	}
	time.Sleep(tick)
	during()
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	for start := c.elapsed(); ; {
		select {
		case <-done:
			if late := c.elapsed() - start - most - c.TakeoverDelay - c.slack(); late > 0 {
				c.Errorf("those who wait have left %v late", late)
			}
			return returned
		case <-time.After(time.Millisecond):
			if c.moved {
				c.sleep(time.Millisecond)
			}
		}
	}
}
