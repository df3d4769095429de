package lockstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func ExampleKey() {
	fmt.Println(lockstore.Key("account", "7"))
	fmt.Println(lockstore.Key("report", "2026/10", "50%"))
	fmt.Println(lockstore.ValidateKey(lockstore.Key("thumb", "photos", "")))
	// Output:
	// account/7
	// report/2026%2F10/50%25
	// lockstore: Key has an empty part, number 3; want a value for each part
}

func TestKey(t *testing.T) {
	for _, tc := range []struct {
		parts []string
		want  string
	}{
		{nil, ""},
		{[]string{"a", "", "b"}, "a/\x00/b"},
		{[]string{"a", "\x00", "\x7f\n"}, "a/%00/%7F%0A"},
		{[]string{"\u0085\u2028é"}, "%C2%85%E2%80%A8é"},
		{[]string{"a\xff\xe6\xbcb", "\ufffd"}, "a%FF%E6%BCb/\ufffd"},
		{[]string{"a/b"}, "a%2Fb"},
		{[]string{"a", "b"}, "a/b"},
		{[]string{"a%2Fb"}, "a%252Fb"},
		{[]string{"..", "{}", " "}, "../{}/ "},
		{[]string{"漢字", "😀"}, "漢字/😀"},
	} {
		assert.Equal(t, tc.want, lockstore.Key(tc.parts...), "%q", tc.parts)
	}
}

func TestKeyIsInjective(t *testing.T) {
	t.Run("F52 every list of up to three parts from a hostile alphabet has a key of its own", func(t *testing.T) {
		alphabet := []string{"a", "/", "%", "2F", "25", "%2F", "%25", "%252F", "a/", "/a", "//", "a/a", "{", "}", "\x00", "%00", "\xff", "%FF", ""}
		seen := map[string]bool{}
		for _, a := range alphabet {
			seen[lockstore.Key(a)] = true
			for _, b := range alphabet {
				seen[lockstore.Key(a, b)] = true
				for _, c := range alphabet {
					seen[lockstore.Key(a, b, c)] = true
				}
			}
		}
		assert.Len(t, seen, 19+19*19+19*19*19)
	})
}

func FuzzKeyIsInjective(f *testing.F) {
	f.Add("a", "b", "a/b", "")
	f.Add("a%2Fb", "c", "a/b", "c")
	f.Add("%", "25", "%25", "x")
	f.Add("\x00", "", "%00", "\x00")
	f.Add("a\xff", "\u2028", "a%FF", "%E2%80%A8")
	f.Add("a", strings.Repeat("k", 1022), "a", strings.Repeat("k", 1023))
	f.Add("a", strings.Repeat("é", 512), "a", strings.Repeat("é", 511)+"è")
	f.Add(strings.Repeat("\n", 500), "", strings.Repeat("\n", 500), "b")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		one, two := lockstore.Key(a, b), lockstore.Key(c, d)
		if (one == two) != (a == c && b == d) {
			t.Errorf("Key(%q, %q) = %q and Key(%q, %q) = %q", a, b, one, c, d, two)
		}
		assert.Equal(t, 1, strings.Count(one, "/"), "only the join has a slash: %q", one)
		assert.NotEqual(t, one, lockstore.Key(one), "one part never looks like two")
		switch err := lockstore.ValidateKey(one); {
		case a == "":
			assert.ErrorContains(t, err, "empty part, number 1")
		case b == "":
			assert.ErrorContains(t, err, "empty part, number 2")
		case len(one) <= lockstore.MaxKeyBytes:
			assert.NoError(t, err, "whatever the parts are made of")
		}
		hashed, other := lockstore.KeyOrHash(a, b), lockstore.KeyOrHash(c, d)
		assert.Equal(t, one == two, hashed == other)
		assert.Equal(t, len(one) <= lockstore.MaxKeyBytes || a == "" || b == "", one == hashed)
		if a != "" && b != "" {
			assert.NoError(t, lockstore.ValidateKey(hashed))
		}
	})
}

