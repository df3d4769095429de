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
		"A TTL of 0 or of 290 years is a mistake in the caller's arithmetic. The error names the TTL, and nothing is sent.",
		func(c *check) {
			_, lease := c.take(long)
			c.sends("calls with a bad TTL", 0, func() {
				for _, ttl := range []time.Duration{
					0, -1, -time.Second, 1, time.Millisecond, lockstore.MinTTL - 1,
					lockstore.MaxTTL + 1, 290 * 365 * 24 * time.Hour, math.MaxInt64, math.MinInt64,
				} {
					_, err := c.tryAcquire(newRequest(newKey(), ttl))
					c.wantInvalid("Acquire for "+ttl.String(), err, "TTL")
					_, err = c.tryRenew(lease, ttl)
					c.wantInvalid("Renew for "+ttl.String(), err, "TTL")
				}
			})
			c.renew(lease, long)
		},
	},
	{
		"invalid/owner out of bounds F48",
		"An owner that is empty, too long or not printable is refused before it is compared.",
		func(c *check) {
			for _, o := range []lockstore.Owner{
				"", lockstore.Owner(strings.Repeat("o", lockstore.MaxOwnerBytes+1)), lockstore.Owner(strings.Repeat("o", 4096)),
				"a b", " ", "a\n", "\x00", "a\x7f", "é", "\xff", "a\tb",
			} {
				for _, m := range c.methods(lockstore.Lease{Key: newKey(), Owner: o, Fence: 1}) {
					if m.name == "Inspect" { // it has no owner
						continue
					}
					c.sends(m.name+" with a bad owner", 0, func() { c.wantInvalid(m.name, c.call(m), "Owner") })
				}
			}
		},
	},
	{
		"invalid/fence out of bounds F48",
		"No grant has a negative fence.",
		func(c *check) {
			req, lease := c.take(long)
			c.sends("calls with a bad fence", 0, func() {
				for _, f := range []lockstore.Fence{-1, math.MinInt64} {
					bad := lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: f}
					_, err := c.tryRenew(bad, long)
					c.wantInvalid("Renew", err, "Fence")
					c.wantInvalid("Release", c.tryRelease(bad), "Fence")
				}
			})
			c.renew(lease, long)
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
