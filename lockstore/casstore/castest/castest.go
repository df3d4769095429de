// Package castest checks a [casstore.KV], and the store that casstore makes of it:
//
//   - [Run] checks what the interface promises.
//   - [Harness] is a harness for storetest.Run, the suite of every store.
//   - [Memory] is a KV in memory.
//
// Implement [Wire], too. What the suite cannot see: a condition that holds within one process only,
// such as a mutex in place of the database's own condition, and stamps of the client's clock,
// if this clock agrees with the server's.
//
// A KV's test, where open makes a KV and a [Table] of the same server:
//
//	castest.Run(t, open, storetest.Parallel)
//	storetest.Run(t, func(t *testing.T) storetest.Harness {
//		kv, table := open(t)
//		return castest.Harness(t, kv, casstore.Options{}, table)
//	}, storetest.Parallel)
package castest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// Table is a KV's server, seen from outside. Its methods are for tests.
type Table interface {
	// Value returns the value of a key, nil for no entry.
	Value(t *testing.T, key string) []byte
	// SetValue replaces it, with a new version; nil deletes it. The value may be any bytes, also
	// some that a KV need not take: it is what another program may have left there.
	SetValue(t *testing.T, key string, value []byte)
}

// Wire is implemented by a Table that can break the network between the KV and its
// server. Then Run checks what the KV's errors say: a KV that says unknown of every failure, or not
// applied of every failure, passes without it. A KV over a file has no wire. Leave Wire out then, and test by
// hand what the KV says of a write that fails in the middle: only a write that surely changed nothing is
// lockstore.ErrUnavailable.
type Wire interface {
	// LoseReplies lets the server apply requests, and loses its replies, until restore.
	LoseReplies(t *testing.T) (restore func())
	// Hang loses what is sent, to the server and from it, and keeps connections open, until restore.
	Hang(t *testing.T) (restore func())
	// Unreachable returns a KV like the one under test whose server refuses connections.
	Unreachable(t *testing.T) casstore.KV
}

