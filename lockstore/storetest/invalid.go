package storetest

import (
	"math"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var invalidCases = []testCase{
	{
		"invalid/TTL out of bounds F48 M39",
		"A TTL of 0 or of 290 years is a mistake in the caller's sum; it is named and nothing is sent.",
		func(c *check) {
			_, lease := c.take(long)
			count := c.requests()
			for _, ttl := range []time.Duration{
				0, -1, -time.Second, 1, time.Millisecond, lockstore.MinTTL - 1,
				lockstore.MaxTTL + 1, 290 * 365 * 24 * time.Hour, math.MaxInt64, math.MinInt64,
			} {
				_, err := c.tryAcquire(newRequest(newKey(), ttl))
				c.wantInvalid("Acquire for "+ttl.String(), err, "TTL")
				_, err = c.tryRenew(lease, ttl)
				c.wantInvalid("Renew for "+ttl.String(), err, "TTL")
				if _, ok := lockstore.As[lockstore.CooldownReleaser](c.Store); ok {
					c.wantInvalid("ReleaseAfter "+ttl.String(), c.tryReleaseAfter(lease, ttl), "TTL")
				}
			}
			c.wantRequests("calls with a bad TTL", count, 0)
			c.renew(lease, long)
		},
	},
	{
		"invalid/owner out of bounds F48",
		"An owner that is empty, too long or not printable is refused before it can match another.",
		func(c *check) {
			for _, o := range []lockstore.Owner{
				"", lockstore.Owner(repeat("o", lockstore.MaxOwnerBytes+1)), lockstore.Owner(repeat("o", 4096)),
				"a b", " ", "a\n", "\x00", "a\x7f", "é", "\xff", "a\tb",
			} {
				count := c.requests()
				c.everyMethod("owner", lockstore.Lease{Key: newKey(), Owner: o, Fence: 1}, func(what string, err error) {
					c.Helper()
					if strings.HasPrefix(what, "Inspect") { // it takes no owner
						count = c.requests()
						return
					}
					c.wantInvalid(what, err, "Owner")
					c.wantRequests(what, count, 0)
				})
			}
		},
	},
	{
		"invalid/ReleaseAfter without a fence F48",
		"Fence 0 stands for a grant that is not known; it can be abandoned, not kept closed.",
		func(c *check) {
			c.delayed()
			req, lease := c.take(long)
			count := c.requests()
			bad := lockstore.Lease{Key: req.Key, Owner: req.Owner}
			c.wantInvalid("ReleaseAfter", c.tryReleaseAfter(bad, long), "Fence")
			c.wantRequests("ReleaseAfter with fence 0", count, 0)
			c.renew(lease, long)
		},
	},
	{
		"invalid/negative fence F48",
		"A fence below 0 was never granted.",
		func(c *check) {
			req, lease := c.take(long)
			count := c.requests()
			for _, f := range []lockstore.Fence{-1, math.MinInt64} {
				bad := lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: f}
				_, err := c.tryRenew(bad, long)
				c.wantInvalid("Renew", err, "Fence")
				c.wantInvalid("Release", c.tryRelease(bad), "Fence")
				if _, ok := lockstore.As[lockstore.CooldownReleaser](c.Store); ok {
					c.wantInvalid("ReleaseAfter", c.tryReleaseAfter(bad, long), "Fence")
				}
			}
			c.wantRequests("calls with a negative fence", count, 0)
			c.renew(lease, long)
		},
	},
	{
		"invalid/the largest fence is a fence F48 M14",
		"A fence has 63 bits; one that was never granted is lost, not an overflow that matches another.",
		func(c *check) {
			req, lease := c.take(long)
			for _, f := range []lockstore.Fence{
				math.MaxInt64, math.MaxInt64 - 1, 1 << 53, 1<<53 + 1, math.MaxInt32, math.MaxUint32,
				lease.Fence + 1<<32, lease.Fence % (1 << 32), lease.Fence + 1<<53,
			} {
				strange := lease
				strange.Fence = f
				c.renewLost("Renew with a fence that was never granted", strange)
				c.wantErr("Release with a fence that was never granted", c.tryRelease(strange), lockstore.ErrLost)
			}
			c.reacquire(req, lease)
			c.renew(lease, long)
			c.release(lease)
		},
	},
}

// wantInvalid wants a refusal that names the field.
func (c *check) wantInvalid(what string, err error, field string) {
	c.Helper()
	c.wantErr(what, err, lockstore.ErrInvalid)
	if !strings.Contains(err.Error(), field) {
		c.Errorf("%s: %v; want the error to name %s", what, err, field)
	}
}
