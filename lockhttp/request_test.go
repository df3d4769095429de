package lockhttp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestBadRequests sends what a client may send by mistake. Each is refused,
// says what is wrong, and locks nothing. What else is no JSON or no key is in the tests of strictjson and lockstore.
func TestBadRequests(t *testing.T) {
	for _, c := range []struct {
		key, body string
		headers   []string
		status    int
		detail    string
	}{
		{body: `{}`, status: 400, detail: "ttl: is missing"},
		{body: `{"ttl": 0}`, status: 400, detail: `ttl: is "0"; want whole seconds, 1 to 900`},
		{body: `{"ttl": 901}`, status: 400, detail: "want whole seconds, 1 to 900"},
		{body: `{"ttl": 30, "owner": "me"}`, status: 400, detail: `"owner": is unknown; want ttl, wait, holder, maxHolders, coalesce and event`},
		{body: `{"ttl": 30, "wait": -1}`, status: 400, detail: `wait: is "-1"; want whole seconds, 0 to 20`},
		{body: `{"ttl": 30, "maxHolders": 0}`, status: 400, detail: `maxHolders: is "0"; want a whole number, 1 to 32`},
		{body: `{"ttl": 30, "holder": 7}`, status: 400, detail: "holder: want a string"},
		{body: `{"ttl": 30, "holder": ""}`, status: 400, detail: "holder: has 0 bytes; want 1 to 128"},
		{body: `{"ttl": 30, "holder": "` + strings.Repeat("ä", 65) + `"}`, status: 400, detail: "holder: has 130 bytes; want 1 to 128"},
		{body: `{"ttl": 30, "holder": "a\u0000b"}`, status: 400, detail: "holder: has a character that cannot be printed"},
		{body: `{"ttl": 30, "holder": "\ud800"}`, status: 400, detail: "holder: has a character that cannot be printed"},
		{body: `{"ttl": 30, "wait": 5, "coalesce": "index"}`, status: 400, detail: "coalesce: only one of coalesce and event is given; want both or none"},
		{body: `{"ttl": 30, "coalesce": "index", "event": "1"}`, status: 400, detail: "coalesce: is given, and wait is 0; want a wait"},
		{body: `{"ttl": 30, "wait": 5, "coalesce": "two words", "event": "1"}`, status: 400, detail: `coalesce: is "two words"; want printable ASCII without spaces`},
		{body: `{"ttl": 30, "wait": 5, "coalesce": "` + strings.Repeat("x", 65) + `", "event": "1"}`, status: 400, detail: "coalesce: has 65 bytes; want 1 to 64"},
		{body: `{"ttl": 30, "wait": 5, "coalesce": "index", "event": ""}`, status: 400, detail: "event: has 0 bytes; want 1 to 255"},
		{body: `{"ttl": 30}` + strings.Repeat(" ", maxBodyBytes-10), status: 413, detail: "body: want at most 8192 bytes"},
		{headers: []string{"content-type", "application/jsonx"}, status: 415, detail: "Content-Type: want application/json"},
		{headers: []string{"Idempotency-Key", ""}, status: 400, detail: "Idempotency-Key: want 1 to 255 bytes of printable ASCII"},
		{headers: []string{"Idempotency-Key", strings.Repeat("x", 256)}, status: 400, detail: "Idempotency-Key: want 1 to 255 bytes of printable ASCII"},
		{headers: []string{"Idempotency-Key", "a\tb"}, status: 400, detail: "Idempotency-Key: want 1 to 255 bytes of printable ASCII"},
		{key: "a\nb", status: 400, detail: "Key has a control character at byte 1"},
		{key: "a\ufffdb", status: 400, detail: "Key has the character U+FFFD; it stands for bytes that are no UTF-8"},
		{key: "/a", status: 400, detail: `Key has the segment ""; want none that is empty or made of dots`},
		{key: "a/../b", status: 400, detail: `Key has the segment ".."`},
	} {
		t.Run("F55 "+c.detail, func(t *testing.T) {
			w := newWorld(t)
			a := ask(t, w.Service, "PUT", cmp.Or(c.key, "shared/k"), cmp.Or(c.body, `{"ttl": 30}`), c.headers...)
			assert.Equal(t, c.status, a.StatusCode, "%.60s %.60q %.60q", c.body, c.headers, c.key)
			assert.Contains(t, a.said["detail"], c.detail)
			assert.Equal(t, lockstore.Free, w.state(t, "shared/k"))
		})
	}
	w := newWorld(t)
	a := ask(t, w.Service, "PUT", "", `{"ttl": 30}`)
	require.Equal(t, http.StatusBadRequest, a.StatusCode)
	require.Equal(t, "Key is empty; want 1 to 1024 bytes", a.said["detail"])
	a = ask(t, w.Service, "PATCH", "shared/k", `{"ttl": 901}`, "Lock-Token", "x")
	require.Contains(t, a.said["detail"], "want whole seconds, 1 to 900")
	a = ask(t, w.Service, "PATCH", "shared/k", `{"ttl": 30, "coalesce": "index"}`, "Lock-Token", "x")
	require.Equal(t, `"coalesce": is unknown; want ttl`, a.said["detail"], "a lease that is there, with its fence, waits for nothing")
	for _, method := range []string{"PATCH", "DELETE"} {
		a = ask(t, w.Service, method, "shared/k", `{"ttl": 30}`)
		require.Equal(t, http.StatusBadRequest, a.StatusCode)
		require.Equal(t, "Lock-Token: is missing; want the token of the lease", a.said["detail"])
	}
	for _, method := range []string{"POST", "HEAD", "OPTIONS", "put", ""} {
		a = ask(t, w.Service, method, "shared/k", "")
		require.Equal(t, http.StatusMethodNotAllowed, a.StatusCode)
		require.Equal(t, "DELETE, GET, PATCH, PUT", a.Header.Get("Allow"))
	}
	r := request(cron, "PUT", "", "")
	r.PathParameters, r.URL.Path = nil, "/openapi.json"
	require.Equal(t, "GET", send(t, t.Context(), w.Service, r).Header.Get("Allow"), "the description is for reading")
	for _, path := range []string{"/", "/locks", "/openapi.json/", "/favicon.ico"} {
		r.URL.Path = path
		for _, r.Method = range []string{"GET", "PUT"} {
			require.Equal(t, http.StatusNotFound, send(t, t.Context(), w.Service, r).StatusCode, path)
		}
	}
}