// Harness is what storetest may do to a store over the KV. Each case needs a
// harness of its own. Lost replies, silence and an unreachable server are made in front of
// the KV; a KV whose test can break the real network replaces LoseReplies,
// Hang and Unreachable. Foreign and Corrupt are about values; add what else can be at the
// place of an entry. If the KV is a Waker, waiters are woken; if it is a Lister, the store lists.
func Harness(t *testing.T, kv casstore.KV, opt casstore.Options, table Table) storetest.Harness {
	f := &faulty{KV: kv, t: t}
	store, err := casstore.New(f.withOptional(), opt)
	if err != nil {
		t.Fatal(err)
	}
	// An old read of the store's would miss the change, and a refusal may rest on one. A
	// fresh read shows the change to the KV's connection.
	set := func(t *testing.T, key string, value []byte) {
		t.Helper()
		table.SetValue(t, key, value)
		if _, _, err := kv.Read(t.Context(), key, true); err != nil {
			t.Fatalf("a fresh read after Table.SetValue: %v", err)
		}
	}
	change := func(f func(string) string) func(*testing.T, string) {
		return func(t *testing.T, key string) { set(t, key, []byte(f(string(table.Value(t, key))))) }
	}
	put := func(text string) func(*testing.T, string) { return change(func(string) string { return text }) }
	// leases is an entry with these leases, whose last fence is 9.
	leases := func(fields string) func(*testing.T, string) { return put(signed(`{"n":7,"fence":9,` + fields + `}`)) }
	// queue replaces the queue of an entry; "" is none.
	queue := func(damaged string) func(*testing.T, string) {
		return change(func(v string) string {
			_, text, _ := strings.Cut(v, "{")
			text = "{" + regexp.MustCompile(`,"queue":.*?\]`).ReplaceAllString(text, "")
			if damaged != "" {
				text = text[:len(text)-1] + `,"queue":` + damaged + "}"
			}
			return signed(text)
		})
	}
	return storetest.Harness{
		Parks:         true,
		Store:         store,
		Marks:         16,
		Yields:        true,
		TakeoverDelay: 2*kv.ClockResolution() + opt.MaxClockSkew,
		TurnDelay:     2 * kv.ClockResolution(),
		Margin:        opt.Margin,
		Requests:      func() int { return int(f.requests.Load()) },
		RequestsPerCall: map[driver.Kind]int{
			driver.Acquire: 3, driver.Renew: 2, driver.Release: 2, driver.Abandon: 2, driver.MarkStarted: 2, driver.Complete: 2,
		},
		Delete: func(t *testing.T, key string) { set(t, key, nil) },
		Snapshot: func(t *testing.T, key string) func() {
			value := table.Value(t, key)
			return func() { set(t, key, value) }
		},
		Dump: func(t *testing.T, key string) string { return string(table.Value(t, key)) },
		Foreign: map[string]func(*testing.T, string){
			"a text":       put("hello"),
			"no text":      put(""),
			"another JSON": put(`{"owner":"me"}`),
		},
		Corrupt: map[string]func(*testing.T, string){
			"cut short":       change(func(v string) string { return v[:len(v)-1] }),
			"one byte":        change(func(v string) string { return v[:30] + "\x00" + v[31:] }),
			"a later version": change(func(v string) string { return "lambdalock3" + v[len("lambdalock2"):] }),
			"says: the fences of the holders do not grow up to the last fence":                         leases(`"holders":[{"owner":"a","fence":8,"others":1,"ttl":9},{"owner":"b","fence":8,"seat":1,"others":1,"ttl":9}]`),
			"a fence above the last; says: the fences of the holders do not grow up to the last fence": leases(`"holders":[{"owner":"a","fence":10,"ttl":9}]`),
			"says: an owner has two leases":                                                            leases(`"holders":[{"owner":"a","fence":8,"others":1,"ttl":9},{"owner":"a","fence":9,"seat":1,"others":1,"ttl":9}]`),
			"says: two holders have one seat":                                                          leases(`"holders":[{"owner":"a","fence":8,"others":1,"ttl":9},{"owner":"b","fence":9,"others":1,"ttl":9}]`),
			"says: more hold the key than one of them allows":                                          leases(`"holders":[{"owner":"a","fence":8,"others":1,"ttl":9},{"owner":"b","fence":9,"seat":1,"ttl":9}]`),
			"says: the work of a lease with others has started":                                        leases(`"holders":[{"owner":"a","fence":9,"others":1,"ttl":9,"started":true}]`),
			"says: a closed key has a holder":                                                          leases(`"holders":[{"owner":"a","fence":9,"ttl":9}],"closed":{"for":9}`),
		},
		DamageQueue: map[string]func(*testing.T, string){
			"missing": queue(""), "null": queue("null"), "a number": queue("7"), "a text": queue(`"me"`), "an object": queue(`{"owner":"me"}`), "empty": queue("[]"),
			"no owner": queue(`[{"owner":""}]`), "of no owners": queue("[1,null]"), "one is cut short": queue(`[{"owner":"me"},{}]`),
			"no MaxHolders": queue(`[{"owner":"me","others":-7}]`), "parked for too long": queue(`[{"owner":"me","parked":3600000000000}]`),
		},
		Unreachable: func(t *testing.T) *lockstore.Store {
			s, err := casstore.New(unreachable{kv}, opt)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		LoseReplies: func(*testing.T) func() { return switched(&f.loses) },
		Hang:        func(*testing.T) func() { return switched(&f.hangs) },
		Delay:       f.delay.Delay,
		Inside: func(n int, lost bool, do func()) {
			f.left.Store(int32(n))
			f.inside, f.twice = do, lost
		},
	}
}

// signed is the value of an entry, as casstore writes it.
func signed(text string) string {
	return fmt.Sprintf("lambdalock2 %08x %s", crc32.ChecksumIEEE([]byte(text)), text)
}

func switched(b *atomic.Bool) func() {
	b.Store(true)
	return func() { b.Store(false) }
}

// faulty is a KV behind a network that a test can break.
type faulty struct {
	casstore.KV
	t            *testing.T
	requests     atomic.Int32
	delay        storetest.Delayer
	loses, hangs atomic.Bool
	left         atomic.Int32 // requests until inside is called, which is just before the last of them; below 1 never
	inside       func()
	twice        bool // if the request before that one is a write, the client sends it twice
}

// arrives counts a request, and says if the client sends it again.
func (f *faulty) arrives() (again bool) {
	f.requests.Add(1)
	n := f.left.Add(-1)
	if n == 0 {
		f.inside()
	}
	return n == 1 && f.twice
}

// withOptional is the faulty KV with what the KV can do besides, without faults.
func (f *faulty) withOptional() casstore.KV {
	w, wakes := f.KV.(casstore.Waker)
	l, lists := f.KV.(casstore.Lister)
	switch {
	case wakes && lists:
		return struct {
			*faultyWaker
			casstore.Lister
		}{&faultyWaker{f, w}, l}
	case wakes:
		return &faultyWaker{f, w}
	case lists:
		return struct {
			*faulty
			casstore.Lister
		}{f, l}
	}
	return f
}

func (f *faulty) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	f.arrives()
	if f.hangs.Load() {
		<-ctx.Done()
		return casstore.Entry{}, time.Time{}, ctx.Err()
	}
	return f.KV.Read(ctx, key, fresh)
}

