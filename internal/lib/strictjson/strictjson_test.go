package strictjson

import (
	"encoding/json"
	"math"
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
	values, err := Object(`{"name": "a", "ttl": 30, "half": 30.5, "none": null}`, 100, "name", "ttl", "half", "none")
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
		`half: is "30.5"; want w`:  func() error { _, err := Whole(values, "half", "whole seconds", 1, 90); return err },
		`want whole seconds, 1 to`: func() error { _, err := Whole(values, "ttl", "whole seconds", 1, 29); return err },
		`want a number of, 31 to`:  func() error { _, err := Whole(values, "ttl", "a number of", 31, 99); return err },
	} {
		require.ErrorContains(t, read(), want)
	}
}

func TestWhole(t *testing.T) {
	type row struct{ N Int }
	for text, want := range map[string]int64{
		"60": 60, "60.0": 60, "6e1": 60, "6E+1": 60, "0.6e2": 60, "600e-1": 60, "600.00E-01": 60, "-60.0": -60, "1.7E15": 1.7e15,
		"0": 0, "-0.0": 0, "0e999999999": 0, "0.0000": 0, "1000000000000000000": 1e18, "1e18": 1e18,
		"9223372036854775807.0": math.MaxInt64, "9.223372036854775807e18": math.MaxInt64, "-9223372036854775808": math.MinInt64,
		"9007199254740993.0": 1<<53 + 1, // a float64 would round it
	} {
		var got row
		require.NoError(t, json.Unmarshal([]byte(`{"n": `+text+`}`), &got), text)
		require.EqualValues(t, want, got.N, text)
		n, err := Whole(map[string]json.Token{"n": json.Number(text)}, "n", "whole", math.MinInt64, math.MaxInt64)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
	}
	for _, text := range []string{
		"60.5", "6e-1", "1e-999999999", "60.00000000000000000001", "1e19", "1e999999999", "1e99999999999999999999",
		"9223372036854775808", "9223372036854775808.0", "-9223372036854775809.0", "1" + strings.Repeat("0", 4000),
	} {
		_, err := Whole(map[string]json.Token{"n": json.Number(text)}, "n", "whole seconds", 1, 900)
		require.EqualError(t, err, "n: is "+Shown(text)+"; want whole seconds, 1 to 900")
	}
	for _, text := range []string{"60.5", "1e19", `"60"`, "null", "true", "[]"} {
		err := json.Unmarshal([]byte(`{"n": `+text+`}`), new(row))
		require.ErrorContains(t, err, "into Go struct field row.N of type int64", text)
	}
}
