package strictjson

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObject(t *testing.T) {
	values, err := Object(` {"ttl": 30, "holder": "me", "a": null} `, 100, "ttl", "holder", "a")
	require.NoError(t, err)
	require.Equal(t, map[string]json.Token{"ttl": json.Number("30"), "holder": "me", "a": nil}, values)

	for text, want := range map[string]string{
		`{"ttl": 1, "ttl": 2}`:                `"ttl": stands twice`,
		`{"ttl": 1, "\u0074tl": 2}`:           `"ttl": stands twice`,
		`{"TTL": 1}`:                          `"TTL": is unknown; want ttl and holder`,
		`{"ttl": {"ttl": 1}}`:                 "ttl: want a single value",
		`{"ttl": []}`:                         "ttl: want a single value",
		`{"ttl": 1} {}`:                       "something after",
		`{"ttl": 1}x`:                         "something after",
		`{"ttl": 1`:                           "not valid JSON",
		`{"ttl": }`:                           "not valid JSON",
		`{1: 2}`:                              "not valid JSON",
		`{null: 2}`:                           "not valid JSON",
		`{{}: 2}`:                             "not valid JSON",
		`{"ttl"}`:                             "not valid JSON",
		`[]`:                                  "want a JSON object with ttl and holder",
		``:                                    "want a JSON object",
		"{\"ttl\": \"\xff\"}":                 "not valid UTF-8",
		`{"` + strings.Repeat("x", 60) + `":`: "…",
		strings.Repeat(" ", 101):              "at most 100 bytes",
	} {
		_, err := Object(text, 100, "ttl", "holder")
		require.ErrorContains(t, err, want, text)
	}
}
