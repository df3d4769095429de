package castest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// Run checks what the interface of a KV promises. It calls open for each case, inside run. run is how
// a case runs: synctest.Test for a KV in virtual time, storetest.Parallel for the
// wall clock.
//
// storetest.Run, with a [Harness], checks the store over the KV: also that one of many writers wins, and that no two keys share an entry.
// A KV needs both.
func Run(t *testing.T, open func(t *testing.T) (casstore.KV, Table), run func(*testing.T, func(*testing.T))) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Log(c.explanation)
					}
				}()
				kv, table := open(t)
				c.run(&check{T: t, kv: kv, table: table, key: fmt.Sprintf("castest/%s/%d", c.name, time.Now().UnixNano())})
			})
		})
	}
}

// check is one run of a case.
type check struct {
	*testing.T
	kv    casstore.KV
	table Table
	key   string
}

type testCase struct {
	name        string
	explanation string // logged after a failure: what the mistake does
	run         func(*check)
}

var cases = []testCase{
	{
		"kv/a write replaces only the version that it names, and no version comes again",
		"Two owners could be granted the key. A process that remembers a version from before a deletion could replace the entry of a live lease.",
		func(c *check) {
			elsewhere, err := c.kv.Write(c.Context(), c.key+"/elsewhere", []byte("v"), "")
			if err != nil {
				c.Fatal(err)
			}
			old := map[string]bool{elsewhere.Version: true}
			for range 3 {
				last := ""
				for _, value := range []string{"a", "b", "a"} {
					e := c.write(value, last)
					if e.Version == "" || old[e.Version] || e.Version == last {
						c.Fatalf("the version is %q; want a new one; before: %v", e.Version, old)
					}
					for version := range old {
						c.conflicts(version)
					}
					c.conflicts(last)
					if now, _ := c.read(true); string(now.Value) != value || now.Version != e.Version {
						c.Fatalf("after refused writes the entry is %q at %q; want %s at %q", now.Value, now.Version, value, e.Version)
					}
					if last != "" {
						old[last] = true
					}
					last = e.Version
				}
				old[last] = true
				c.table.SetValue(c.T, c.key, nil)
				c.conflicts(last)
			}
		},
	},
	{
		"kv/stamps are the service's time",
		"A stamp that is too early, or by the client's clock, lets another owner take over a lease that its holder trusts. If it is that of an earlier write, a renewal does not make the lease longer.",
		func(c *check) {
			e := casstore.Entry{}
			for i := range 3 {
				last := e.WrittenAt
				_, before := c.read(true)
				e = c.write(fmt.Sprint(i%2), e.Version)
				read, after := c.read(true)
				if !e.WrittenAt.After(last) || e.WrittenAt.Before(before) || e.WrittenAt.After(after) {
					c.Errorf("written at %v; want between %v and %v, and after %v", e.WrittenAt, before, after, last)
				}
				if !read.WrittenAt.Equal(e.WrittenAt) || read.Version != e.Version {
					c.Errorf("a read says %v %q, and the write said %v %q", read.WrittenAt, read.Version, e.WrittenAt, e.Version)
				}
				for _, stamp := range []time.Time{before, e.WrittenAt, after} {
					if stamp.IsZero() || !stamp.Equal(stamp.Truncate(c.kv.ClockResolution())) {
						c.Errorf("the time is %v; want a whole multiple of %v", stamp, c.kv.ClockResolution())
					}
				}
				<-time.After(c.kv.ClockResolution() + time.Millisecond)
			}
		},
	},
	{
		"kv/no entry, and any value",
		"The store could not read what it has written, so nobody would get the key any more.",
		func(c *check) {
			if e, now := c.read(true); e.Version != "" || len(e.Value) > 0 || !e.WrittenAt.IsZero() || now.IsZero() {
				c.Errorf("no entry reads as %v at %v; want a zero entry and a time", e, now)
			}
			version := ""
			for _, value := range []string{strings.Repeat("\"\\'<&>% {}[]:,é\u2028\uffff\U0001f512", 150), strings.Repeat("z9/=", casstore.MaxValue/4)} {
				version = c.write(value, version).Version
				if e, _ := c.read(true); string(e.Value) != value {
					c.Errorf("the entry has %d bytes, and another value than was written; want %d bytes", len(e.Value), len(value))
				}
			}
		},
	},
	{
		"kv/a write whose reply is lost",
		"It was applied. \"Not applied\" would be a lie: a second holder, or a lock that nobody ends.",
		func(c *check) {
			w, version := c.wire(), ""
			// The read connects, so that the reply that is lost is that to the write.
			c.read(true)
			for _, value := range []string{"a", "b"} { // it creates the entry, and replaces it
				restore := w.LoseReplies(c.T)
				_, err := c.kv.Write(c.Context(), c.key, []byte(value), version)
				restore()
				c.maybe("Write of "+value+" without a reply", err)
				e, _ := c.read(true)
				if string(e.Value) != value {
					c.Errorf("after a write whose reply was lost the entry is %q; want %s", e.Value, value)
				}
				version = e.Version
			}
		},
	},
	{
		"kv/a server that does not answer",
		"A holder's renewal would hang until after the end of its lease. A write that is sent after its call has returned would change the entry when nobody counts on it any more.",
		func(c *check) {
			w := c.wire()
			e := c.write("a", "")
			restore := w.Hang(c.T)
			for name, f := range map[string]func(context.Context) error{
				"Write": func(ctx context.Context) error {
					_, err := c.kv.Write(ctx, c.key, []byte("b"), e.Version)
					c.maybe("Write without an answer", err)
					return err
				},
				"Read": func(ctx context.Context) error { _, _, err := c.kv.Read(ctx, c.key, true); return err },
			} {
				ctx, cancel := context.WithTimeout(c.Context(), 300*time.Millisecond)
				ended := make(chan error, 1)
				go func() { ended <- f(ctx) }()
				select {
				case err := <-ended:
					if err == nil {
						c.Errorf("%s: no error; want one when there is no answer", name)
					}
				case <-time.After(2 * time.Second): // what a busy machine adds to 350 ms
					c.Errorf("%s goes on after its context", name)
					<-ended
				}
				cancel()
			}
			restore()
			<-time.After(time.Second)
			if now, _ := c.read(true); now.Version != e.Version {
				c.Errorf("the entry is %q: a write that did not arrive was sent again after its call had returned", now.Value)
			}
		},
	},
	{
		"kv/a server that refuses connections",
		"The caller would have to ask again what became of a request that was never sent.",
		func(c *check) {
			if _, err := c.wire().Unreachable(c.T).Write(c.Context(), c.key, []byte("a"), ""); !errors.Is(err, lockstore.ErrUnavailable) {
				c.Errorf("Write: %v; want ErrUnavailable", err)
			}
		},
	},
	{
		"kv/a wake-up reaches who listens",
		"A waiter would find out by itself, up to a second later.",
		func(c *check) {
			w, ok := c.kv.(casstore.Waker)
			if !ok {
				c.SkipNow()
			}
			version := c.write("a", "").Version
			write := func(value, owner string) (casstore.Entry, error) {
				return w.WriteAndWake(c.Context(), c.key, []byte(value), version, map[string]string{owner: "7 8 " + value})
			}
			e, err := write("b", "nobody")
			if err != nil {
				c.Fatalf("WriteAndWake of an owner that does not listen: %v; want nil", err)
			}
			listen := func(owner string) (<-chan string, func()) {
				woken, _, stop, err := w.Listen(c.Context(), c.key, owner, time.Now())
				if err != nil {
					c.Fatalf("Listen: %v", err)
				}
				return woken, stop
			}
			mine, stop := listen("me")
			others, stopOther := listen("other")
			for _, owner := range []string{"nobody", "me"} {
				if _, err := write("c", owner); !errors.Is(err, casstore.ErrConflict) {
					c.Errorf("WriteAndWake at an old version: %v; want ErrConflict", err)
				}
			}
			version = e.Version
			if e, err = write("d", "me"); err != nil {
				c.Fatalf("WriteAndWake: %v", err)
			}
			if now, _ := c.read(true); string(now.Value) != "d" || now.Version != e.Version {
				c.Errorf("after WriteAndWake the entry is %q at %q; want d at %q", now.Value, now.Version, e.Version)
			}
			select {
			case note := <-mine:
				if note != "" && note != "7 8 d" {
					c.Errorf("the wake-up has the note %q; want that of the write, or none", note)
				}
			case <-time.After(10 * time.Second):
				c.Error("a wake-up does not arrive")
			}
			select {
			case <-others:
				c.Error("the wake-up of another owner arrived")
			default:
			}
			stop()
			stopOther()
			_, stop = listen("me") // again
			stop()
		},
	},
}

