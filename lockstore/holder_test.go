package lockstore_test

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

var noon = time.Date(2026, 10, 2, 12, 0, 0, 123_456_789, time.UTC)

func TestHolderComesBackAsItWent(t *testing.T) {
	for _, h := range []lockstore.Holder{
		{},
		{Name: "withdraw"},
		{ID: "8f507cfc"},
		{Since: noon.Truncate(time.Millisecond)},
		{Name: "withdraw", ID: "8f507cfc", Since: noon.Truncate(time.Millisecond)},
		{Name: "as 漢字 😀 é", ID: "a b:c|d"},
		{Since: time.UnixMilli(-1).UTC()},
		{Name: "5", ID: "7"},
	} {
		assert.Equal(t, h, lockstore.DecodeHolder(h.Encode()), h.Encode())
	}
	assert.Equal(t, noon.Truncate(time.Millisecond), lockstore.DecodeHolder(lockstore.Holder{Since: noon}.Encode()).Since, "kept in milliseconds")
}

func TestHolderEncodeIsBounded(t *testing.T) {
	h := lockstore.Holder{ID: "8f507cfc", Since: noon, Name: strings.Repeat("n", 300)}
	back := lockstore.DecodeHolder(h.Encode())
	assert.Len(t, h.Encode(), lockstore.MaxHolderBytes)
	assert.Equal(t, "8f507cfc", back.ID, "the name is cut first")
	assert.Regexp(t, "^n{200,}$", back.Name)

	h.ID = strings.Repeat("i", 300)
	back = lockstore.DecodeHolder(h.Encode())
	assert.Len(t, h.Encode(), lockstore.MaxHolderBytes)
	assert.Regexp(t, "^i{200,}$", back.ID)
	assert.Empty(t, back.Name)
	assert.Equal(t, noon.UnixMilli(), back.Since.UnixMilli())

	h = lockstore.Holder{Name: strings.Repeat("漢", 300)}
	assert.True(t, utf8.ValidString(h.Encode()), "no half character")
	assert.Greater(t, len(h.Encode()), lockstore.MaxHolderBytes-utf8.UTFMax)
}

func TestHolderIsCleaned(t *testing.T) {
	h := lockstore.Holder{Name: "a\nb\tc\x00d\x7fe\u0085f\u2028g\u2029h\xffi", ID: "\r\n"}
	want := lockstore.Holder{Name: "a b c d e f g h i", ID: "  "}
	assert.Equal(t, want, lockstore.DecodeHolder(h.Encode()))
}

func TestDecodeHolderOfForeignText(t *testing.T) {
	for text, want := range map[string]lockstore.Holder{
		"":                          {},
		"hello":                     {Name: "hello"},
		"hello\tworld\nagain":       {Name: "hello world again"},
		"\xff\xfe":                  {Name: "  "},
		"0":                         {},
		"0\tid":                     {ID: "id"},
		"0\tid\tname\ttail":         {ID: "id", Name: "name tail"},
		"0\ti\nd\tna\x00me":         {ID: "i d", Name: "na me"},
		"1e3\tid\tname":             {Name: "1e3 id name"},
		"99999999999999999999\tid":  {Name: "99999999999999999999 id"},
		"9223372036854775807\tid\t": {ID: "id"}, // a year that JSON cannot write
	} {
		assert.Equal(t, want, lockstore.DecodeHolder(text), "%q", text)
	}
	for _, text := range []string{strings.Repeat("x", 5000), "0\t" + strings.Repeat("x", 5000), "0\t\t" + strings.Repeat("x", 5000)} {
		h := lockstore.DecodeHolder(text)
		assert.LessOrEqual(t, len(h.Name)+len(h.ID), lockstore.MaxHolderBytes)
		assert.NotEqual(t, lockstore.Holder{}, h)
	}
}

func TestHolderString(t *testing.T) {
	for want, h := range map[string]lockstore.Holder{
		"unknown":                            {},
		"withdraw":                           {Name: "withdraw"},
		"unnamed (8f50)":                     {ID: "8f50"},
		"withdraw (8f50)":                    {Name: "withdraw", ID: "8f50"},
		"unnamed since 2026-10-02T12:00:00Z": {Since: noon},
		"withdraw (8f50) since 2026-10-02T12:00:00Z": {Name: "withdraw", ID: "8f50", Since: noon.In(time.FixedZone("", 7200))},
	} {
		assert.Equal(t, want, h.String())
	}
}

func TestHolderJSON(t *testing.T) {
	for want, h := range map[string]lockstore.Holder{
		`{}`:                {},
		`{"name":"a"}`:      {Name: "a"},
		`{"id":"\u003c\""}`: {ID: `<"`},
		`{"name":"a","id":"b","since":"2026-10-02T12:00:00.123456789Z"}`: {Name: "a", ID: "b", Since: noon},
	} {
		text, err := json.Marshal(h)
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
}

func FuzzHolderEncode(f *testing.F) {
	f.Add("name", "id", int64(1_790_942_400_123))
	f.Add(strings.Repeat("漢", 100), strings.Repeat("é", 100), int64(math.MaxInt64))
	f.Add("a\tb\nc", "\xff", int64(-1))
	f.Fuzz(func(t *testing.T, name, id string, ms int64) {
		text := lockstore.Holder{Name: name, ID: id, Since: time.UnixMilli(ms)}.Encode()
		require.LessOrEqual(t, len(text), lockstore.MaxHolderBytes)
		require.True(t, utf8.ValidString(text))
		back := lockstore.DecodeHolder(text)
		wellFormed(t, back)
		clean := func(s string) bool {
			return lockstore.ValidateKey("k"+s) == nil && !strings.Contains(s, "\ufffd")
		}
		if len(name)+len(id)+len(strconv.FormatInt(ms, 10))+2 <= lockstore.MaxHolderBytes && clean(name) && clean(id) {
			require.Equal(t, name, back.Name)
			require.Equal(t, id, back.ID)
		}
		require.Equal(t, back, lockstore.DecodeHolder(back.Encode()), "what was read once stays")
	})
}

func FuzzDecodeHolder(f *testing.F) {
	for _, s := range []string{"", "0\tid\tname", "x", "-9223372036854775808\t\t", "1\t\xff\t\u2028"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		wellFormed(t, lockstore.DecodeHolder(text))
	})
}

// wellFormed wants a holder that can be put into any log.
func wellFormed(t *testing.T, h lockstore.Holder) {
	t.Helper()
	require.LessOrEqual(t, len(h.Name)+len(h.ID), lockstore.MaxHolderBytes)
	for _, s := range []string{h.Name, h.ID} {
		if s != "" {
			require.NoError(t, lockstore.ValidateKey(s), "no control characters, valid UTF-8: %q", s)
		}
	}
	_, err := json.Marshal(h)
	require.NoError(t, err)
	require.NotContains(t, h.String(), "\n")
}
