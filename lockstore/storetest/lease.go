package storetest

import (
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// ownerCases are what no sequence of requests shows: texts, and renewals for less than is left.
var ownerCases = []testCase{
	{
		"owner/may be any text F48",
		"Whoever makes owners of ids of their own must not meet one that a store cannot take, or that makes it misread an answer.",
		func(c *check) {
			most := lockstore.Owner(strings.Repeat("~", lockstore.MaxOwnerBytes-1))
			odd := []lockstore.Owner{
				"1", "01", "1.0", "1e0", "0x1", "+1", "-1", "9007199254740993", "nil", "null", "false", "-", "{}", "*", "%s", "$1", "NaN", "undefined",
				"a:b", "a|b", `a"b`, `a\b`, "%", "[", "!#$&'()+,-./:;<=>?@[]^_`{|}~", "S", "NO", "NOSCRIPT", "ERR", "MOVED", "OOM", "TRYAGAIN",
				"ConditionalCheckFailedException", "23505", most + "1", most + "2", "1" + most,
			}
			for i, owner := range odd {
				req := newRequest(newKey(), long)
				req.Owner = owner
				lease := c.acquire(req)
				other := queued(req.Key)
				other.Owner = odd[(i+1)%len(odd)]
				c.heldPlace(other, 1)
				c.reacquire(req, lease)
				c.release(lease)
				lease = c.served(lease, other)
				c.complete(lease, []byte("result"), long)
				c.completed(req.Key, []byte("result"))
				req.Key = newKey()
				c.abandon(req)
				c.acquireLost("Acquire after its abandon", req)
			}
		},
	},
	{
		"holder/the text comes back unchanged",
		"It may be long, in any language, or empty: an unknown holder stays unknown.",
		func(c *check) {
			long2000 := strings.Repeat("n", 2000)
			for _, h := range []lockstore.HolderInfo{
				{},
				{Name: long2000, ID: long2000, Caller: "arn:aws:sts::1:assumed-role/cron"},
				{Name: strings.Repeat("é", 1000), ID: strings.Repeat("漢", 60), Since: time.Now()},
				{Name: "a\nb\tc\x00d\x7fe\u2028f", ID: "\r\n\t", Caller: long2000 + "\td"},
				{Name: "\xff\xfe", ID: "\xc3"},
			} {
				req := newRequest(newKey(), long)
				req.HolderInfo = h
				c.acquire(req)
				c.sameHolder(c.held(req.Key).Holder, lockstore.DecodeHolderInfo(h.Encode()))
				c.sameHolder(c.inspect(req.Key).Holder, lockstore.DecodeHolderInfo(h.Encode()))
			}
		},
	},
	{
		"renew/never shortens F27",
		"A renewal for less than what is left changes neither the end nor the time of trust: two renewals may arrive in the wrong order.",
		func(c *check) {
			req, lease := c.take(30 * time.Second)
			before := c.elapsed()
			end := before + c.renew(lease, long)
			for _, ttl := range []time.Duration{time.Minute, short} {
				c.Sleep(tick)
				sent := c.elapsed()
				trusted := c.renew(lease, ttl)
				if least := end - c.elapsed() - c.Margin - rounding; trusted < least {
					c.Errorf("a renewal for %v may be trusted for %v; want at least %v", ttl, trusted, least)
				}
				left := c.held(req.Key).StateEndsIn
				if left < long-time.Minute || sent+trusted > c.elapsed()+left {
					c.Errorf("after a renewal for %v, trusted for %v, others have to wait %v; want nearly %v", ttl, trusted, left, long)
				}
			}
		},
	},
}

func (c *check) sameHolder(got, want lockstore.HolderInfo) {
	c.Helper()
	if got.Name != want.Name || got.ID != want.ID || !got.Since.Equal(want.Since) || got.Caller != want.Caller {
		c.Errorf("the holder is %.60q %.60q since %v, caller %.60q; want %.60q %.60q since %v, caller %.60q",
			got.Name, got.ID, got.Since.UTC(), got.Caller, want.Name, want.ID, want.Since.UTC(), want.Caller)
	}
}