// wire skips the case if the test cannot break the network.
func (c *check) wire() Wire {
	c.Helper()
	w, ok := c.table.(Wire)
	if !ok {
		c.Skip("the Table is no Wire")
	}
	return w
}

// maybe wants an error that leaves open whether the write was applied. A client that repeats a
// write by itself may get a conflict with the first copy.
func (c *check) maybe(what string, err error) {
	c.Helper()
	if err == nil || errors.Is(err, lockstore.ErrUnavailable) || errors.Is(err, lockstore.ErrCorrupt) {
		c.Errorf("%s: %v; want an error that leaves the outcome open", what, err)
	}
}

func (c *check) write(value, ifVersion string) casstore.Entry {
	c.Helper()
	e, err := c.kv.Write(c.Context(), c.key, []byte(value), ifVersion)
	if err != nil {
		c.Fatalf("Write at %q: %v", ifVersion, err)
	}
	return e
}

func (c *check) read(fresh bool) (casstore.Entry, time.Time) {
	c.Helper()
	e, now, err := c.kv.Read(c.Context(), c.key, fresh)
	if err != nil {
		c.Fatalf("Read: %v", err)
	}
	return e, now
}

func (c *check) conflicts(ifVersion string) {
	c.Helper()
	if _, err := c.kv.Write(c.Context(), c.key, []byte("conflict"), ifVersion); !errors.Is(err, casstore.ErrConflict) {
		c.Fatalf("Write at %q, which is not the version of the entry: %v; want ErrConflict", ifVersion, err)
	}
}
