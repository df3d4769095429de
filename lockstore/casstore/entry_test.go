package casstore

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// single is a KV with one key, whatever its name is.
type single struct {
	entry  Entry
	writes int
	ahead  time.Duration // its clock is, of this process's
}

func (s *single) ClockResolution() time.Duration { return time.Millisecond }

func (s *single) now() time.Time { return time.Now().Round(0).Add(s.ahead).Truncate(time.Millisecond) }

func (s *single) Read(_ context.Context, _ string, fresh bool) (Entry, time.Time, error) {
	if !fresh {
		return s.entry, time.Time{}, nil
	}
	return s.entry, s.now(), nil
}

func (s *single) Write(_ context.Context, _ string, value []byte, ifVersion string) (Entry, error) {
	if s.entry.Version != ifVersion {
		return Entry{}, ErrConflict
	}
	s.set(value)
	return s.entry, nil
}

func (s *single) set(value []byte) {
	s.writes++
	s.entry = Entry{Value: value, Version: fmt.Sprint(s.writes), WrittenAt: s.now()}
}

func (s *single) text() string { return string(s.entry.Value[len(mark)+len("01234567 "):]) }

func (s *single) put(text string) {
	s.set(fmt.Appendf(nil, "%s%08x %s", mark, crc32.ChecksumIEEE([]byte(text)), text))
}

func (s *single) open(t *testing.T) *lockstore.Store {
	store, err := New(s, Options{})
	require.NoError(t, err)
	return store
}

func (s *single) driver(t *testing.T) *store {
	d, err := newStore(s, Options{})
	require.NoError(t, err)
	return d
}

// A function of a later version writes fields that this one does not know. While both are
// deployed they have to survive: in the entry, and with the holder, the place, the mark or the
// result that they belong to.
func TestUnknownFieldsSurvive(t *testing.T) {
	const text = `{"n":1,"fence":7,"new":{"deep":[1,2.50]},"holders":[{"owner":"owner-1","fence":7,"ttl":60000000000,"new":"of the holder"}],` +
		`"queue":[{"owner":"owner-2","work":"of a place","event":"m-1"},{"owner":"owner-3"}],"ended":[{"owner":"owner-0","how":99,"new":"of a mark"}]}`
	synctest.Test(t, func(t *testing.T) {
		r := &single{}
		r.put(text)
		s := r.open(t)
		lease := lockstore.Lease{Key: "k", Owner: "owner-1", Fence: 7}
		all := []string{"of the holder", "of a place", "of a mark"}
		acquire := func(s *lockstore.Store, owner lockstore.Owner, join bool) error {
			_, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: owner, TTL: time.Minute, JoinQueue: join})
			return err
		}
		for _, step := range []struct {
			what string
			do   func() error
			has  []string
		}{
			{"a place", func() error { return acquire(s, "owner-4", true) }, all},
			{"a renewal", func() error { _, err := s.Renew(t.Context(), lease, time.Minute); return err }, all},
			{"a repeat", func() error { return acquire(r.open(t), "owner-1", false) }, all},
			{"a start", func() error { return s.MarkStarted(t.Context(), lease) }, all},
			{"another's leave", func() error { return s.Leave(t.Context(), "k", "owner-3") }, all},
			{"a release", func() error { return s.Release(t.Context(), lease) }, all[2:]},
			{"an extension", func() error { return acquire(s, "owner-2", false) }, all[2:]},
		} {
			before := r.writes
			if err := step.do(); err != nil {
				require.ErrorIs(t, err, lockstore.ErrRefused, step.what)
			}
			require.Greater(t, r.writes, before, step.what)
			require.Contains(t, r.text(), `"new":{"deep":[1,2.50]}`, step.what)
			require.Contains(t, r.text(), `"how":99`, step.what)
			for _, of := range all {
				require.Equal(t, slices.Contains(step.has, of), strings.Contains(r.text(), of), "%s: %q in %s", step.what, of, r.text())
			}
		}
		r.put(`{"n":1,"fence":7,"closed":{"new":"of the result","for":60000000000}}`)
		require.NoError(t, r.open(t).Abandon(t.Context(), "k", "owner-9"))
		require.Contains(t, r.text(), "of the result")
	})
}