// Behind a base path of a domain the description is found as the locks are: by the route.
func TestBasePath(t *testing.T) {
	for _, event := range []string{
		`{"httpMethod": "GET", "resource": "%s", "path": "/v1%s", "pathParameters": %s, "requestContext": {"stage": "live"}}`,
		`{"version": "1.0", "httpMethod": "GET", "resource": "%s", "path": "/v1%s", "pathParameters": %s, "requestContext": {"stage": "$default"}}`,
	} {
		for _, c := range [][3]any{{"/openapi.json", "/openapi.json", "null"}, {"/locks/{key+}", "/locks/shared/k", `{"key": "shared/k"}`}} {
			var r httpapi.Request
			require.NoError(t, json.Unmarshal(fmt.Appendf(nil, event, c[:]...), &r))
			r.Caller = cron
			require.Equal(t, http.StatusOK, send(t, t.Context(), newWorld(t).Service, r).StatusCode, "%s", r.Event)
		}
	}
}

// TestGoodRequests are at the bounds.
func TestGoodRequests(t *testing.T) {
	for _, c := range []struct {
		key, body string
		headers   []string
	}{
		{body: `{"ttl": 1, "wait": 0}`},
		{body: ` {"wait": 20, "holder": "\u00e4 b", "ttl": 900} `},
		{body: `{"ttl": 30, "holder": "` + strings.Repeat("ä", 64) + `"}`},
		{body: `{"ttl": 30}` + strings.Repeat(" ", maxBodyBytes-11)},
		{body: `{"ttl": 30, "maxHolders": 32}`},
		{body: `{"ttl": 30, "wait": 1, "coalesce": "` + strings.Repeat("~", 64) + `", "event": "` + strings.Repeat("é", 127) + `"}`},
		{headers: []string{"content-type", "application/json; charset=utf-8"}},
		{headers: []string{"CONTENT-TYPE", "Application/JSON"}},
		{headers: []string{"Idempotency-Key", strings.Repeat("~", 255)}},
		{headers: []string{"idempotency-key", " "}},
		{key: strings.Repeat("k", 1024)},
		{key: "..."},
		{key: ".a/b."},
		{key: "a%2Fb"},
		{key: "ä {}?#:+ b"},
	} {
		w, key := newWorld(t), cmp.Or(c.key, "shared/k")
		token := acquire(t, w.Service, key, cmp.Or(c.body, `{"ttl": 30}`), c.headers...).token()
		require.Equal(t, lockstore.Held, w.state(t, key))
		require.Equal(t, http.StatusNoContent, ask(t, w.Service, "DELETE", key, "", "Lock-Token", token).StatusCode)
	}
}
