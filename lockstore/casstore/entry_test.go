package casstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/internal/entry"
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
	s.writes++
	s.entry = Entry{Value: value, Version: fmt.Sprint(s.writes), WrittenAt: s.now()}
	return s.entry, nil
}

func (s *single) driver(t *testing.T) *store {
	d, err := newStore(s, Options{})
	require.NoError(t, err)
	return d
}

// The largest entry is within the bounds that the KV was told.
func TestLargestEntry(t *testing.T) {
	size := func(next rules.State) int {
		return len(entry.Codec{Resolution: 1}.Replacing(entry.Entry{}, rules.State{}, next).Encode())
	}
	owner := func(i int) driver.Owner {
		return driver.Owner(fmt.Sprintf("%02d%s", i, strings.Repeat("<", lockstore.MaxOwnerBytes-2)))
	}
	text := strings.Repeat("<", 256)
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
	require.Less(t, size(next), 36<<10)
	next.Queue, next.Holders = nil, nil
	next.Closed = rules.Closed{Since: time.Unix(1<<32, 1), For: lockstore.MaxResultTime, Result: make([]byte, lockstore.MaxResultBytes), Text: text}
	require.Less(t, size(next), MaxValue)
}

// A process remembers what it wrote last, and no results: these may be large.
func TestNoResultInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := (&single{}).driver(t)
		s := lockstore.New("casstore", d)
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "owner-1", TTL: time.Minute})
		require.NoError(t, err)
		require.Len(t, d.writes, 1)
		require.NoError(t, s.Complete(t.Context(), lease, []byte("answer"), time.Second))
		require.Empty(t, d.writes)
		<-time.After(2 * time.Second)
		_, err = s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "owner-2", TTL: time.Minute})
		require.NoError(t, err)
		require.Len(t, d.writes, 1)
	})
}