// A value that is damaged behind a right checksum is no lock's.
func TestFieldsThatContradictEachOther(t *testing.T) {
	for _, text := range []string{
		`null`, `{"n":0}`, `{"fence":-1}`, `{"fence":"7"}`, `[]`, `{"fence":7,"holders":[{}]}`, `{"fence":7,"holders":[null]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":8,"ttl":1000000000}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7}]}`,
		`{"fence":7,"holders":[{"fence":7,"ttl":1000000000}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":-1}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":1000000000000000000}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":1000000000,"others":-1}]}`,
		`{"fence":7,"holders":[{"owner":"o","fence":7,"ttl":1000000000,"begin":-1}]}`,
		`{"fence":7,"closed":{"for":0}}`, `{"fence":7,"closed":{"for":-1}}`, `{"fence":7,"closed":{"for":1000000000000000000}}`,
	} {
		r := &single{}
		r.put(strings.Replace(text, "{", `{"n":1,`, 1))
		_, err := r.open(t).Inspect(t.Context(), "k")
		assert.ErrorIs(t, err, lockstore.ErrCorrupt, text)
	}
}

// The largest entry is within the bounds that the KV was told.
func TestLargestEntry(t *testing.T) {
	s := (&single{}).driver(t)
	owner := func(i int) driver.Owner {
		return driver.Owner(fmt.Sprintf("%02d%s", i, strings.Repeat("<", lockstore.MaxOwnerBytes-2)))
	}
	text := strings.Repeat("<", lockstore.MaxHolderBytes)
	const fence = 1<<53 - 1
	next := rules.State{LastFence: fence, Holders: []rules.Holder{{
		Owner: owner(0), Fence: fence, MaxHolders: 1, Since: time.Unix(1<<32, 1), TTL: lockstore.MaxTTL, Text: text, Started: true,
	}}}
	for i := range book.Places {
		next.Queue = append(next.Queue, rules.Waiter{Owner: owner(i), MaxHolders: 1, Since: time.Unix(1<<32, 1)})
	}
	for i := range book.Marks {
		next.Ended = append(next.Ended, rules.Ended{Owner: owner(i), Fence: fence, How: rules.Revoked})
	}
	require.Less(t, len(encode(s.replacing(view{}, next))), 36<<10)
	next.Queue, next.Holders = nil, nil
	next.Closed = rules.Closed{Since: time.Unix(1<<32, 1), For: lockstore.MaxResultTime, Result: make([]byte, lockstore.MaxResultBytes), Text: text}
	require.Less(t, len(encode(s.replacing(view{}, next))), MaxValue)
}

// A process remembers what it wrote last, and no results: these may be large.
func TestNoResultInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &single{}
		d := r.driver(t)
		s := lockstore.New("casstore", d)
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "owner-1", TTL: time.Minute})
		require.NoError(t, err)
		require.Len(t, d.writes, 1)
		require.NoError(t, s.Complete(t.Context(), lease, []byte("answer"), time.Second))
		require.Contains(t, r.text(), "YW5zd2Vy")
		require.Empty(t, d.writes)
		<-time.After(2 * time.Second)
		_, err = s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "owner-2", TTL: time.Minute})
		require.NoError(t, err)
		require.NotContains(t, r.text(), "YW5zd2Vy")
		require.Len(t, d.writes, 1)
	})
}

func FuzzDecode(f *testing.F) {
	text, err := os.ReadFile("testdata/golden.txt")
	require.NoError(f, err)
	for _, entry := range regexp.MustCompile("`"+mark+"[0-9a-f]{8} (.+)`\n").FindAllStringSubmatch(string(text), -1) {
		f.Add(entry[1])
	}
	f.Add(`{"n":1,"queue":[{"owner":""}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := &single{}
		r.put(text)
		s := r.driver(t)
		v, err := s.view("k", r.entry)
		if err != nil {
			require.ErrorIs(t, err, lockstore.ErrCorrupt)
			return
		}
		again, err := s.view("k", Entry{Value: encode(s.replacing(v, v.State)), Version: "v", WrittenAt: r.entry.WrittenAt})
		require.NoError(t, err)
		require.Equal(t, v.State, again.State)
		var before, after map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(text), &before))
		require.NoError(t, json.Unmarshal(encode(s.replacing(v, v.State))[len(mark)+9:], &after))
		for name := range v.entry.other {
			require.Contains(t, after, name)
		}
	})
}
