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

// The bounds of a stored holder, and of the caller in it.
const maxHolderBytes, maxCallerBytes = 256, 128

const cron = "arn:aws:sts::123456789012:assumed-role/cron"

var noon = time.Date(2026, 10, 2, 12, 0, 0, 123_456_789, time.UTC)

func TestHolderComesBackAsItWent(t *testing.T) {
	since := noon.Truncate(time.Millisecond)
	for _, h := range []lockstore.HolderInfo{
		{},
		{Name: "withdraw", ID: "8f507cfc", Since: since},
		{Name: "as 漢字 😀 é", ID: "a b:c|d"},
		{Since: time.UnixMilli(-1).UTC()},
		{Name: "5", ID: "7"},
		{Caller: cron},
		{Name: "nightly", ID: "8f507cfc", Since: since, Caller: cron},
		{Name: "nightly", Caller: strings.Repeat("c", maxCallerBytes)},
	} {
		assert.Equal(t, h, lockstore.DecodeHolderInfo(h.Encode()), h.Encode())
	}
	assert.Equal(t, since, lockstore.DecodeHolderInfo(lockstore.HolderInfo{Since: noon}.Encode()).Since, "kept in milliseconds")
	dirty := lockstore.HolderInfo{Name: "a\nb\tc\x00d\x7fe\u0085f\u2028g\u2029h\xffi", ID: "\r\n", Caller: "a\tb\nc\xff"}
	assert.Equal(t, lockstore.HolderInfo{Name: "a b c d e f g h i", ID: "  ", Caller: "a b c "}, lockstore.DecodeHolderInfo(dirty.Encode()))
	assert.Equal(t, "0\tid\tname", lockstore.HolderInfo{Name: "name", ID: "id"}.Encode(), "as before there were callers")
}

// Who was authenticated is not pushed out by what a caller writes.
func TestHolderThatIsTooLong(t *testing.T) {
	long := strings.Repeat("漢", 300)
	role := "arn:aws-us-gov:sts::123456789012:assumed-role/" + strings.Repeat("r", 64) // the longest
	for name, c := range map[string]struct {
		h                lockstore.HolderInfo
		name, id, caller string // regular expressions
	}{
		"a long name":        {lockstore.HolderInfo{ID: "8f507cfc", Since: noon, Name: strings.Repeat("n", 300)}, "^n{200,}$", "^8f507cfc$", "^$"},
		"a long name and id": {lockstore.HolderInfo{ID: strings.Repeat("i", 300), Since: noon, Name: strings.Repeat("n", 300)}, "^$", "^i{200,}$", "^$"},
		"no half character":  {lockstore.HolderInfo{Name: long}, "^漢{80,}$", "^$", "^$"},
		"and a caller":       {lockstore.HolderInfo{Name: long, ID: long, Since: noon, Caller: cron}, "^$", "^漢+$", "^" + cron + "$"},
		"a far year":         {lockstore.HolderInfo{Name: long, ID: long, Since: time.UnixMilli(math.MinInt64), Caller: cron}, "^$", "^漢+$", "^" + cron + "$"},
		"tabs in the name":   {lockstore.HolderInfo{Name: "me\t" + cron + "2", ID: "1\t2\t3", Caller: cron}, "^me arn", "^1 2 3$", "^" + cron + "$"},
		"the longest role":   {lockstore.HolderInfo{Name: long, ID: "8f507cfc-41e1-4f9a-8d4e-2d1a4b7f0c11", Since: noon, Caller: role}, "^漢+$", "^8f507cfc-41e1-4f9a-8d4e-2d1a4b7f0c11$", "^" + role + "$"},
		"a longer caller":    {lockstore.HolderInfo{Caller: "arn:aws:iam::123456789012:user/" + long + "/jo"}, "^$", "^$", "^arn:aws:iam::123456789012:user/漢+…漢+/jo$"},
	} {
		text := c.h.Encode()
		assert.LessOrEqual(t, len(text), maxHolderBytes, name)
		assert.True(t, utf8.ValidString(text), name)
		back := lockstore.DecodeHolderInfo(text)
		assert.Regexp(t, c.name, back.Name, name)
		assert.Regexp(t, c.id, back.ID, name)
		assert.Regexp(t, c.caller, back.Caller, name)
		assert.LessOrEqual(t, len(back.Caller), maxCallerBytes, name)
	}
}

