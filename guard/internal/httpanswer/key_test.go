package httpanswer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
