package redisstore

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// fuzzStore is a store on a miniredis, and miniredis's clock, which stands still.
func fuzzStore(f *testing.F) (*lockstore.Store, redis.UniversalClient, time.Time) {
	m := miniredis.RunT(f)
	now := time.UnixMicro(1_790_942_400_123_456)
	m.SetTime(now)
	client := openDialer(f, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
	s, err := New(client, Options{})
	require.NoError(f, err)
	loadScripts(f, s)
	return s, client, now
}

// FuzzEntry writes any value to a lock's key. Each request either refuses the value and
// does not change it, or reads it correctly.
func FuzzEntry(f *testing.F) {
	s, client, now := fuzzStore(f)
	for _, entry := range entries(now) {
		f.Add(entry)
	}
	f.Fuzz(func(t *testing.T, entry string) { checkEntry(t, s, client, now, entry) })
}

// Redis, Valkey and miniredis have different Lua interpreters. All read entries in the same
// way.
func TestEntriesOnRealServers(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) string{"Redis": testservers.Redis, "Valkey": testservers.Valkey} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, "redis://"+start(t))
			for _, entry := range entries(time.Now()) {
				now, err := driverOf(s).client.Time(t.Context()).Result()
				require.NoError(t, err)
				checkEntry(t, s, driverOf(s).client, now, entry)
			}
		})
	}
}

// entries are sound entries, damaged entries and values of other programs. No lease ends
// within a minute of now.
func entries(now time.Time) []string {
	at := func(d time.Duration) string { return strconv.FormatInt(now.Add(d).UnixMicro(), 10) }
	minute, hour := "60000000", "3600000000"
	live := "lambdalock1 H OWNEROWNEROWNEROWNEROWNER1 1790942400000000 " + at(0) + " " + hour + " RELEASED ABANDONED 1790942400123\tid\tname"
	all := []string{
		live,
		"lambdalock1 H OWNER 7 " + at(-time.Hour) + " " + minute + "   ",
		"lambdalock1 F OWNER 7 " + at(-time.Hour) + " " + minute + "   ",
		"lambdalock1 C OWNER 7 " + at(0) + " " + hour + "   holder",
		"lambdalock1 C OWNER 7 " + at(-time.Hour) + " " + minute + "   holder",
		"lambdalock1 F  0 0 0   ",
		"lambdalock1 F  007 0 0   ",
		"lambdalock1 H  7 " + at(0) + " " + hour + "   ",                 // held, but without an owner
		"lambdalock1 H OWNER 7 " + at(10*time.Hour) + " " + hour + "   ", // begins in the future: the clock stepped back
		"lambdalock1 H OWNER 7 " + at(0) + " 9999999999999   ",           // the longest TTL
		"lambdalock1 H OWNER 7 " + at(0) + " 10000000000000   ",          // a longer one
		"lambdalock1 K OWNER 7 " + at(0) + " " + hour + "   holder\na result\n\x00\xff",
		"lambdalock1 K OWNER 7 " + at(0) + " " + hour + "   holder\nFIRST SECOND ", // no queue
		"lambdalock1 K OWNER 7 " + at(-time.Hour) + " " + minute + "   holder\nFIRST SECOND ",
		"lambdalock1 K OWNER 7 " + at(0) + " " + hour + "   holder\n",
		"lambdalock1 K OWNER 7 " + at(0) + " " + hour + "   holder", // without a result
		"lambdalock1 B OWNER 7 " + at(0) + " " + hour + "   holder",
		"lambdalock1 B OWNER 7 " + at(-time.Hour) + " " + minute + "   holder\nFIRST ",
		"lambdalock1 B  7 " + at(0) + " " + hour + " RELEASED  holder", // revoked
		"lambdalock1 B  7 " + at(-time.Hour) + " " + minute + " RELEASED  holder\nFIRST ",
		"lambdalock1 H OWNER 9007199254740990 " + at(-time.Hour) + " " + minute + "   ", // the last fences
		"lambdalock1 H OWNER 9007199254740991 " + at(-time.Hour) + " " + minute + "   ",
		"lambdalock1 F OWNER 9999999999999999 " + at(-time.Hour) + " " + minute + "   ",
		"lambdalock1 F OWNER 10000000000000000 0 0   ",
		"lambdalock1 H OWNER 7 9999999999999999 " + minute + "   ",
		"lambdalock1 H OWNER 7 " + at(0) + " " + hour + "   a\nb c  d\x00\xff",
		"lambdalock1 H OW\x00NER\xff 7 " + at(0) + " " + hour + " \xe6 \x00 ",
		"lambdalock1 H OW\nNER 7 " + at(0) + " " + hour + "   ",
		"lambdalock1 H OW\vNER 7 " + at(0) + " " + hour + "   ",
		"lambdalock1 H OW\u00a0NER 7 " + at(0) + " " + hour + " \u2003 \u0085 ",
		"lambdalock1 H OWNER ٧ " + at(0) + " " + hour + "   ",
		"lambdalock1 H OWNER 0x7 " + at(0) + " " + hour + "   ",
		"lambdalock1 H OWNER 1e9 " + at(0) + " " + hour + "   ",
		"lambdalock1 H OWNER -7 " + at(0) + " " + hour + "   ",
		"lambdalock1 H OWNER 7 " + at(0) + " " + hour + "  ",
		"lambdalock1 h OWNER 7 " + at(0) + " " + hour + "   ",
		"lambdalock2" + live[len("lambdalock1"):],
		live + "\nFIRST SECOND ", live + "\nFIRST", live + "\n", live + "\n  ", live + "\nFIRST  SECOND ", live + "\nFIRST\nSECOND ",
		"lambdalock1 F OWNER 7 " + at(-time.Second) + " 0   holder\nFIRST ",
		"lambdalock1 F OWNER 7 " + at(-time.Hour) + " 0   holder\nFIRST ",
		"lambdalock1 H OWNER 7 " + at(-time.Minute-3*time.Second) + " " + minute + "   holder\nFIRST SECOND THIRD ",
		"", " ", "0", "42", "hello", "lambdalock1", "{}", "\x00", strings.Repeat("lambdalock1 ", 50),
	}
	for cut := 0; cut < len(live); cut += 7 {
		all = append(all, live[:cut], live[cut:], live[:cut]+"\x00"+live[cut:], live[:cut]+" "+live[cut:])
	}
	return all
}

