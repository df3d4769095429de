package httpanswer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKey(t *testing.T) {
	for _, values := range [][]string{
		{""}, {`""`}, {" "}, {"a, b"}, {`"a", "b"`}, {`"a";b=c`}, {"a", "b"}, {strings.Repeat("k", 10<<10)}, {strings.Repeat("k", 256)}, {`"a`},
		{"ä"}, {"\xff"}, {"a\x01"}, {`"a\b"`}, {`"a\`}, {`a"b`},
	} {
		_, err := Key(values)
		require.ErrorContains(t, err, Header, "%q", values)
		require.Less(t, len(err.Error()), 200)
	}
	for value, want := range map[string]string{
		"8e03978e-40d5-43dd-bc93-6894a57f9324": "8e03978e-40d5-43dd-bc93-6894a57f9324", ` "a, b" `: "a, b", `"\"\\"`: `"\`, "a/b": "a/b",
		strings.Repeat("k", 255): strings.Repeat("k", 255), `"` + strings.Repeat(`\\`, 255) + `"`: strings.Repeat(`\`, 255),
	} {
		key, err := Key([]string{value})
		require.NoError(t, err, value)
		require.Equal(t, want, key)
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	f.Add("k", `"k"`)
	f.Add(`"a\"b"`, `"a\\b"`)
	f.Fuzz(func(t *testing.T, a, b string) {
		x, errX := parseKey(a)
		y, errY := parseKey(b)
		if errX != nil || errY != nil {
			return
		}
		require.NotEmpty(t, x)
		require.LessOrEqual(t, len(x), maxKey)
		again, err := parseKey(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(x) + `"`)
		require.NoError(t, err)
		require.Equal(t, x, again)
		if (a[0] == '"') == (b[0] == '"') && a[0] != '"' {
			require.Equal(t, a == b, x == y)
		}
	})
}
