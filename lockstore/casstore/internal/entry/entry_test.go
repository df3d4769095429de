package entry

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

var (
	codec = Codec{Resolution: time.Millisecond}
	now   = time.Unix(1_800_000_000, 0)
)

func signed(text string) []byte {
	return fmt.Appendf(nil, "%s%08x %s", mark, crc32.ChecksumIEEE([]byte(text)), text)
}

// A function of a later version writes fields that this one does not know. While both are
// deployed they have to survive: in the entry, and with the holder, the place, the mark or the
// result that they belong to.
func TestUnknownFieldsSurvive(t *testing.T) {
	const text = `{"n":1,"fence":7,"new":{"deep":[1,2.50]},"holders":[{"owner":"owner-1","fence":7,"ttl":60000000000,"new":"of the holder"}],` +
		`"queue":[{"owner":"owner-2","priority":"of a place"},{"owner":"owner-3"}],"ended":[{"owner":"owner-0","how":99,"new":"of a mark"}]}`
	// after is the value after a request.
	after := func(value []byte, r driver.Request) []byte {
		e, err := Decode(value)
		require.NoError(t, err)
		before := codec.State(e, now)
		r.TTL, r.MaxHolders = time.Minute, 1
		next, changed, _, _ := rules.Book{Places: 9, Marks: 9}.Decide(before, rules.At(now.Add(time.Second)), r)
		require.True(t, changed)
		return codec.Replacing(e, before, next).Encode()
	}
	all := []string{"of the holder", "of a place", "of a mark"}
	value := signed(text)
	for _, step := range []struct {
		what    string
		request driver.Request
		has     []string
	}{
		{"a place", driver.Request{Kind: driver.Acquire, Owner: "owner-4", Join: true}, all},
		{"a renewal", driver.Request{Kind: driver.Renew, Owner: "owner-1", Fence: 7}, all},
		{"a start", driver.Request{Kind: driver.MarkStarted, Owner: "owner-1", Fence: 7}, all},
		{"another's leave", driver.Request{Kind: driver.Leave, Owner: "owner-3"}, all},
		{"a release", driver.Request{Kind: driver.Release, Owner: "owner-1", Fence: 7}, all[2:]},
		{"an extension", driver.Request{Kind: driver.Acquire, Owner: "owner-2"}, all[2:]},
	} {
		value = after(value, step.request)
		require.Contains(t, string(value), `"new":{"deep":[1,2.50]}`, step.what)
		require.Contains(t, string(value), `"how":99`, step.what)
		for _, of := range all {
			require.Equal(t, slices.Contains(step.has, of), strings.Contains(string(value), of), "%s: %q in %s", step.what, of, value)
		}
	}
	closed := signed(`{"n":1,"fence":7,"closed":{"new":"of the result","for":60000000000}}`)
	require.Contains(t, string(after(closed, driver.Request{Kind: driver.Abandon, Owner: "owner-9"})), "of the result")
}

// A value that is damaged behind a right checksum is no lock's.
func TestFieldsThatContradictEachOther(t *testing.T) {
	for _, text := range []string{
		`null`, `{}x`, `{"fence":7} {}`, `{"n":0}`, `{"fence":-1}`, `{"fence":"7"}`, `[]`, `{"fence":7,"holders":[{}]}`, `{"fence":7,"holders":[null]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7}]}`,
		`{"fence":7,"holders":[{"fence":7,"ttl":1000000000}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":-1}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":1000000000000000000}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":1000000000,"others":-1}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":1000000000,"begin":-1}]}`,
		`{"fence":7,"closed":{"for":0}}`, `{"fence":7,"closed":{"for":-1}}`, `{"fence":7,"closed":{"for":1000000000000000000}}`,
	} {
		_, err := Decode(signed(strings.Replace(text, "{", `{"n":1,`, 1)))
		assert.Error(t, err, text)
	}
}

// golden are entries of each state of a key.
func golden(t testing.TB) (texts []string) {
	text, err := os.ReadFile("../../testdata/golden.txt")
	require.NoError(t, err)
	for _, entry := range regexp.MustCompile("`"+mark+"[0-9a-f]{8} (.+)`\n").FindAllStringSubmatch(string(text), -1) {
		texts = append(texts, entry[1])
	}
	require.NotEmpty(t, texts)
	return texts
}

// An entry without unknown fields is read and written as one that may have some.
func TestPlainEntries(t *testing.T) {
	for _, text := range golden(t) {
		fast, err := Decode(signed(text))
		require.NoError(t, err)
		_, ok := fast.plain()
		require.True(t, ok, text)
		var slow Entry
		require.NoError(t, json.Unmarshal([]byte(text), &slow))
		require.Equal(t, codec.State(slow, now), codec.State(fast, now), text)
		object, err := json.Marshal(slow)
		require.NoError(t, err)
		require.Equal(t, string(signed(string(object))), string(fast.Encode()))
	}
}

func FuzzDecode(f *testing.F) {
	for _, entry := range golden(f) {
		f.Add(entry)
	}
	f.Add(`{"n":1,"queue":[{"owner":""}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Decode(signed(text))
		if err != nil {
			return
		}
		s := codec.State(e, now)
		value := codec.Replacing(e, s, s).Encode()
		again, err := Decode(value)
		require.NoError(t, err)
		require.Equal(t, s, codec.State(again, now))
		var after map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(value[len(mark)+9:], &after))
		for name := range e.other {
			require.Contains(t, after, name)
		}
	})
}
