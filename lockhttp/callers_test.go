package lockhttp

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestPolicy(t *testing.T) {
	c, err := parseCallers(`{
		"*": ["shared/"],
		"arn:aws:sts::123456789012:assumed-role/cron": [""],
		"https://id.example.com#7": ["a/", "b", ".", "a/.."],
		"anonymous": ["public/"]
	}`)
	require.NoError(t, err)
	const jo, jwt = "arn:aws:iam::123456789012:user/jo", "https://id.example.com#7"
	for caller, keys := range map[string]map[string]bool{
		jo:        {"shared/x": true, "shared/": true, "shared": false, "Shared/x": false, "sharedx": false, "x/shared/": false, "public/x": false, "a/x": false},
		cron:      {"shared/x": true, "anything": true},
		jwt:       {"shared/x": true, "a/x": true, "a": false, "b": true, "bc": true, "c": false},
		jwt + "7": {"shared/x": true, "a/x": false},
		Anonymous: {"public/x": true, "shared/x": false},
		"*":       {"shared/x": true, "public/x": false},
	} {
		for key, may := range keys {
			require.Equal(t, may, c.allow(caller, key), "%s on %s", caller, key)
		}
	}
	c, err = parseCallers(`{"*": [""]}`)
	require.NoError(t, err)
	require.False(t, c.allow(Anonymous, "x"))
	require.True(t, c.allow(cron, "x"))
}

func TestPoliciesThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                        `want a JSON object`,
		`{"*": ["a"]`:             `want a JSON object`,
		`{"*" ["a"]}`:             `the caller "*": want a list`,
		`{*: ["a"]}`:              `want a JSON object`,
		`{"*": ["a"]}x`:           `something after`,
		`{}`:                      `nobody could do anything`,
		`{"*": []}`:               `the caller "*" has no key prefix`,
		`{"*": [null]}`:           `the caller "*": null is no key prefix`,
		`{"*": ["a"], "*": [""]}`: `the caller "*" stands twice`,
		`{"arn:aws:iam::123456789012:role/team/cron": ["a"]}`:            "want a role as arn:aws:sts::ACCOUNT:assumed-role/NAME",
		`{"arn:aws:sts::123456789012:assumed-role/cron/session": ["a"]}`: "without path and session",
		`{"*": ["shared/", "/shared/"]}`:                                 `the caller "*": no key begins with "/shared/": Key has the segment ""`,
		`{"*": ["a\n"]}`:                                                 `no key begins with "a\n"`,
	} {
		_, err := parseCallers(text)
		require.ErrorContains(t, err, want, text)
	}
}

// A caller who may not use a key learns nothing about it.
func TestForbiddenKeys(t *testing.T) {
	w := newWorld(t)
	answers := func() (all []httpapi.Response) {
		for _, method := range []string{"PUT", "PATCH", "DELETE", "GET"} {
			for _, body := range []string{`{"ttl": 30}`, `{"ttl": "x"}`} {
				for _, headers := range [][]string{nil, {"Lock-Token", "x"}, {"Idempotency-Key", "7"}, {"Content-Type", "text/plain"}} {
					a := send(t, t.Context(), w.Service, request(web, method, "payroll/october", body, headers...))
					require.Equal(t, http.StatusForbidden, a.StatusCode)
					all = append(all, a.Response)
				}
			}
		}
		return all
	}
	free := answers()
	require.Equal(t, lockstore.Free, w.state(t, "payroll/october"))
	acquire(t, w.Service, "payroll/october", `{"ttl": 30}`, "Idempotency-Key", "7")
	require.Equal(t, free, answers(), "held or not")
	w.fail(errLostReply)
	require.Equal(t, free, answers(), "the store is not asked")
}
