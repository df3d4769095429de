// Package golden compares what a store writes with the files testdata/golden*.txt of its tests. Two
// versions share a table while a function is deployed, so each has to read what the other writes.
package golden

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Key is the key of all entries.
const Key = "account/7"

// Storage is where a store writes, with nothing in it. It is made in a synctest bubble.
type Storage struct {
	Open  func() *lockstore.Store // a store that has seen nothing yet
	Read  func() string           // what is stored of Key
	Write func(text string)       // stores it, as a write of this moment
	Parks bool                    // its queue has parked places
}

var update = flag.Bool("update", false, "write testdata/golden.txt")

// Run does the steps, and compares what the store writes, and what it reads from that, with
// testdata/golden.txt. The entries in the other files testdata/golden*.txt are those of earlier
// versions: the store has to read them as these did.
func Run(t *testing.T, storage func(t *testing.T) Storage) {
	const file = "testdata/golden.txt"
	text, known := "", map[entry]bool{}
	for _, e := range written(t, storage) {
		e.reads = read(t, storage, e)
		text += e.String()
		known[e] = true
	}
	if *update {
		expect(t, os.MkdirAll("testdata", 0o755), nil)
		expect(t, os.WriteFile(file, []byte(text), 0o644), nil)
	}
	is, err := os.ReadFile(file)
	expect(t, err, nil)
	if string(is) != text {
		t.Errorf("%s is not what the store writes and reads now. If a version with these entries is released, keep the file as golden-VERSION.txt. "+
			"Then: go test . -run %s -update. Now it is\n%s", file, t.Name(), text)
	}
	files, err := filepath.Glob("testdata/golden*.txt")
	expect(t, err, nil)
	for _, file := range files {
		text, err := os.ReadFile(file)
		expect(t, err, nil)
		for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
			e, err := parse(block)
			expect(t, err, nil)
			if known[e] {
				continue
			}
			if reads := read(t, storage, e); reads != e.reads {
				t.Errorf("%s: %s is read as\n%s\nwant\n%s", file, e.name, reads, e.reads)
			}
		}
	}
}

// entry is one state of the key.
type entry struct {
	name    string
	written time.Duration // since the beginning
	later   time.Duration // read after it was written
	text    string        // what is stored
	reads   string        // the state, and the answer to an Acquire of each owner
}

func (e entry) String() string {
	text := "`" + e.text + "`"
	if !strconv.CanBackquote(e.text) {
		text = strconv.Quote(e.text)
	}
	return fmt.Sprintf("%s, written at %v, read %v later\n%s\n%s\n\n", e.name, e.written, e.later, text, e.reads)
}

func parse(block string) (e entry, err error) {
	lines := strings.SplitN(block, "\n", 3)
	words := strings.Split(lines[0], ", ")
	if len(lines) < 3 || len(words) != 3 {
		return e, errors.New("not an entry")
	}
	e.name, e.reads = words[0], lines[2]
	var first, second, third error
	e.written, first = time.ParseDuration(strings.TrimPrefix(words[1], "written at "))
	e.later, second = time.ParseDuration(strings.TrimSuffix(strings.TrimPrefix(words[2], "read "), " later"))
	e.text, third = strconv.Unquote(lines[1])
	return e, errors.Join(first, second, third)
}

func request(owner string, maxHolders int) lockstore.Request {
	return lockstore.Request{
		Key: Key, Owner: lockstore.Owner(owner), TTL: 10 * time.Second, MaxHolders: maxHolders,
		HolderInfo: lockstore.HolderInfo{Name: "transfer", ID: "run of " + owner},
	}
}

// coalescing is a request that another event's run may cover.
func coalescing(owner, event string) lockstore.Request {
	r := request(owner, 1)
	r.JoinQueue, r.Work, r.Event = true, "index", event
	return r
}

// owners are those of the requests in written, and one that has not asked yet.
var owners = strings.Fields("a b c d e f g h i j new")