func (f *faulty) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	return f.write(ctx, value, func(ctx context.Context) (casstore.Entry, error) { return f.KV.Write(ctx, key, value, ifVersion) })
}

func (f *faulty) write(ctx context.Context, value []byte, send func(context.Context) (casstore.Entry, error)) (casstore.Entry, error) {
	again := f.arrives()
	if len(value) > casstore.MaxValue || !utf8.Valid(value) || bytes.ContainsFunc(value, unicode.IsControl) {
		f.t.Errorf("the store writes a value of %d bytes, %.60q; want what KV.Write says", len(value), value)
	}
	e, err := storetest.Send(ctx, &f.delay, send)
	if err == nil && again {
		f.arrives()
		e, err = send(ctx)
	}
	if f.hangs.Load() {
		<-ctx.Done()
		return casstore.Entry{}, ctx.Err()
	}
	if f.loses.Load() {
		return casstore.Entry{}, errors.New("the connection ended before the reply")
	}
	return e, err
}

// faultyWaker is a faulty KV that wakes waiters.
type faultyWaker struct {
	*faulty
	casstore.Waker
}

func (f *faultyWaker) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (casstore.Entry, error) {
	return f.write(ctx, value, func(ctx context.Context) (casstore.Entry, error) {
		return f.Waker.WriteAndWake(ctx, key, value, ifVersion, notes)
	})
}

// unreachable is a KV whose server refuses connections.
type unreachable struct{ casstore.KV }

func (unreachable) Read(context.Context, string, bool) (casstore.Entry, time.Time, error) {
	return casstore.Entry{}, time.Time{}, fmt.Errorf("connection refused: %w", lockstore.ErrUnavailable)
}

func (unreachable) Write(context.Context, string, []byte, string) (casstore.Entry, error) {
	return casstore.Entry{}, fmt.Errorf("connection refused: %w", lockstore.ErrUnavailable)
}

// Memory is a KV in memory. Its clock is time.Now plus the time of Shift, cut down to its
// resolution.
type Memory struct {
	resolution time.Duration

	mu      sync.Mutex
	shift   time.Duration
	entries map[string]casstore.Entry
	writes  int
}

// NewMemory returns an empty KV whose clock has this resolution.
func NewMemory(resolution time.Duration) *Memory {
	return &Memory{resolution: resolution, entries: map[string]casstore.Entry{}}
}

// Shift sets the clock to d from the right time.
func (m *Memory) Shift(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shift = d
}

func (m *Memory) now() time.Time { return time.Now().Round(0).Add(m.shift).Truncate(m.resolution) }

// ClockResolution implements casstore.KV.
func (m *Memory) ClockResolution() time.Duration { return m.resolution }

// Read implements casstore.KV.
func (m *Memory) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	if err := ctx.Err(); err != nil {
		return casstore.Entry{}, time.Time{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var now time.Time
	if fresh {
		now = m.now()
	}
	return m.entries[key], now, nil
}

// Write implements casstore.KV.
func (m *Memory) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	if err := ctx.Err(); err != nil {
		return casstore.Entry{}, fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[key].Version != ifVersion {
		return casstore.Entry{}, casstore.ErrConflict
	}
	return m.set(key, value), nil
}

func (m *Memory) set(key string, value []byte) casstore.Entry {
	m.writes++
	e := casstore.Entry{Value: value, Version: fmt.Sprint(m.writes), WrittenAt: m.now()}
	m.entries[key] = e
	return e
}

// List implements casstore.Lister: one page, in the order of the keys.
func (m *Memory) List(_ context.Context, prefix string, page func(casstore.Page) error) error {
	return page(m.list(prefix))
}

func (m *Memory) list(prefix string) casstore.Page {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := casstore.Page{Now: m.now()}
	for _, key := range slices.Sorted(maps.Keys(m.entries)) {
		if strings.HasPrefix(key, prefix) {
			p.Entries = append(p.Entries, casstore.Listed{Key: key, Name: key, Entry: m.entries[key]})
		}
	}
	return p
}

// Extent implements casstore.Lister.
func (m *Memory) Extent(context.Context) (lockstore.Extent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return lockstore.Extent{Entries: int64(len(m.entries))}, nil
}

// Value implements Table.
func (m *Memory) Value(_ *testing.T, key string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[key].Value
}

// SetValue implements Table.
func (m *Memory) SetValue(_ *testing.T, key string, value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if value == nil {
		delete(m.entries, key)
		return
	}
	m.set(key, value)
}
