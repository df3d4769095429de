package page_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/lockstore"
)

var now = time.UnixMilli(1_790_942_400_000)

func by(name string, since time.Duration) lockstore.HolderInfo {
	return lockstore.HolderInfo{Name: name, ID: "1", Since: now.Add(-since)}
}

func held(key string, since time.Duration, waits ...time.Duration) lockstore.Status {
	s := lockstore.Status{Key: key, State: lockstore.Held, Holder: by("a", since), Fence: 1795295118105467, Remaining: time.Minute}
	s.Holders = []lockstore.LiveLease{{State: lockstore.Held, HolderInfo: s.Holder, Fence: s.Fence, MaxHolders: 1, Remaining: time.Minute}}
	for _, w := range waits {
		s.Waiting, s.OldestWait, s.Queue = s.Waiting+1, max(s.OldestWait, w), append(s.Queue, lockstore.Place{Waited: w})
	}
	return s
}

// Who looks at night sees the longest wait first, then what needs somebody, then who has a key for long.
func TestOrderAndNumbers(t *testing.T) {
	all := []lockstore.Status{
		held("new", time.Second), held("old", time.Hour), held("busy", time.Second, time.Minute, time.Second), held("stuck", time.Minute, time.Hour),
		{Key: "doubt", State: lockstore.InDoubt, Holder: by("b", time.Minute), Fence: 7}, {Key: "free"}, {Key: "kept", State: lockstore.Reserved, Waiting: 1, Parked: 1, Queue: []lockstore.Place{{Parked: true}}},
	}
	s := page.Of(all, now, 6, strings.ToUpper)
	var keys []string
	for _, k := range s.Keys {
		keys = append(keys, k.Key)
	}
	assert.Equal(t, []string{"stuck", "busy", "doubt", "old", "new", "free"}, keys)
	assert.Equal(t, []any{4, 4, time.Hour.Milliseconds(), 1, 1}, []any{s.Held, s.Waiting, s.OldestWaitMs, s.InDoubt, s.More}, "of all keys, shown or not")
	a := by("a", time.Minute)
	assert.Equal(t, page.Key{
		Key: "stuck", Shown: "STUCK", State: lockstore.Held, Holder: &a, Who: "A (1)", SinceAt: a.Since.UnixMilli(), LeftMs: 60_000, Fence: 1795295118105467, MaxHolders: 1,
		Holders: []page.Holder{{State: lockstore.Held, Holder: &a, Who: "A (1)", LeftMs: 60_000, Fence: 1795295118105467, MaxHolders: 1}},
		Waiting: 1, OldestWaitMs: time.Hour.Milliseconds(), Queue: []page.Place{{WaitedMs: time.Hour.Milliseconds()}},
	}, s.Keys[0])
	assert.Equal(t, []page.Place{{Parked: true}}, page.Of(all[6:], now, 1, strings.ToUpper).Keys[0].Queue)
}

// Of several holders the row says how many, and since when the first.
func TestSeveral(t *testing.T) {
	s := held("k", time.Minute)
	s.Holders[0].MaxHolders = 3
	s.Holders = append(s.Holders, lockstore.LiveLease{State: lockstore.Held, HolderInfo: by("b", time.Hour), Fence: 8, Seat: 1, MaxHolders: 2})
	k := page.Of([]lockstore.Status{s}, now, 1, func(s string) string { return s }).Keys[0]
	assert.Equal(t, []any{"2 of 2", now.Add(-time.Hour).UnixMilli()}, []any{k.Who, k.SinceAt})
	s.Holders[1].HolderInfo = lockstore.HolderInfo{}
	assert.Zero(t, page.Since(s), "it may be longer")
	s.Holders[1].State = lockstore.Reserved // who was handed the key is not known yet
	assert.Equal(t, now.Add(-time.Minute), page.Since(s))
}

// A timeline has the colours of the picture of make run, light and dark.
func TestColours(t *testing.T) {
	css, err := page.Files.ReadFile("page.css")
	require.NoError(t, err)
	picture, err := os.ReadFile("../../../cmd/lockctl/internal/locallambda/timeline.go")
	require.NoError(t, err)
	find := func(text []byte, before string) (all []string) {
		for _, m := range regexp.MustCompile(before+"(#[0-9a-f]{6})").FindAllSubmatch(text, -1) {
			all = append(all, string(m[1]))
		}
		return all
	}
	for ours, theirs := range map[string]string{"good": "good", "bad": "bad", "lost": "lost", "freeze": "frozen"} {
		colours := find(css, "--"+ours+": ")
		assert.Len(t, colours, 2)
		assert.Equal(t, find(picture, `\.`+theirs+` { fill: `), colours, ours)
	}
}
