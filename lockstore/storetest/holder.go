package storetest

import (
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var holderCases = []testCase{
	{
		"holder/a refusal says who holds the key and for how long",
		"The refused caller gets both with the refusal, without another request.",
		func(c *check) {
			const ttl = 30 * time.Second
			before := c.elapsed()
			req, _ := c.take(ttl)
			held := c.held(req.Key)
			c.sameHolder(held.Holder, req.HolderInfo)
			c.between("Remaining", held.Remaining, ttl-(c.elapsed()-before), ttl)
		},
	},
	{
		"holder/the text comes back unchanged",
		"It may be long, in any language, or empty: an unknown holder stays unknown.",
		func(c *check) {
			for _, h := range []lockstore.HolderInfo{
				{},
				{Name: strings.Repeat("n", 2000), ID: "id"},
				{Name: "name", ID: strings.Repeat("i", 2000)},
				{Name: strings.Repeat("é", 1000), ID: strings.Repeat("漢", 60), Since: time.Now()},
				{Name: "a\nb\tc\x00d\x7fe\u2028f", ID: "\r\n\t"},
				{Name: "\xff\xfe", ID: "\xc3"},
				{Name: "a\tb", ID: "c\td"},
				{Name: strings.Repeat("n", 2000), ID: strings.Repeat("i", 2000), Caller: "arn:aws:sts::1:assumed-role/cron"},
				{Name: "a\tb", Caller: strings.Repeat("c", 2000) + "\td"},
			} {
				req := newRequest(newKey(), long)
				req.HolderInfo = h
				lease := c.acquire(req)
				got := c.held(req.Key).Holder
				c.sameHolder(got, lockstore.DecodeHolderInfo(h.Encode()))
				c.sameHolder(c.inspect(req.Key).Holder, got)
				c.release(lease)
			}
		},
	},
	{
		"holder/a new grant shows the new holder",
		"An error that names an earlier holder sends people to the wrong log.",
		func(c *check) {
			_, lease := c.take(long)
			c.release(lease)
			req, _ := c.next(lease)
			c.sameHolder(c.held(req.Key).Holder, req.HolderInfo)
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
