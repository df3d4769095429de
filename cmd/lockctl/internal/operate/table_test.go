package operate

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

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
		rows := watchTable(&out)
		require.NoError(t, rows.print(s))
		<-time.After(5 * time.Second)
		require.NoError(t, rows.print(s))
		lines := linesOf(&out)
		assert.Regexp(t, `^TIME +KEY +STATE +HOLDER +SINCE +LEFT `, lines[0])
		assert.Regexp(t, `^2000-01-01T00:00:00Z  k +held `, lines[1])
		assert.Regexp(t, `^2000-01-01T00:00:05Z  k +held `, lines[2])
		out.Reset()
		rows.json = true
		require.NoError(t, rows.print(s))
		assert.Contains(t, out.String(), `"time":"2000-01-01T00:00:05Z"`)
		out.Reset()
		rows = listTable(&out)
		require.NoError(t, rows.print(s, examples("free")[0]))
		lines = linesOf(&out)
		assert.Regexp(t, `^KEY +STATE +HOLDER +SINCE +AGE +LEFT `, lines[0])
		assert.Regexp(t, `^k +held .* 1999-12-31T22:30:00Z +1h30m5s +41s `, lines[1])
		assert.Regexp(t, `^free +free +- +- +- +- `, lines[2])
	})
}

// A key that looks like another one is shown as what it is, in its column.
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
	rows := showTable(&out)
	require.NoError(t, rows.print(several()))
	assert.Equal(t, `KEY       STATE     HOLDER    SINCE                 LEFT  FENCE             WAITING
export    held      2 of 3    2026-11-22T10:02:11Z  41s   1795295118105467  3 (1 parked)
  seat 0  held      withdraw  2026-11-22T10:02:11Z  12s   1795295118105466  -
  seat 2  reserved  -         -                     2s    1795295118105467  -
`, out.String())
	out.Reset()
	rows = showTable(&out)
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

func TestHiddenCharacters(t *testing.T) {
	s := examples("account/7\u202e7/tnuocca\u200b")[1]
	s.Holder.ID = "a\u2066b"
	var out bytes.Buffer
	rows := listTable(&out)
	require.NoError(t, rows.print(s))
	lines := linesOf(&out)
	assert.Equal(t, columns(lines[0]), columns(lines[1]), "\n%s", out.String())
	assert.Contains(t, lines[1], `account/7\u202e7/tnuocca\u200b  held`)
	assert.Contains(t, lines[1], `withdraw (a\u2066b)`)
}

// The columns of the next pages are those of the first one, if no cell is wider.
func TestColumnsStay(t *testing.T) {
	var out bytes.Buffer
	rows := listTable(&out)
	require.NoError(t, rows.print(examples("account/77")[1:4]...)) // one is a revoked lease
	require.NoError(t, rows.print(lockstore.Status{Key: "a", Fence: 7}))
	require.NoError(t, rows.print(examples("ä")[1]))
	lines := linesOf(&out)
	lines[5] = strings.ReplaceAll(lines[5], "ä", "a") // one column wide
	assert.Equal(t, columns(lines[0]), columns(lines[1]), "\n%s", out.String())
	assert.Equal(t, columns(lines[0]), columns(lines[4]), "\n%s", out.String())
	assert.Equal(t, columns(lines[4]), columns(lines[5]), "\n%s", out.String())
	assert.Equal(t, "KEY         STATE      HOLDER ", lines[0][:30])
}
