package boot

import (
	"io"
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
	for _, host := range []string{"locks", "127.0.0.1:6379", "[::1]", "host", "a,b", "[::1", "", "host:port", "%zz", "ho st", "\x00", "[fe80::1%25eth0]"} {
		for _, scheme := range schemes {
			f.Add(scheme, host, "", "region", "eu-west-1")
		}
		f.Add("REDISS", host, "0", "cluster", "true")
	}
	for _, param := range []string{"cluster", "prefix", "plaintext", "region", "endpoint", "skew", "cache", "serverless", "x", "%zz", ""} {
		for _, scheme := range schemes {
			f.Add(scheme, "localhost", "", param, "")
			f.Add(scheme, "localhost", "1", param, "true")
			f.Add(scheme, "localhost", "/", param, "http://")
		}
	}
	long := strings.Repeat("x", 3000)
	for _, scheme := range schemes {
		f.Add(scheme, long, "", "region", "eu-west-1")
		f.Add(scheme, "localhost", long, "region", "eu-west-1")
		f.Add(scheme, "localhost", "", long, "")
		f.Add(scheme, "localhost", "", "region", long)
		f.Add(scheme, "localhost", "", "prefix", long)
		f.Add(scheme, "localhost", "", "endpoint", long)
	}
	f.Add(long, "localhost", "", "", "")
	for _, special := range []string{"#", "?", "/", "@", "%", "&", ";", "+", "2024?", "1#", "?prefix=", "&prefix=", ":", "://"} {
		for _, scheme := range schemes {
			f.Add(scheme, "localhost", "", special, "")
			f.Add(scheme, "localhost", "", "", special)
			f.Add(scheme, "localhost", special, "prefix", "a")
			f.Add(scheme, special, "", "prefix", "a")
		}
	}
	f.Fuzz(func(t *testing.T, scheme, host, path, param, value string) {
		env := map[string]string{"AWS_ACCESS_KEY_ID": secret, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "eu-west-1"}
		for _, raw := range []string{
			scheme + "://" + host + "/" + path + "?" + param + "=" + value,
			scheme + "://" + secret + "@" + host + "/" + path + "?" + param + "=" + value,
			scheme + "://user:" + secret + "@" + host + "/" + path + "?" + param + "=" + value,
			scheme + "://user:" + param + secret + value + "@" + host + "/" + path,
			scheme + "://user:" + param + "?" + secret + value + "@" + host + "/" + path,
			scheme + "://user:" + param + "/" + secret + value + "@" + host + "/" + path,
			scheme + "://user:" + param + "#" + secret + value + "@" + host + "/" + path,
			scheme + "://user:" + param + "@" + secret + value + "@" + host + "/" + path,
			scheme + "://" + host + "/" + path + "?" + param + "=" + value + "&" + secret,
			scheme + "://" + host + "/" + path + "?" + param + "=" + value + "&" + secret + "=",
			scheme + "://" + host + "/" + path + secret + "?" + param + "=" + value,
			scheme + "://" + host + "/" + path + "?" + param + "=" + value + secret,
			scheme + "://" + host + "/" + path + "?" + param + "=" + value + "#" + secret,
		} {
			env["LOCK_URL"] = raw
			var out strings.Builder
			_, err := newGuard(&out, func(name string) string { return env[name] }, nil, openers...)
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

// FuzzSettings: the other variables are within their bounds, or an error of one line names
// the variable that is not.
func FuzzSettings(f *testing.F) {
	for _, text := range []string{"", "30s", "1m", "1h", "15m", "0", "-1s", "5ms", "30", "9223372036854775807ns", "9999999h", "1e3s", "∞", "\x00", " 30s"} {
		f.Add(text, "", "", "", "", "")
		f.Add("", text, text, "", "App/locks", text)
		f.Add("30s", "", "", text, text, "3")
	}
	f.Fuzz(func(t *testing.T, ttl, maxHold, wait, margin, namespace, most string) {
		env := map[string]string{
			"LOCK_URL": "memory:", "LOCK_TTL": ttl, "LOCK_MAX_HOLD": maxHold, "LOCK_WAIT": wait, "LOCK_DEADLINE_MARGIN": margin, "LOCK_METRICS": namespace, "LOCK_MAX_HOLDERS": most,
		}
		g, err := newGuard(io.Discard, func(name string) string { return env[name] }, nil, memstore.Opener)
		if err == nil {
			require.NotNil(t, g)
			return
		}
		text := err.Error()
		require.False(t, strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }), "%q", text)
		named := false
		for _, name := range []string{"TTL", "MAX_HOLD", "MaxHold", "WAIT", "Wait", "DEADLINE_MARGIN", "DeadlineMargin", "LOCK_METRICS", "LOCK_MAX_HOLDERS"} {
			named = named || strings.Contains(text, name)
		}
		require.True(t, named, text)
	})
}
