package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/lockstore"
)

// pages is the driver of a store whose listing is given.
type pages struct {
	driver.Driver
	all   []driver.Page
	bytes int64
}

func (p pages) List(_ context.Context, _ string, page func(driver.Page) error) error {
	for _, one := range p.all {
		if err := page(one); err != nil {
			return err
		}
	}
	return nil
}

func (p pages) Extent(context.Context) (driver.Extent, error) {
	return driver.Extent{Entries: 8_000_000, Bytes: p.bytes}, nil
}

// What an operator asks at night: who has a key for long, and what is damaged.
func TestList(t *testing.T) {
	held := func(key string, minutes int) driver.Listed {
		var holder lockstore.HolderInfo
		if minutes >= 0 {
			holder.Since = time.Now().Add(-time.Duration(minutes) * time.Minute)
		}
		return driver.Listed{Key: key, Status: driver.Status{State: driver.Held, Holder: holder.Encode(), Fence: 7, Remaining: time.Minute}}
	}
	all := []driver.Page{
		{Keys: []driver.Listed{held("b", 11), held("c", 1), {Key: "free", Status: driver.Status{Fence: 3}}}, Damaged: 12, DamagedNames: []string{"l:x", "l:y\u202e", "3", "4", "5", "6"}},
		{Keys: []driver.Listed{held("a", 100), held("unknown", -1)}, Damaged: 6, DamagedNames: []string{"7", "8", "9", "10", "11"}},
	}
	const damaged = `lockctl: 18 entries are damaged or another program's, and not listed, such as ["l:x" "l:y\u202e" "3" "4" "5" "6" "7" "8" "9" "10"]` + "\n"
	for name, c := range map[string]struct {
		lister
		bytes  int64
		status int
		want   []string
		said   string
	}{
		"as it comes":       {lister: lister{}, want: []string{"b", "c", "a", "unknown", ""}, said: damaged},
		"longer than":       {lister: lister{longer: 10 * time.Minute}, status: exit.No, want: []string{"b", "a", "unknown", ""}, said: damaged},
		"none for so long":  {lister: lister{longer: 10 * time.Minute, states: []string{"in doubt"}}, want: []string{""}, said: damaged},
		"the limit":         {lister: lister{limit: 3}, want: []string{"b", "c", "a"}, said: damaged + "lockctl: there are more; this is --limit 3\n"},
		"too much":          {bytes: 2 << 30, status: exit.Usage},
		"much, and --yes":   {lister: lister{yes: true}, bytes: 2 << 30, want: []string{"b", "c", "a", "unknown", ""}, said: damaged},
		"no more than 1 GB": {lister: lister{}, bytes: 1 << 30, want: []string{"b", "c", "a", "unknown", ""}, said: damaged},
	} {
		t.Run(name, func(t *testing.T) {
			var out, said bytes.Buffer
			l := c.lister
			l.json, l.operator = true, operator{store: lockstore.New("pages", pages{all: all, bytes: c.bytes}), out: exit.Writer{To: &out}, err: exit.Writer{To: &said}}
			if l.states == nil {
				l.states = []string{"held"}
			}
			err := l.list(t.Context())
			assert.Equal(t, c.status, exit.Status(err), "cron is told")
			var keys []string
			for line := range strings.Lines(out.String()) {
				var got struct{ Key string } // none at the end
				require.NoError(t, json.Unmarshal([]byte(line), &got))
				keys = append(keys, got.Key)
			}
			assert.Equal(t, c.want, keys)
			assert.Equal(t, c.said, said.String())
		})
	}
}

// A listing of a large table is slow: those who lock need its throughput.
func TestListLeavesTheStoreToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lister{json: true, operator: operator{store: lockstore.New("pages", pages{all: make([]driver.Page, 10)}), out: exit.Writer{To: new(bytes.Buffer)}}}
		began := time.Now()
		require.NoError(t, l.list(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), 9*pagePause)
	})
}

// A store that cannot list is not told as one that does not answer.
func TestStoreThatCannotList(t *testing.T) {
	l := lister{operator: operator{store: lockstore.New("plain", struct{ driver.Driver }{})}}
	err := l.list(t.Context())
	require.EqualError(t, err, "plain: this store cannot list its keys: unsupported operation")
	assert.Equal(t, exit.Config, exit.Status(err))
}