func TestKeyOrHash(t *testing.T) {
	t.Run("F52 object keys of S3: up to 1,024 bytes of UTF-8, with control characters", func(t *testing.T) {
		long := func(end string) string { return strings.Repeat("k", 1024-len(end)) + end }
		seen := map[string]string{}
		for name, parts := range map[string][]string{
			"as long as S3 allows":           {"thumb", "photos", long("")},
			"different in its last byte":     {"thumb", "photos", long("x")},
			"characters of four bytes":       {"thumb", "photos", strings.Repeat("😀", 256)},
			"control characters":             {"thumb", "photos", strings.Repeat("\x01", 1024)},
			"bytes that are no UTF-8":        {"thumb", "photos", strings.Repeat("\xff", 1024)},
			"parts that are a hashed key":    strings.SplitN(lockstore.KeyOrHash("thumb", "photos", long("")), "/", 3),
			"a long part that is a hash too": {lockstore.KeyOrHash("thumb", "photos", long("")), long("")},
		} {
			key := lockstore.KeyOrHash(parts...)
			require.NoError(t, lockstore.ValidateKey(key), name)
			require.Empty(t, seen[key], "%s: the same key", name)
			seen[key] = name
			if lockstore.ValidateKey(lockstore.Key(parts...)) == nil {
				require.Equal(t, lockstore.Key(parts...), key, name)
				continue
			}
			require.LessOrEqual(t, len(key), 512, "%s: DynamoDB's write unit", name)
			require.Greater(t, len(key), 508, name)
			require.True(t, strings.HasPrefix(lockstore.Key(parts...), key[:430]), "%s: people see what it is for", name)
			require.Equal(t, key, lockstore.KeyOrHash(parts...), "the same each time")
		}
		for _, n := range []int{1022, 1023} { // with "a/": 1,024 and 1,025
			part := strings.Repeat("k", n)
			require.Equal(t, n == 1022, lockstore.Key("a", part) == lockstore.KeyOrHash("a", part), n)
		}
		for _, parts := range [][]string{{"thumb", "", "k"}, {"thumb", "", long("")}} {
			requireInvalid(t, lockstore.ValidateKey(lockstore.KeyOrHash(parts...)), "Key")
			require.ErrorContains(t, lockstore.ValidateKey(lockstore.KeyOrHash(parts...)), "empty part, number 2")
		}
	})
}

func TestValidateKey(t *testing.T) {
	for _, key := range []string{"k", strings.Repeat("k", 1024), strings.Repeat("é", 512), " ", "{}", "😀", "a\u00a0b", "\U0010ffff"} {
		assert.NoError(t, lockstore.ValidateKey(key), key)
	}
	for key, says := range map[string]string{
		"":                         "is empty; want 1 to 1024 bytes",
		strings.Repeat("k", 1025):  "has 1025 bytes; want 1 to 1024",
		strings.Repeat("漢", 342):   "has 1026 bytes",
		"a\x00":                    "control character at byte 1",
		"ab\ncd":                   "control character at byte 2",
		"a\x7f":                    "control character at byte 1",
		"a\u2028":                  "control character at byte 1",
		"a\xff":                    "not valid UTF-8",
		"\xc0\xaf":                 "not valid UTF-8", // a slash
		lockstore.Key("thumb", ""): "empty part, number 2",
		lockstore.Key("", strings.Repeat("k", 2000)): "empty part, number 1",
	} {
		t.Run("F52 "+says, func(t *testing.T) {
			err := lockstore.ValidateKey(key)
			requireInvalid(t, err, "Key")
			assert.ErrorContains(t, err, says)
			assert.Less(t, len(err.Error()), 200, "the key itself is not in the error")
			for _, r := range err.Error() {
				assert.GreaterOrEqual(t, r, ' ', "the error is one clean line")
			}
		})
	}
}

// requireInvalid wants an error of this one meaning that names the field.
func requireInvalid(t *testing.T, err error, field string) {
	t.Helper()
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	assert.ErrorContains(t, err, "lockstore: "+field+" ")
	assert.NotContains(t, err.Error(), lockstore.ErrInvalid.Error(), "whoever shows it says that already")
	others := []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrCorrupt, lockstore.ErrUnavailable}
	assert.False(t, slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) }), "one meaning: %v", err)
}
