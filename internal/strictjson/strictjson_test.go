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

func TestFields(t *testing.T) {
	values, err := Object(`{"name": "a", "ttl": 30, "half": 30.0, "none": null}`, 100, "name", "ttl", "half", "none")
	require.NoError(t, err)
	text, err := String(values, "name")
	require.NoError(t, err)
	require.Equal(t, "a", text)
	n, err := Whole(values, "ttl", "whole seconds", 30, 30)
	require.NoError(t, err)
	require.EqualValues(t, 30, n)
	for want, read := range map[string]func() error{
		"gone: is missing":         func() error { _, err := String(values, "gone"); return err },
		"ttl: want a string":       func() error { _, err := String(values, "ttl"); return err },
		"lost: is missing":         func() error { _, err := Whole(values, "lost", "whole seconds", 1, 9); return err },
		"none: want a number":      func() error { _, err := Whole(values, "none", "whole seconds", 1, 9); return err },
		`half: is "30.0"; want w`:  func() error { _, err := Whole(values, "half", "whole seconds", 1, 90); return err },
		`want whole seconds, 1 to`: func() error { _, err := Whole(values, "ttl", "whole seconds", 1, 29); return err },
		`want a number of, 31 to`:  func() error { _, err := Whole(values, "ttl", "a number of", 31, 99); return err },
	} {
		require.ErrorContains(t, read(), want)
	}
}
