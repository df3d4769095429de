package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

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
			err := l.list(t.Context(), store, "")
			assert.Equal(t, l.longer > 0 && len(c.want) > 0, exit.Status(err) == exit.No, "cron is told")
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

const runID = "8f0e6a1c-3d39-4c1b-9d1e-0f6d2b1a7c55"

// examples are the states of a key, in the order in which watch may see them.
func examples(key string) []lockstore.Status {
	holder := lockstore.HolderInfo{Name: "withdraw", ID: runID, Since: time.Date(2026, 11, 22, 10, 2, 11, 0, time.UTC)}
	revoker := holder
	revoker.Name, revoker.ID = "revoked by ann@laptop.example.com: was withdraw ("+runID+")", "4711"
	return []lockstore.Status{
		{Key: key},
		{Key: key, State: lockstore.Held, Holder: holder, Remaining: 41 * time.Second, Fence: 1795295118105467, Waiting: 3},
		{Key: key, State: lockstore.Revoked, Holder: revoker, Remaining: 14*time.Minute + 59*time.Second, Fence: 1795295118105467, Waiting: 12, Parked: 5},
		{Key: key, State: lockstore.Held, Holder: holder, Remaining: time.Second, Fence: 1795295118105468},
		{Key: key, Fence: 1795295118105468},
	}
}

// columns are the places where the cells of a line begin; two spaces are between cells.
func columns(line string) (at []int) {
	for i := range line {
		if line[i] != ' ' && (i == 0 || i > 1 && line[i-2:i] == "  ") {
			at = append(at, i)
		}
	}
	return at
}

func linesOf(out *bytes.Buffer) []string {
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// A line of watch begins with the time, and one of list has the age of the lease.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := examples("k")[1]
		s.Holder.Since = time.Now().Add(-90 * time.Minute)
		var out bytes.Buffer
		rows := watchTable(&out, 0)
		require.NoError(t, rows.print(s))
		<-time.After(5 * time.Second)
		require.NoError(t, rows.print(s))
		lines := linesOf(&out)
		assert.Regexp(t, `^TIME +STATE +LEFT +WAITING +FENCE +HOLDER$`, lines[0])
		assert.Regexp(t, `^2000-01-01T00:00:00Z  held `, lines[1])
		assert.Regexp(t, `^2000-01-01T00:00:05Z  held `, lines[2])
		out.Reset()
		rows.json = true
		require.NoError(t, rows.print(s))
		assert.Contains(t, out.String(), `"time":"2000-01-01T00:00:05Z"`)
		out.Reset()
		rows = listTable(&out, 0)
		require.NoError(t, rows.print(s, examples("free")[0]))
		lines = linesOf(&out)
		assert.Regexp(t, `^KEY +STATE +AGE +LEFT +WAITING +HOLDER$`, lines[0])
		assert.Regexp(t, `^k +held +1h30m5s +41s +3 +withdraw `, lines[1])
		assert.Regexp(t, `^free +free +- +- +0 +-$`, lines[2])
	})
}

// An operator sees the key, its age and who has it in 80 columns, also with the names of a function and its request.
func TestFitsATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := "eu-central-1/orders/4711"
		all := examples(key)
		for i := range all {
			all[i].Holder.Since = time.Now().Add(-(5*time.Hour + 2*time.Minute))
		}
		for _, width := range []int{80, 100} {
			var out bytes.Buffer
			rows := listTable(&out, width)
			require.NoError(t, rows.print(all...))
			require.NoError(t, rows.print(several()))
			for _, line := range linesOf(&out) {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), width, line)
			}
			rows = watchTable(&out, width)
			require.NoError(t, rows.print(all[1]))
			assert.LessOrEqual(t, utf8.RuneCountInString(linesOf(&out)[1]), width)
		}
		var out bytes.Buffer
		rows := listTable(&out, 80)
		require.NoError(t, rows.print(all[1]))
		assert.Equal(t, `KEY                       STATE      AGE     LEFT    WAITING  HOLDER
eu-central-1/orders/4711  held       5h2m0s  41s     3        withdraw (8f0e6a1…
`, out.String())
		rows = listTable(&out, 0)
		require.NoError(t, rows.print(all[1]))
		assert.Contains(t, out.String(), " withdraw ("+runID+")\n", "a program that reads it gets all")
		out.Reset()
		require.NoError(t, card(&out, all[1]))
		assert.Equal(t, `KEY      eu-central-1/orders/4711
STATE    held
HOLDER   withdraw (8f0e6a1c-3d39-4c1b-9d1e-0f6d2b1a7c55)
SINCE    1999-12-31T18:58:00Z
AGE      5h2m0s
LEFT     41s
RENEWED  yes, if its TTL is less than 5h2m41s
FENCE    1795295118105467
WAITING  3
`, out.String())
		all[1].Holder.Since = time.Now().Add(-lockstore.MaxTTL)
		out.Reset()
		require.NoError(t, card(&out, all[1]))
		assert.Contains(t, out.String(), "RENEWED  yes\n")
		out.Reset()
		require.NoError(t, card(&out, all[0]))
		assert.Equal(t, "KEY      eu-central-1/orders/4711\nSTATE    free\nFENCE    -\nWAITING  0\n", out.String())
	})
}