// blank are the characters of Lua's %s.
const blank = "\t\n\v\f\r "

var soundEntry = regexp.MustCompile(`(?s)^lambdalock1 ([HFCBK]) ([^` + blank + `]*) (\d{1,16}) (\d{1,16}) (\d{1,13}) ([^` + blank + `]*) ([^` + blank + `]*) ([^\n]*)(\n.*)?$`)

// soundQueue is what follows the newline, if owners wait.
var soundQueue = regexp.MustCompile(`^\n[^` + blank + `]([^` + blank + `]| )* $`)

// checkEntry writes an entry and sends every request, by an owner that is not in the entry
// and by the owner of the entry. It reads the entry itself, by other code than the scripts,
// to know the right answers.
func checkEntry(t *testing.T, s *lockstore.Store, client redis.UniversalClient, now time.Time, entry string) {
	const key = "fuzz"
	ctx := t.Context()
	put := func() { require.NoError(t, client.Set(ctx, driverOf(s).prefix+key, entry, 0).Err()) }
	same := func(what string) {
		t.Helper()
		there, err := client.Get(ctx, driverOf(s).prefix+key).Result()
		require.NoError(t, err)
		require.Equal(t, entry, there, "%s changed the entry", what)
	}
	// requests sends each request for the key, each on the original entry.
	requests := func(owner lockstore.Owner, fence lockstore.Fence, each func(what string, err error)) {
		t.Helper()
		lease := lockstore.Lease{Key: key, Owner: owner, Fence: fence}
		for what, ask := range map[string]func() error{
			"Inspect": func() error { _, err := s.Inspect(ctx, key); return err },
			"Acquire": func() error {
				_, err := s.Acquire(ctx, lockstore.Request{Key: key, Owner: owner, TTL: time.Minute})
				return err
			},
			"Renew":       func() error { _, err := s.Renew(ctx, lease, time.Minute); return err },
			"Release":     func() error { return s.Release(ctx, lease) },
			"MarkStarted": func() error { return s.MarkStarted(ctx, lease) },
			"Complete":    func() error { return s.Complete(ctx, lease, []byte("result"), time.Minute) },
			"abandon":     func() error { return s.Release(ctx, lockstore.Lease{Key: key, Owner: owner}) },
			"Leave":       func() error { return s.Leave(ctx, key, owner) },
			"Revoke": func() error {
				_, err := s.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: fence + 1, OpenAtOnce: true})
				return err
			},
		} {
			put()
			each(what, ask())
		}
	}
	stranger := lockstore.NewOwner()

	parts := soundEntry.FindStringSubmatch(entry)
	if parts == nil || parts[1] == "K" && parts[9] == "" {
		requests(stranger, 1, func(what string, err error) {
			t.Helper()
			require.ErrorIs(t, err, lockstore.ErrCorrupt, "F53 "+what)
			require.NotContains(t, err.Error(), string(stranger), what)
			same(what)
		})
		return
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		return n
	}
	state, owner := parts[1], lockstore.Owner(parts[2])
	fence, since, ttl := number(parts[3]), number(parts[4]), number(parts[5])
	left := since + ttl - now.UnixMicro()
	taken := state != "F" && left > 0
	stepped := taken && left > ttl+time.Second.Microseconds()
	held, inDoubt := state == "H" || state == "B", state == "B" && !taken
	queue, tail := parts[9], parts[9]
	if state == "K" || !soundQueue.MatchString(queue) {
		queue = ""
	}
	if state != "K" {
		tail = queue
	}
	waiting := strings.Count(queue, " ")
	forOthers := !taken && lockstore.UntilTurn(waiting, -time.Duration(left)*time.Microsecond) > 0

	want, result := lockstore.Free, ""
	switch {
	case taken && held && owner == "":
		want = lockstore.Revoked
	case taken && held:
		want = lockstore.Held
	case taken && state == "K":
		want, result = lockstore.Completed, strings.TrimPrefix(tail, "\n")
	case taken:
		want = lockstore.Cooldown
	case inDoubt:
		want = lockstore.InDoubt
	case forOthers:
		want = lockstore.Reserved
	}

	requests(stranger, max(1, lockstore.Fence(fence)), func(what string, err error) {
		t.Helper()
		switch {
		case what == "Inspect" && stepped, what == "Acquire" && stepped,
			what == "Acquire" && !taken && !forOthers && !inDoubt && fence+1 >= 1<<53:
			require.ErrorIs(t, err, lockstore.ErrCorrupt, what)
		case what == "Inspect", what == "Leave":
			require.NoError(t, err)
		case what == "Acquire" && (taken || forOthers || inDoubt):
			refused, ok := errors.AsType[*lockstore.Refused](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, want, refused.State)
			require.Equal(t, result, string(refused.Result))
		case what == "Acquire":
			require.NoError(t, err)
			return // the key was free
		case what == "abandon":
			require.NoError(t, err)
			there, err := client.Get(ctx, driverOf(s).prefix+key).Result()
			require.NoError(t, err)
			require.Equal(t, strings.Join([]string{"lambdalock1", parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], string(stranger), parts[8]}, " ")+tail, there)
			return
		default:
			require.ErrorIs(t, err, lockstore.ErrLost, what)
		}
		same(what)
	})

	put()
	if status, err := s.Inspect(ctx, key); !stepped {
		require.NoError(t, err)
		require.Equal(t, want, status.State)
		require.EqualValues(t, fence, status.Fence)
		require.Equal(t, waiting, status.Waiting)
		if taken {
			// Lua's format cuts a text at a NUL. A holder of this store has none.
			whole, _, _ := strings.Cut(parts[8], "\x00")
			require.Contains(t, []lockstore.HolderInfo{lockstore.DecodeHolderInfo(parts[8]), lockstore.DecodeHolderInfo(whole)}, status.Holder)
			require.InDelta(t, left, status.Remaining.Microseconds(), float64(10*time.Second.Microseconds()))
		}
	}
	if (lockstore.Lease{Key: key, Owner: owner}).Validate() != nil {
		return
	}
	// The owner of the entry gets its own lease again, or ErrLost.
	lease, err := s.Acquire(ctx, lockstore.Request{Key: key, Owner: owner, TTL: time.Minute})
	same("Acquire again")
	if held && taken && string(owner) != parts[6] && string(owner) != parts[7] {
		require.NoError(t, err)
		require.EqualValues(t, fence, lease.Fence)
		require.LessOrEqual(t, lease.TTL, time.Duration(left)*time.Microsecond)
	} else {
		require.ErrorIs(t, err, lockstore.ErrLost)
	}
}