// written are all states of a key, one after the other.
func written(t *testing.T, storage func(*testing.T) Storage) (all []entry) {
	synctest.Test(t, func(t *testing.T) {
		began, there := time.Now(), storage(t)
		s, ctx := there.Open(), t.Context()
		acquire := func(owner string, maxHolders int) lockstore.Lease {
			lease, err := s.Acquire(ctx, request(owner, maxHolders))
			expect(t, err, nil)
			return lease
		}
		join := func(owner string, maxHolders int) {
			r := request(owner, maxHolders)
			r.JoinQueue = true
			_, err := s.Acquire(ctx, r)
			expect(t, err, lockstore.ErrRefused)
		}
		state := func(name string, later time.Duration) {
			all = append(all, entry{name: name, written: time.Since(began), later: later, text: there.Read()})
			<-time.After(time.Second)
		}

		lease := acquire("a", 1)
		state("held", 0)
		join("b", 1)
		join("c", 3)
		state("a queue", 0)
		_, err := s.Renew(ctx, lease, 20*time.Second)
		expect(t, err, nil)
		state("renewed", 0)
		expect(t, s.MarkStarted(ctx, lease), nil)
		state("started", 0)
		state("in doubt", time.Minute)
		expect(t, s.Release(ctx, lease), nil)
		state("handed over", 0)
		lease = acquire("b", 1)
		state("extended", 0)
		expect(t, s.Complete(ctx, lease, []byte(`{"ok":true}`), time.Minute), nil)
		state("completed", 0)
		<-time.After(2 * time.Minute)
		acquire("d", 3)
		lease = acquire("e", 2)
		join("f", 1)
		state("shared", 0)
		expect(t, s.Release(ctx, lease), nil)
		state("one of two", 0)
		<-time.After(time.Minute)
		expect(t, s.Complete(ctx, acquire("g", 1), nil, time.Minute), nil)
		state("a cooldown", 0)
		<-time.After(2 * time.Minute)
		lease = acquire("h", 1)
		expect(t, s.MarkStarted(ctx, lease), nil)
		<-time.After(time.Minute)
		expect(t, s.ResolveNoEffect(ctx, Key, lease.Fence), nil)
		state("resolved", 0)
		expect(t, s.Abandon(ctx, Key, "i"), nil)
		state("abandoned", 0)
		lease = acquire("j", 1)
		_, err = s.Revoke(ctx, lockstore.RevokeRequest{Key: Key, Fence: lease.Fence, By: lockstore.HolderInfo{Name: "operator"}})
		expect(t, err, nil)
		state("revoked", 0)
		expect(t, s.Release(ctx, lease), lockstore.ErrLost)
		state("free", 0)
		lease = acquire("c", 1)
		if there.Parks {
			r := request("f", 1)
			r.JoinQueue, r.Parked, r.Address = true, 30*time.Second, lockstore.TaskToken("token")
			_, err = s.Acquire(ctx, r)
			expect(t, err, lockstore.ErrRefused)
			state("a parked place", 0)
			expect(t, s.Release(ctx, lease), nil)
			state("handed over to a parked place", 0)
		}
		_, err = s.Acquire(ctx, coalescing("k", "1"))
		expect(t, err, lockstore.ErrRefused)
		state("one waits for all", 0)
	})
	return all
}

// read says what a store finds in an entry.
func read(t *testing.T, storage func(*testing.T) Storage, e entry) string {
	var all []string
	synctest.Test(t, func(t *testing.T) {
		there := storage(t)
		<-time.After(e.written)
		there.Write(e.text)
		<-time.After(e.later)
		status, err := there.Open().Inspect(t.Context(), Key)
		expect(t, err, nil)
		all = append(all, fmt.Sprintf("%v for %v: fence %d, %v; %d wait", status.State, status.Remaining, status.Fence, status.Holder, status.Waiting))
		if status.Parked > 0 {
			all[0] += fmt.Sprintf(", %d of them parked", status.Parked)
		}
		for _, h := range status.Holders {
			all = append(all, fmt.Sprintf("%v for %v: fence %d, %v, seat %d of %d", h.State, h.Remaining, h.Fence, h.HolderInfo, h.Seat, h.MaxHolders))
		}
		told := map[string][]string{}
		for _, owner := range owners {
			lease, err := there.Open().Acquire(t.Context(), request(owner, 1))
			says := fmt.Sprintf("granted: fence %d, seat %d", lease.Fence, lease.Seat)
			if refused, ok := errors.AsType[*lockstore.Refused](err); ok {
				says = fmt.Sprintf("refused: %v, place %d, result %q", refused.State, refused.QueuePosition, string(refused.Result))
			} else if err != nil {
				expect(t, err, lockstore.ErrLost)
				says = "the owner has ended"
			}
			told[says] = append(told[says], owner)
			if e.later == 0 { // what is read later grants nothing
				there.Write(e.text)
			}
		}
		for _, event := range []string{"1", "2"} {
			_, err := there.Open().Acquire(t.Context(), coalescing("another", event))
			if refused, ok := errors.AsType[*lockstore.Refused](err); ok && refused.Covered {
				all = append(all, "event "+event+" is covered")
			}
			if e.later == 0 {
				there.Write(e.text)
			}
		}
		for _, says := range slices.Sorted(maps.Keys(told)) {
			all = append(all, strings.Join(told[says], " ")+": "+says)
		}
	})
	return strings.Join(all, "\n")
}

func expect(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%v; want %v", err, want)
	}
}
