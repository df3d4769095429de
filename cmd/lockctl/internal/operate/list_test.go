package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// large is the driver of a table that is never read.
type large struct {
	driver.Driver
	driver.Lister
}

func (large) Extent(context.Context) (driver.Extent, error) {
	return driver.Extent{Entries: 8_000_000, Bytes: 2 << 30, ReadUnits: 524_288}, nil
}

var largeStore = lockstore.New("large", large{})

func TestAsksBeforeItReadsMuch(t *testing.T) {
	ask := func(l *lister) (int, string) {
		var said bytes.Buffer
		l.err, l.Settings = &said, stores.Settings{Timeout: time.Second}
		_, err := l.ask(t.Context(), largeStore)
		return exit.Status(err), said.String()
	}
	const price = "reading about 8000000 entries, 2147.5 MB, 524288 read units, about $0.0655"
	assert.Equal(t, "reading about 1 entries", extentText(lockstore.Extent{Entries: 1, Bytes: 24576}))
	status, said := ask(&lister{in: strings.NewReader("y\n")})
	assert.Equal(t, exit.Usage, status, "nobody is there to ask")
	assert.Contains(t, said, price)
	status, said = ask(&lister{in: strings.NewReader(""), yes: true})
	assert.Equal(t, 0, status)
	assert.Contains(t, said, price)
	for line, want := range map[string]int{"y": 0, "Yes": 0, "": exit.No, "n": exit.No, "yess": exit.No} {
		user, terminal, err := pty.Open()
		require.NoError(t, err)
		_, err = user.WriteString(line + "\n")
		require.NoError(t, err)
		status, said = ask(&lister{in: terminal})
		assert.Equal(t, want, status, "%q", line)
		assert.Contains(t, said, "[y/N]")
		require.NoError(t, terminal.Close())
		require.NoError(t, user.Close())
	}
}

// Ctrl-C ends the wait for an answer.
func TestAsksUntilInterrupted(t *testing.T) {
	user, terminal, err := pty.Open()
	require.NoError(t, err)
	defer user.Close()
	defer terminal.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	question := asked{interrupt}
	l := &lister{in: terminal, err: question, Settings: stores.Settings{Timeout: time.Second}}
	_, err = l.ask(ctx, largeStore)
	require.ErrorIs(t, err, context.Canceled)
	r := &revoker{in: terminal, err: question}
	require.ErrorIs(t, r.confirm(ctx, heldLease{}), context.Canceled)
}

// asked is where a question is written. Nobody answers it.
type asked struct{ interrupt func() }

func (a asked) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "?") {
		a.interrupt()
	}
	return len(b), nil
}

// pages is the driver of a store whose listing is given.
type pages struct {
	driver.Driver
	all []driver.Page
}

func (p pages) List(_ context.Context, _ string, page func(driver.Page) error) error {
	for _, one := range p.all {
		if err := page(one); err != nil {
			return err
		}
	}
	return nil
}

func (pages) Extent(context.Context) (driver.Extent, error) {
	return driver.Extent{Entries: 6}, nil
}

// What an operator asks at night: who has a key for long, who keeps most waiting, what is
// damaged, and how far the listing is.
func TestListFindsTheOldest(t *testing.T) {
	held := func(key string, minutes, waiting int) driver.Listed {
		var holder lockstore.HolderInfo
		if minutes >= 0 {
			holder.Since = time.Now().Add(-time.Duration(minutes) * time.Minute)
		}
		return driver.Listed{Key: key, Status: driver.Status{State: driver.Held, Holder: holder.Encode(), Fence: 7, Waiting: waiting, Remaining: time.Minute}}
	}
	store := lockstore.New("pages", pages{all: []driver.Page{
		{Read: 3, Keys: []driver.Listed{held("b", 11, 3), held("c", 1, 12), {Key: "free", Status: driver.Status{Fence: 3}}}, Damaged: 12, DamagedNames: []string{"l:x", "l:y\u202e", "3", "4", "5", "6"}},
		{Read: 3, Keys: []driver.Listed{held("a", 100, 0), held("unknown", -1, 1)}, Damaged: 6, DamagedNames: []string{"7", "8", "9", "10", "11"}},
	}})
	for name, c := range map[string]struct {
		lister
		want []string
		said string
	}{
		"as it comes":        {lister{}, []string{"b", "c", "a", "unknown"}, ""},
		"the oldest first":   {lister{sort: sortAge}, []string{"unknown", "a", "b", "c"}, ""},
		"by key":             {lister{sort: sortKey}, []string{"a", "b", "c", "unknown"}, ""},
		"most waiting first": {lister{sort: sortWaiting}, []string{"c", "b", "unknown", "a"}, ""},
		"longer than":        {lister{longer: 10 * time.Minute}, []string{"b", "a", "unknown"}, ""},
		"none for so long":   {lister{longer: 10 * time.Minute, states: []string{"in doubt"}}, nil, "lockctl: no key has the state in doubt for longer than 10m0s\n"},
		"the limit is last":  {lister{sort: sortKey, limit: 2}, []string{"a", "b"}, "lockctl: there are more; this is --limit 2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, said, progress bytes.Buffer
			l := c.lister
			l.Settings = stores.Settings{Timeout: time.Second, JSON: true}
			l.rate, l.out, l.err, l.progress = mostRate, exit.Writer{To: &out}, exit.Writer{To: &said}, &progress
			if l.states == nil {
				l.states = []string{"held"}
			}
			require.NoError(t, l.list(t.Context(), store, ""))
			var keys []string
			for _, line := range linesOf(&out) {
				var got struct{ Key string }
				require.NoError(t, json.Unmarshal([]byte(line), &got))
				if got.Key != "" {
					keys = append(keys, got.Key)
				}
			}
			assert.Equal(t, c.want, keys)
			assert.Contains(t, said.String(), `lockctl: 18 entries are damaged or another program's, and not listed: "l:x", "l:y\u202e", "3", "4", "5", "6", "7", "8", "9", "10" and 8 more`+"\n")
			assert.Contains(t, said.String(), c.said)
			assert.Contains(t, progress.String(), "\r3 of about 6 entries read, ")
			assert.True(t, strings.HasSuffix(progress.String(), "\r\x1b[K"), "it leaves no line behind")
		})
	}
}

// A store that cannot list is not told as one that does not answer.
func TestStoreThatCannotList(t *testing.T) {
	l := &lister{rate: mostRate, Settings: stores.Settings{Timeout: time.Second}}
	err := l.list(t.Context(), lockstore.New("plain", struct{ driver.Driver }{}), "")
	require.EqualError(t, err, "plain: this store cannot list its keys: unsupported operation")
	assert.Equal(t, exit.Config, exit.Status(err))
}

func TestNames(t *testing.T) {
	assert.Equal(t, "withdraw (4f1c)", named(lockstore.HolderInfo{Name: "withdraw", ID: "4f1c"}))
	assert.Equal(t, "arn:aws:x", named(lockstore.HolderInfo{Name: "me", Caller: "arn:aws:x"}))
	assert.Equal(t, "unnamed", named(lockstore.HolderInfo{}))
}
