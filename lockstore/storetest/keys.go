package storetest

import (
	"crypto/rand"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

var keyCases = []testCase{
	{
		"keys/odd ones are accepted and never meet F52 M29",
		"Keys come from users' data. Two different keys are two locks, whatever characters they have.",
		func(c *check) {
			id := rand.Text()
			leases := map[string]lockstore.Lease{}
			for _, odd := range []string{
				"", "{}", "{", "}", "{a}b", "{a}c", "{a", "a}", "}{", "{{a}}", "{}a",
				"/", "//", "..", "../", "./", ".", `\`, ":", "::", "|", "#", "?", "*", "[a]", "^",
				"a b", " ", "  ", "+", "%20", "%2F", "%", "%%", "'", `"`, "`", "$", "$a", "@", "!", "~", "&", "<>", "=", ";", ",",
				"a", "A", "aa", "é", "e\u0301", "ß", "ss", "😀", "漢字", "\u00a0", "\u200b", "\ufeff", "\ufffd", "ﬀ", "I", "ı", "İ",
				"0", "00", "1", "-1", "nil", "null", "true", "KEYS[1]", "lock", "owner", "fence",
			} {
				for _, key := range []string{id + odd, odd + "." + id, id + odd + id} {
					if _, twice := leases[key]; twice {
						continue
					}
					lease, err := c.tryAcquire(newRequest(key, long))
					if err != nil {
						c.fatalf("Acquire of the new key %q: %v; want a lease: it is a valid key and nobody has it", key, err)
					}
					leases[key] = lease
				}
			}
			for _, lease := range leases {
				c.renew(lease, long)
			}
		},
	},
	{
		"keys/as long as allowed F52",
		"A key may have 1024 bytes, and the last byte counts.",
		func(c *check) {
			id := rand.Text()
			for _, fill := range []string{"k", "é", "漢", "😀", "%", "/"} {
				n := lockstore.MaxKeyBytes - len(id) - 1
				base := id + strings.Repeat(fill, n/len(fill))
				base += strings.Repeat("x", lockstore.MaxKeyBytes-1-len(base))
				one, two := c.acquire(newRequest(base+"1", long)), c.acquire(newRequest(base+"2", long))
				c.acquire(newRequest(base, long))
				c.held(base + "1")
				c.renew(one, long)
				c.release(one)
				c.renew(two, long)
				c.release(two)
			}
		},
	},
	{
		"keys/many at once are independent F58",
		"Each of many keys has its own lease, holder and end, also if one owner has them all.",
		func(c *check) {
			const n = 40
			var reqs []lockstore.Request
			var leases []lockstore.Lease
			owner := lockstore.NewOwner() // one has them all
			for range n {
				req := newRequest(newKey(), long)
				req.Owner = owner
				lease := c.acquire(req)
				reqs, leases = append(reqs, req), append(leases, lease)
			}
			for i := 0; i < n; i += 2 {
				c.release(leases[i])
			}
			for i, req := range reqs {
				if i%2 == 0 {
					c.next(leases[i])
					continue
				}
				c.sameHolder(c.held(req.Key).Holder, req.HolderInfo)
				c.renew(leases[i], long)
			}
		},
	},
}
