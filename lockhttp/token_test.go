package lockhttp

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/stableowner"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestOneAnswerToTokens sends tokens that are no good, for whatever reason.
// The answers are the same, byte for byte, and nobody's lease is touched.
func TestOneAnswerToTokens(t *testing.T) {
	bubble(t, "F55 F62 tokens that are no good", func(t *testing.T) {
		w := newWorld(t)
		token := func(key string) string { return acquire(t, w.Service, key, thirty).token() }

		expired := token("shared/expired")
		taken := token("shared/taken")
		released := token("shared/released")
		require.Equal(t, http.StatusNoContent, ask(t, w.Service, "DELETE", "shared/released", "", "Lock-Token", released).StatusCode)
		<-time.After(30 * time.Second)
		nextHolder := token("shared/taken")
		good := token(key)
		raw, err := base64.RawURLEncoding.DecodeString(good)
		require.NoError(t, err)
		lease, ok := leaseOf(good, key, []secret{secret(oldSecret)})
		require.True(t, ok)
		fence := lease
		fence.Fence++

		// Nobody was granted the key of an expired lease since, so its holder may say that it is done.
		require.Equal(t, http.StatusNotFound, ask(t, w.Service, "PATCH", "shared/expired", thirty, "Lock-Token", expired).StatusCode)
		require.Equal(t, http.StatusNoContent, ask(t, w.Service, "DELETE", "shared/expired", "", "Lock-Token", expired).StatusCode)

		type bad struct{ key, token string }
		all := []bad{
			{"shared/taken", taken},
			{"shared/never", token("shared/other")},
			{"shared", good},
			{key, token("shared/another")},
			{key, ""},
			{key, strings.Repeat("A", 10_000)},
			{key, good + "="},
			{key, good + "\n"},
			{key, " " + good},
			{key, secret(newSecret).token(lease)},
			{key, secret(oldSecret).token(fence)},
			{key, secret("").token(lease)},
			{key, secret(oldSecret).token(lockstore.Lease{Key: key, Fence: lease.Fence})},
		}
		for n := range len(good) {
			all = append(all, bad{key, good[:n]})
		}
		for _, more := range []string{"A", "AA", "AAA", "AAAA", good} {
			all = append(all, bad{key, good + more})
		}
		for bit := range len(raw) * 8 {
			b := []byte(string(raw))
			b[bit/8] ^= 1 << (bit % 8)
			all = append(all, bad{key, base64.RawURLEncoding.EncodeToString(b)})
		}
		for bit := range 6 {
			last := strings.IndexByte(alphabet, good[len(good)-1])
			if other := good[:len(good)-1] + string(alphabet[last^1<<bit]); other != good {
				all = append(all, bad{key, other})
			}
		}
		var want string
		for _, b := range all {
			for _, method := range []string{"PATCH", "DELETE"} {
				a := ask(t, w.Service, method, b.key, thirty, "Lock-Token", b.token)
				text, err := json.Marshal(a.Response)
				require.NoError(t, err)
				if want == "" {
					require.Equal(t, http.StatusNotFound, a.StatusCode)
					want = string(text)
				}
				require.Equal(t, want, string(text), "%s %s %q", method, b.key, b.token)
			}
		}
		text, err := json.Marshal(ask(t, w.Service, "PATCH", "shared/released", thirty, "Lock-Token", released).Response)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		require.Equal(t, http.StatusOK, ask(t, w.Service, "PATCH", key, thirty, "Lock-Token", good).StatusCode)
		require.Equal(t, http.StatusOK, ask(t, w.Service, "PATCH", "shared/taken", thirty, "Lock-Token", nextHolder).StatusCode)
	})
}

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// The token says nothing about the caller: whoever has it has the lease.
func TestTokensAreForTheirBearer(t *testing.T) {
	s := newWorld(t).Service
	token := acquire(t, s, "shared/k", `{"ttl": 30}`).token()
	r := request(web, "DELETE", "shared/k", "", "Lock-Token", token)
	require.Equal(t, http.StatusNoContent, send(t, t.Context(), s, r).StatusCode)
	r = request(web, "DELETE", "payroll", "", "Lock-Token", acquire(t, s, "payroll", `{"ttl": 30}`).token())
	require.Equal(t, http.StatusForbidden, send(t, t.Context(), s, r).StatusCode, "a token opens no key that its bearer may not use")
}