// FuzzKeys locks two different valid keys. They have two entries.
func FuzzKeys(f *testing.F) {
	s, client, _ := fuzzStore(f)
	for _, pair := range [][2]string{
		{"a", "A"}, {"a", "a "}, {"{a}b", "{a}c"}, {"{}", "{}{}"}, {"a/b", "a%2Fb"}, {"é", "e\u0301"}, {"lambdalock:a", "a"},
		{strings.Repeat("k", 1023) + "a", strings.Repeat("k", 1023) + "b"}, {"*", "?"}, {"a\\", "a"}, {"\u00a0", " "}, {"\n", "a"},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		if one == two || lockstore.ValidateKey(one) != nil || lockstore.ValidateKey(two) != nil {
			t.Skip("not two keys")
		}
		ctx := t.Context()
		require.NoError(t, client.FlushAll(ctx).Err())
		first, err := s.Acquire(ctx, lockstore.Request{Key: one, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		second, err := s.Acquire(ctx, lockstore.Request{Key: two, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		require.NoError(t, s.Release(ctx, first))
		_, err = s.Renew(ctx, second, time.Minute)
		require.NoError(t, err)
		require.EqualValues(t, 2, client.DBSize(ctx).Val(), "M29")
	})
}

// FuzzReply parses any answer of a server. The result is within its bounds, or an error.
func FuzzReply(f *testing.F) {
	for _, text := range []string{
		"", "G1790942400000000 60000000", "H7 5 2 1790942400123\tid\tname", "H7 5", "W7 5 2 ", "I0 1", "I0", "I", "Rowner", "O", "R", "L", "F", "T", "K7 5 0 1790942400123\tid\tname\nresult\n", "K7 5 0 ", "C7 5 0 holder", "X7 5 0 holder", "D7 5 0 holder", "U7 0 0 holder", "U7", "Gx", "G1 ", "G1 x", "X", "\x00",
		"G-1 5", "I-1", "H1 -5 h", "G1 9223372036854775807", "H1 9223372036854776 h", "G99999999999999999999 1",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseReply(text)
		if err != nil {
			return
		}
		require.Contains(t, "GHXWKCUIDROLFT", string(rune(r.code)))
		require.GreaterOrEqual(t, r.fence, lockstore.Fence(0))
		require.GreaterOrEqual(t, r.left, time.Duration(0))
		holder := lockstore.DecodeHolderInfo(r.holder)
		require.LessOrEqual(t, len(holder.Name)+len(holder.ID), lockstore.MaxHolderBytes)
		answer, err := r.answer("k", driver.Request{Kind: driver.Acquire})
		require.NotEqual(t, err == nil, answer.Outcome == 0)
	})
}