func TestDecodeHolderOfForeignText(t *testing.T) {
	for text, want := range map[string]lockstore.HolderInfo{
		"":                          {},
		"hello\tworld\nagain":       {Name: "hello world again"},
		"\xff\xfe":                  {Name: "  "},
		"0\tid":                     {ID: "id"},
		"0\tid\tname\tcaller\ttail": {ID: "id", Name: "name", Caller: "caller tail"},
		"0\ti\nd\tna\x00me":         {ID: "i d", Name: "na me"},
		"1e3\tid\tname":             {Name: "1e3 id name"},
		"99999999999999999999\tid":  {Name: "99999999999999999999 id"},
		"9223372036854775807\tid\t": {ID: "id"}, // a year that JSON cannot write
	} {
		assert.Equal(t, want, lockstore.DecodeHolderInfo(text), "%q", text)
	}
}

func TestHolderString(t *testing.T) {
	for want, h := range map[string]lockstore.HolderInfo{
		"unknown":  {},
		"withdraw": {Name: "withdraw"},
		"a holder without a name since 2026-10-02T12:00:00Z": {Since: noon},
		"withdraw (8f50) since 2026-10-02T12:00:00Z":         {Name: "withdraw", ID: "8f50", Since: noon.In(time.FixedZone("", 7200))},
		cron + " (8f50)": {Caller: cron, ID: "8f50"},
		cron + " (8f51)": {Name: cron, Caller: cron, ID: "8f51"},
		cron + ` as "me" (8f50) since 2026-10-02T12:00:00Z`:    {Name: "me", ID: "8f50", Since: noon, Caller: cron},
		cron + ` as "arn:aws:iam::1:user/jo as \"me\"" (8f50)`: {Name: `arn:aws:iam::1:user/jo as "me"`, ID: "8f50", Caller: cron},
	} {
		assert.Equal(t, want, h.String())
	}
}

func TestHolderJSON(t *testing.T) {
	for want, h := range map[string]lockstore.HolderInfo{
		`{}`:                {},
		`{"id":"\u003c\""}`: {ID: `<"`},
		`{"name":"a","id":"b","since":"2026-10-02T12:00:00.123456789Z"}`: {Name: "a", ID: "b", Since: noon},
		`{"caller":"b"}`: {Caller: "b"},
	} {
		text, err := json.Marshal(h)
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
}

func FuzzHolderEncode(f *testing.F) {
	f.Add("name", "id", int64(1_790_942_400_123), "")
	f.Add(strings.Repeat("漢", 100), strings.Repeat("é", 100), int64(math.MaxInt64), strings.Repeat("😀", 100))
	f.Add("a\tb\nc", "\xff", int64(-1), "c\td")
	f.Fuzz(func(t *testing.T, name, id string, ms int64, caller string) {
		text := lockstore.HolderInfo{Name: name, ID: id, Since: time.UnixMilli(ms), Caller: caller}.Encode()
		require.LessOrEqual(t, len(text), maxHolderBytes)
		require.True(t, utf8.ValidString(text))
		back := lockstore.DecodeHolderInfo(text)
		wellFormed(t, back)
		clean := func(s string) bool {
			return lockstore.ValidateKey("k"+s) == nil && !strings.Contains(s, "\ufffd")
		}
		if len(caller) <= maxCallerBytes && clean(caller) {
			require.Equal(t, caller, back.Caller, "whatever stands before it")
			if len(name)+len(id)+len(caller)+len(strconv.FormatInt(ms, 10))+3 <= maxHolderBytes && clean(name) && clean(id) {
				require.Equal(t, name, back.Name)
				require.Equal(t, id, back.ID)
			}
		}
		require.Equal(t, back, lockstore.DecodeHolderInfo(back.Encode()), "what was read once stays")
	})
}

func FuzzDecodeHolder(f *testing.F) {
	long := strings.Repeat("x", 5000)
	for _, s := range []string{"", "0\tid\tname", "x", long, "0\t" + long, "0\t\t" + long, "0\t\t\t" + long, "-9223372036854775808\t\t", "1\t\xff\t\u2028", "0\tid\tname\tcaller\tmore"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		wellFormed(t, lockstore.DecodeHolderInfo(text))
	})
}

// wellFormed wants a holder that can be put into any log.
func wellFormed(t *testing.T, h lockstore.HolderInfo) {
	t.Helper()
	require.LessOrEqual(t, len(h.Name)+len(h.ID)+len(h.Caller), maxHolderBytes)
	for _, s := range []string{h.Name, h.ID, h.Caller} {
		if s != "" {
			require.NoError(t, lockstore.ValidateKey(s), "no control characters, valid UTF-8: %q", s)
		}
	}
	_, err := json.Marshal(h)
	require.NoError(t, err)
	require.NotContains(t, h.String(), "\n")
}
