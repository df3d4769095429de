package storetest

import (
	"crypto/rand"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

var keyCases = []testCase{
	{
		"keys/odd ones are accepted and never meet F52 M29",
		"Keys come from users' data. Whatever characters they have, two different keys are two locks.",
		func(c *check) {
			id := rand.Text()
			var keys []string
			for _, odd := range []string{
				"", "{}", "{", "}", "{a}b", "{a}c", "{a", "a}", "}{", "{{a}}", "{}a",
				"/", "//", "..", "../", "./", ".", `\`, ":", "::", "|", "#", "?", "*", "[a]", "^",
				"a b", " ", "  ", "+", "%20", "%2F", "%", "%%", "'", `"`, "`", "$", "$a", "@", "!", "~", "&", "<>", "=", ";", ",",
				"a", "A", "aa", "é", "e\u0301", "ß", "ss", "😀", "漢字", "\u00a0", "\u200b", "\ufeff", "\ufffd", "ﬀ", "I", "ı", "İ",
				"0", "00", "1", "-1", "nil", "null", "true", "KEYS[1]", "lock", "owner", "fence",
			} {
				keys = append(keys, id+odd, odd+"."+id, id+odd+id)
			}
			leases := map[string]lockstore.Lease{}
			for _, key := range keys {
				if _, twice := leases[key]; twice {
					continue
				}
				lease, err := c.tryAcquire(newRequest(key, long))
				if err != nil {
					c.fatalf("Acquire of the new key %q: %v; want a lease: it is a valid key and nobody has it", key, err)
				}
				leases[key] = lease
			}
			for key, lease := range leases {
				c.renew(lease, long)
				c.held(newRequest(key, long))
			}
			for key, lease := range leases {
				c.release(lease)
				c.acquire(newRequest(key, long))
			}
		},
	},
	{
		"keys/as long as allowed F52",
		"1024 bytes are a key, and the last of them counts.",
		func(c *check) {
			id := rand.Text()
			for _, fill := range []string{"k", "é", "漢", "😀", "%", "/"} {
				n := lockstore.MaxKeyBytes - len(id) - 1
				base := id + strings.Repeat(fill, n/len(fill))
				base += strings.Repeat("x", lockstore.MaxKeyBytes-1-len(base))
				one, two := c.acquire(newRequest(base+"1", long)), c.acquire(newRequest(base+"2", long))
				c.acquire(newRequest(base, long))
				c.held(newRequest(base+"1", long))
				c.renew(one, long)
				c.release(one)
				c.renew(two, long)
				c.release(two)
			}
		},
	},
	{
		"keys/bad ones are refused and nothing is sent F52",
		"An empty key is nearly always a missing field, and a control character breaks a log line.",
		func(c *check) {
			count := c.requests()
			for name, key := range badKeys() {
				c.everyMethod("key: "+name, lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1}, func(what string, err error) {
					c.Helper()
					c.wantInvalid(what, err, "Key")
				})
			}
			c.wantRequests("calls with a bad key", count, 0)
		},
	},
	{
		"keys/many at once have nothing to do with one another F58",
		"Each of many keys has its own lease, holder and end.",
		func(c *check) {
			const n = 100
			var reqs []lockstore.Request
			var leases []lockstore.Lease
			for range n {
				req, lease := c.take(long)
				reqs, leases = append(reqs, req), append(leases, lease)
			}
			for i := 0; i < n; i += 2 {
				c.release(leases[i])
			}
			for i, req := range reqs {
				if i%2 == 0 {
					next := c.acquire(newRequest(req.Key, long))
					c.grew(leases[i].Fence, next.Fence)
					continue
				}
				c.sameHolder(c.held(newRequest(req.Key, long)).Holder, req.Holder)
				c.renew(leases[i], long)
			}
		},
	},
}

func badKeys() map[string]string {
	return map[string]string{
		"empty":               "",
		"1025 bytes":          strings.Repeat("k", lockstore.MaxKeyBytes+1),
		"2049 bytes":          strings.Repeat("k", 2049),
		"342 times 3 bytes":   strings.Repeat("漢", 342),
		"NUL":                 "a\x00b",
		"newline":             "a\nb",
		"carriage return":     "a\r",
		"tab":                 "\ta",
		"escape":              "a\x1b[31m",
		"DEL":                 "a\x7f",
		"C1 control":          "a\u0085b",
		"line separator":      "a\u2028b",
		"paragraph separator": "a\u2029b",
		"invalid UTF-8":       "a\xffb",
		"half a character":    "a\xe6\xbc",
		"surrogate":           "a\xed\xa0\x80b",
		"overlong":            "a\xc0\xafb",
	}
}