// several is a key that two of three hold.
func several() lockstore.Status {
	s := examples("export")[1]
	s.Holder.ID = ""
	first := lockstore.Holder{State: lockstore.Held, HolderInfo: s.Holder, Fence: s.Fence - 1, MaxHolders: 3, Remaining: 12 * time.Second}
	second := lockstore.Holder{State: lockstore.Reserved, Fence: s.Fence, Seat: 2, MaxHolders: 4, Remaining: 2 * time.Second}
	s.Holders, s.Parked = []lockstore.Holder{first, second}, 1
	return s
}

func TestSeveralHolders(t *testing.T) {
	var out bytes.Buffer
	rows := listTable(&out, 0)
	require.NoError(t, rows.print(several()))
	assert.Regexp(t, `^KEY     STATE      AGE +LEFT    WAITING       HOLDER
export  held       \S+ +41s     3 \(1 parked\)  2 of 3
        held       \S+ +12s     -             seat 0: withdraw
        reserved   - +2s      -             seat 2
$`, out.String())
	out.Reset()
	require.NoError(t, card(&out, several()))
	assert.Regexp(t, `^KEY      export
STATE    held
HOLDER   2 of 3
WAITING  3 \(1 parked\)

SEAT     0
STATE    held
HOLDER   withdraw
SINCE    2026-11-22T10:02:11Z
AGE      \S+
LEFT     12s
RENEWED  yes.*
FENCE    1795295118105466

SEAT     2
STATE    reserved
LEFT     2s
FENCE    1795295118105467
$`, out.String())
	out.Reset()
	rows.json = true
	require.NoError(t, rows.print(several()))
	const who = `{"name": "withdraw", "since": "2026-11-22T10:02:11Z"}`
	assert.JSONEq(t, `{"key": "export", "state": "held", "fence": "1795295118105467", "leftMs": 41000, "waiting": 3, "parked": 1, "maxHolders": 3, "holders": [
		{"state": "held", "holder": `+who+`, "fence": "1795295118105466", "seat": 0, "maxHolders": 3, "leftMs": 12000},
		{"state": "reserved", "fence": "1795295118105467", "seat": 2, "maxHolders": 4, "leftMs": 2000}]}`, out.String())

	late, early := several(), several()
	late.Holders[0].HolderInfo.Since = late.Holder.Since.Add(time.Hour)
	early.Holders[1].State, early.Holders[1].HolderInfo = lockstore.Held, lockstore.HolderInfo{Since: late.Holder.Since}
	early.Holders[0].HolderInfo.Since = late.Holders[0].HolderInfo.Since
	assert.Negative(t, sorts[sortAge](early, late), "the holder that has had the key for the longest time")
	early.Holders[0].HolderInfo.Since = time.Time{}
	assert.Zero(t, since(early), "it may be longer")
}

// A key that looks like another one is shown as what it is, in its column.
func TestHiddenCharacters(t *testing.T) {
	s := examples("account/7\u202e7/tnuocca\u200b")[1]
	s.Holder.ID = "a\u2066b"
	var out bytes.Buffer
	rows := listTable(&out, 0)
	require.NoError(t, rows.print(s))
	lines := linesOf(&out)
	assert.Equal(t, columns(lines[0]), columns(lines[1]), "\n%s", out.String())
	assert.Contains(t, lines[1], `account/7\u202e7/tnuocca\u200b  held`)
	assert.Contains(t, lines[1], `withdraw (a\u2066b)`)
}

// The columns of the next pages are those of the first one, if no cell is wider.
func TestColumnsStay(t *testing.T) {
	var out bytes.Buffer
	rows := listTable(&out, 0)
	require.NoError(t, rows.print(examples("account/77")[1:4]...)) // one is a revoked lease
	require.NoError(t, rows.print(lockstore.Status{Key: "a", Fence: 7}))
	require.NoError(t, rows.print(examples("ä")[1]))
	lines := linesOf(&out)
	lines[5] = strings.ReplaceAll(lines[5], "ä", "a") // one column wide
	assert.Equal(t, columns(lines[0]), columns(lines[1]), "\n%s", out.String())
	assert.Equal(t, columns(lines[0]), columns(lines[4]), "\n%s", out.String())
	assert.Equal(t, columns(lines[4]), columns(lines[5]), "\n%s", out.String())
	assert.Equal(t, "KEY         STATE      AGE ", lines[0][:27])
}