// TestRotation changes the secret under leases that are held.
func TestRotation(t *testing.T) {
	s := newWorld(t).Service
	had := acquire(t, s, key, thirty, "Idempotency-Key", "7")

	s.secrets = fixed(newSecret, oldSecret)
	again := acquire(t, s, key, thirty, "Idempotency-Key", "7")
	require.Equal(t, had.said["fence"], again.said["fence"], "a replay finds its lease")
	require.NotEqual(t, had.token(), again.token(), "the new secret makes the tokens")
	renewed := ask(t, s, "PATCH", key, thirty, "Lock-Token", had.token())
	require.Equal(t, http.StatusOK, renewed.StatusCode, "the one before still counts")
	require.Equal(t, again.token(), renewed.token())

	s.secrets = fixed(newSecret)
	require.Equal(t, http.StatusNotFound, ask(t, s, "PATCH", key, thirty, "Lock-Token", had.token()).StatusCode)
	require.Equal(t, http.StatusNoContent, ask(t, s, "DELETE", key, "", "Lock-Token", renewed.token()).StatusCode)
	require.Equal(t, http.StatusUnprocessableEntity, ask(t, s, "PUT", key, thirty, "Idempotency-Key", "7").StatusCode, "and a replay too late is one")
}

// Other parts are never the same bytes: neither in an owner nor in the tag.
func TestPartsAreKeptApart(t *testing.T) {
	owners := map[lockstore.Owner]bool{}
	for _, parts := range [][]string{{"a", "b", "c", "d"}, {"ab", "", "c", "d"}, {"a", "bc", "", "d"}, {"a", "b", "cd", ""}, {"d", "b", "c", "a"}} {
		owners[stableowner.Of(parts...)] = true
	}
	require.Len(t, owners, 5)

	raw, err := base64.RawURLEncoding.DecodeString(secret(oldSecret).token(lockstore.Lease{Key: "k", Owner: "1owner", Fence: 7}))
	require.NoError(t, err)
	moved := append(raw[:tokenBody:tokenBody], raw[tokenBody+1:]...)
	_, ok := leaseOf(base64.RawURLEncoding.EncodeToString(moved), "k1", []secret{secret(oldSecret)})
	require.False(t, ok, "the tag of k and 1owner is none of k1 and owner")
}

// FuzzToken reads what was written, and nothing else.
func FuzzToken(f *testing.F) {
	lease := lockstore.Lease{Key: "shared/k", Owner: "owner", Fence: 1767225600000000}
	f.Add(lease.Key, string(lease.Owner), int64(lease.Fence), "")
	f.Add(lease.Key, string(lease.Owner), int64(lease.Fence), secret(newSecret).token(lease))
	f.Add("k", "o", int64(-1), secret(oldSecret).token(lease)+"\n")
	f.Add("k\x00o", "", int64(0), "AQ")
	f.Fuzz(func(t *testing.T, key, owner string, fence int64, text string) {
		secrets := []secret{secret(newSecret), secret(oldSecret)}
		lease := lockstore.Lease{Key: key, Owner: lockstore.Owner(owner), Fence: lockstore.Fence(fence)}
		for _, s := range secrets {
			got, ok := leaseOf(s.token(lease), key, secrets)
			if ok != (owner != "") || ok && got != lease {
				t.Fatalf("%+v was read as %+v, %t", lease, got, ok)
			}
			if _, ok := leaseOf(s.token(lease), key+"/", secrets); ok {
				t.Fatal("a token is good for another key")
			}
		}
		if got, ok := leaseOf(text, key, secrets); ok && secrets[0].token(got) != text && secrets[1].token(got) != text {
			t.Fatalf("%q is a second spelling of %+v", text, got)
		}
		other := []secret{secret(strings.Repeat("x", minSecretBytes))}
		if _, ok := leaseOf(text, key, other); ok {
			t.Fatalf("%q is a token of a secret that made none", text)
		}
	})
}