// A line of list has the age of the lease, one of watch the time, and show a field in each line. What nobody can see is
// written as escapes.
func TestForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder := lockstore.HolderInfo{Name: "withdraw", ID: "8f0e\u2066", Since: time.Now().Add(-90 * time.Minute)}
		held := lockstore.Status{Key: "account/7\u202e", State: lockstore.Held, Holder: holder, Remaining: 41 * time.Second, Fence: 1795295118105467, Waiting: 3, Parked: 1,
			OldestWait: 125 * time.Second, Queue: []lockstore.Place{{Waited: 125 * time.Second}, {Waited: time.Minute, Parked: true}, {}}}
		several := held
		several.Key, several.Holders = "export", []lockstore.LiveLease{
			{State: lockstore.Held, HolderInfo: holder, Fence: held.Fence - 1, MaxHolders: 3, Remaining: 12 * time.Second},
			{State: lockstore.Reserved, Fence: held.Fence, Seat: 2, MaxHolders: 4, Remaining: 2 * time.Second},
		}
		var out bytes.Buffer
		print := func(t table, all ...lockstore.Status) string {
			out.Reset()
			t.out = &out
			for _, s := range all {
				_ = t.print(s) // a Buffer never fails
			}
			return out.String()
		}
		assert.Equal(t, `KEY                       STATE      AGE      LEFT     WAITING  OLDEST   HOLDER
account/7\u202e           held       1h30m0s  41s      3 (1 parked)  2m5s     withdraw (8f0e\u2066)
free                      free       -        -        0        -        -
export                    held       1h30m0s  41s      3 (1 parked)  2m5s     2 of 3
                          held       1h30m0s  12s      -        -        seat 0: withdraw (8f0e\u2066)
                          reserved   -        2s       -        -        seat 2
`, print(table{}, held, lockstore.Status{Key: "free"}, several))
		assert.Equal(t, `TIME                  STATE      LEFT     WAITING  FENCE             HOLDER
2000-01-01T00:00:00Z  held       41s      3 (1 parked)  1795295118105467  withdraw (8f0e\u2066)
`, print(table{watch: true}, held))
		out.Reset()
		require.NoError(t, printJSON(&out, page.KeyOf(several)))
		assert.JSONEq(t, `{"key": "export", "state": "held", "fence": "1795295118105467", "leftMs": 41000, "waiting": 3, "parked": 1, "oldestWaitMs": 125000, "queue": [{"waitedMs": 125000}, {"waitedMs": 60000, "parked": true}, {"waitedMs": 0}], "maxHolders": 3, "holders": [
			{"state": "held", "holder": {"name": "withdraw", "id": "8f0e\u2066", "since": "1999-12-31T22:30:00Z"}, "fence": "1795295118105466", "seat": 0, "maxHolders": 3, "leftMs": 12000},
			{"state": "reserved", "fence": "1795295118105467", "seat": 2, "maxHolders": 4, "leftMs": 2000}]}`, out.String())

		show := func(s lockstore.Status) string {
			out.Reset()
			require.NoError(t, card(&out, s))
			return out.String()
		}
		assert.Equal(t, `KEY      account/7\u202e
STATE    held
HOLDER   withdraw (8f0e\u2066)
SINCE    1999-12-31T22:30:00Z
AGE      1h30m0s
LEFT     41s
RENEWED  yes (unless its TTL is 1h30m41s or more)
FENCE    1795295118105467
WAITING  3 (1 parked)
OLDEST   2m5s
`, show(held))
		assert.Equal(t, "KEY      k\nSTATE    free\nFENCE    - (nothing is stored of this key)\nWAITING  0\n", show(lockstore.Status{Key: "k"}))
		assert.Regexp(t, `^KEY      export\nSTATE    held\nHOLDER   2 of 3\nWAITING  3 \(1 parked\)\nOLDEST   2m5s\n\nSEAT     0\n(?s:.*)\n\nSEAT     2\nSTATE    reserved\nLEFT     2s\nFENCE    1795295118105467\n$`, show(several))
		held.Holder.Since = time.Now().Add(-lockstore.MaxTTL)
		assert.Contains(t, show(held), "RENEWED  yes\n")
		held.Holder.Since = time.Now().Add(-time.Second)
		assert.Contains(t, show(held), "RENEWED  not seen yet\n")

		several.Holders[1] = several.Holders[0]
		several.Holders[1].HolderInfo.Since = time.Now()
		assert.Equal(t, holder.Since, page.Since(several), "who has had the key for the longest time")
		several.Holders[1].HolderInfo.Since = time.Time{}
		assert.Zero(t, page.Since(several), "it may be longer")
	})
}
