package boot

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

// secret is a text that no sentence has by chance.
const secret = "hunter2hunter2"

var (
	openers = []lockstore.SchemeOpener{dynamostore.Opener, redisstore.Opener, elasticache.Opener, zkstore.Opener, memstore.Opener}
	schemes = slices.Concat(dynamostore.Opener.Schemes, redisstore.Opener.Schemes, elasticache.Opener.Schemes, zkstore.Opener.Schemes, memstore.Opener.Schemes)
)

// FuzzStoreURL: with no LOCK_URL does a store's Open panic or send something. No error and no
// log line shows a part that may be secret: user, password, path, the value of a parameter, what stands behind
// a # or in a password behind a / ? # or @ that is not escaped.
// The error is one line and names the variable.
func FuzzStoreURL(f *testing.F) {
	long := strings.Repeat("x", 3000)
	for _, scheme := range append(schemes, "REDISS", long) {
		for _, odd := range []string{
			"", "locks", "127.0.0.1:6379", "[::1]", "a,b", "[::1", "host:port", "%zz", "ho st", "\x00", "[fe80::1%25eth0]", long,
			"#", "?", "/", "@", "%", "&", ";", "+", "2024?", "1#", "?prefix=", "&prefix=", ":", "://",
		} {
			f.Add(scheme, odd, "", "prefix", "a")
			f.Add(scheme, "localhost", odd, "region", "eu-west-1")
			f.Add(scheme, "localhost", "", odd, "")
			f.Add(scheme, "localhost", "", "endpoint", odd)
		}
		for _, param := range []string{"cluster", "prefix", "plaintext", "region", "endpoint", "skew", "cache", "serverless"} {
			f.Add(scheme, "localhost", "1", param, "true")
			f.Add(scheme, "localhost", "/", param, "http://")
		}
	}
	f.Fuzz(func(t *testing.T, scheme, host, path, param, value string) {
		env := map[string]string{"AWS_ACCESS_KEY_ID": secret, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "eu-west-1"}
		rest, query := host+"/"+path, "?"+param+"="+value
		for _, raw := range []string{
			rest + query, secret + "@" + rest + query, "user:" + secret + "@" + rest + query,
			"user:" + param + secret + value + "@" + rest, "user:" + param + "?" + secret + value + "@" + rest, "user:" + param + "/" + secret + value + "@" + rest,
			"user:" + param + "#" + secret + value + "@" + rest, "user:" + param + "@" + secret + value + "@" + rest,
			rest + query + "&" + secret, rest + query + "&" + secret + "=", rest + secret + query, rest + query + secret, rest + query + "#" + secret,
		} {
			raw = scheme + "://" + raw
			env["LOCK_URL"] = raw
			var out strings.Builder
			_, err := newGuard(&out, func(name string) string { return env[name] }, "LOCK_URL", nil, openers...)
			require.NotContains(t, out.String(), secret, raw)
			if err == nil {
				u, err := url.Parse(raw)
				require.NoError(t, err)
				require.Contains(t, schemes, u.Scheme)
				require.NotContains(t, u.Host, secret)
				require.NotContains(t, raw, "#")
				continue
			}
			text := err.Error()
			require.True(t, strings.HasPrefix(text, "LOCK_URL: "), text)
			require.NotContains(t, text, secret, raw)
			require.False(t, strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }), "%q", text)
			require.Less(t, len(text), 1500)
		}
	})
}
