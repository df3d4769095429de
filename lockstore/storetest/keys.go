package storetest

import (
	"crypto/rand"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

var keyCases = []testCase{
	{
		"keys/odd ones are accepted and never meet F52 F58 M29",
		"Keys come from users' data. Two different keys are two locks, whatever characters they have, also if one owner has both. A key may have 1024 bytes, and the last byte counts.",
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
			for _, fill := range []string{"k", "é", "漢", "😀", "%", "/"} {
				base := id + strings.Repeat(fill, (lockstore.MaxKeyBytes-len(id)-1)/len(fill))
				base += strings.Repeat("x", lockstore.MaxKeyBytes-1-len(base))
				keys = append(keys, base+"1", base+"2")
			}
			slices.Sort(keys)
			keys = slices.Compact(keys)
			leases := make([]lockstore.Lease, len(keys))
			for i, key := range keys {
				leases[i] = c.acquire(newRequest(key, long))
			}
			for _, lease := range leases {
				c.renew(lease, long)
			}
			if _, lists := driver.As[driver.Lister](c.Store.Driver()); lists {
				below := slices.DeleteFunc(keys, func(key string) bool { return !strings.HasPrefix(key, id) })
				var listed []string
				for _, s := range c.list(id) {
					listed = append(listed, s.Key)
				}
				if slices.Sort(listed); !slices.Equal(listed, below) {
					c.Errorf("the list has %d keys; want each of %d once", len(listed), len(below))
				}
			}

			one, other := newRequest(newKey(), long), newRequest(newKey(), long)
			other.Owner = one.Owner
			first, second := c.acquire(one), c.acquire(other)
			c.release(first)
			c.keeps(other, second)
			c.next(first)
		},
	},
}
