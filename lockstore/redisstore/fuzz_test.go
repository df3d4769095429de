package redisstore

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// fuzzStore is a store on a miniredis, and miniredis's clock, which stands still.
func fuzzStore(t testing.TB) (*lockstore.Store, redis.UniversalClient, time.Time) {
	m := miniredis.RunT(t)
	now := time.UnixMicro(1_790_942_400_123_456)
	m.SetTime(now)
	client := dialerClient(t, mini, patient(func(string, string) (net.Conn, error) { return m.Dial() }))
	s := storeOn(t, client)
	loadScripts(t, s)
	return s, client, now
}

// patient dials for tests of what is answered, not of when. No wait on its connections ends before the answer, however busy
// the machine is.
func patient(dial func(network, addr string) (net.Conn, error)) dialFunc {
	return func(_ context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(network, addr)
		return patientConn{conn}, err
	}
}

type patientConn struct{ net.Conn }

func (patientConn) SetReadDeadline(time.Time) error  { return nil }
func (patientConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzEntry writes any value to a lock's key. Each request either refuses the value and
// does not change it, or reads it correctly.
func FuzzEntry(f *testing.F) {
	s, client, now := fuzzStore(f)
	for i, entry := range entries(now) {
		// One goroutine asks. Real servers read all in TestEntriesOnRealServers.
		if !verifyrecord.WithRaceDetector || i%4 == 0 {
			f.Add(entry)
		}
	}
	f.Fuzz(func(t *testing.T, entry string) { checkEntry(t, s, client, entry) })
}

// Times are exact to the microsecond. An entry is kept until an hour after the end of its lease, result or cooldown, and
// for a month after a start.
func TestEdges(t *testing.T) {
	s, client, now := fuzzStore(t)
	for name, entry := range edges(now) {
		t.Run(name, func(t *testing.T) { checkEntry(t, s, client, entry) })
	}
}

// edges are entries of which one more or one less is another answer.
func edges(now time.Time) map[string]string {
	const last = "0000000000000007"
	entry := func(letter, fence, owner string, since, lasts time.Duration, rest string) string {
		return fmt.Sprintf("lambdalock3 %s%s %s 0\n%016d %d h\n%s", letter, fence, owner, now.Add(since).UnixMicro(), lasts.Microseconds(), rest)
	}
	held := func(since time.Duration) string { return entry("H000", last, "OWNER", since, time.Hour, "") }
	closed := func(since time.Duration) string { return entry("C000", last, "", since, time.Hour, "") }
	free := func(fence int64) string { return entry("F000", fmt.Sprintf("%016d", fence), "OWNER", 0, time.Hour, "") }
	waiting := func(n int) string {
		return entry(fmt.Sprintf("H%03d", n), last, "OWNER", 0, time.Hour, waits(slices.Repeat([]string{"WAITER"}, n)...))
	}
	return map[string]string{
		"the end":                                held(-time.Hour),
		"a microsecond before the end":           held(-time.Hour + time.Microsecond),
		"the end, closed":                        closed(-time.Hour),
		"a microsecond before the end, closed":   closed(-time.Hour + time.Microsecond),
		"F19 the clock is back by 1µs":           held(time.Microsecond),
		"F19 the clock is back by 1s":            held(time.Second),
		"F19 the clock is back by 1µs, closed":   closed(time.Microsecond),
		"F20 the clock is behind the last fence": free(now.Add(time.Hour).UnixMicro()),
		"a fence above 2^52":                     free(1<<52 + 1),
		"the last fence":                         free(1<<53 - 2),
		"no fence is left":                       free(1<<53 - 1),
		"one place is left":                      waiting(places - 1),
		"no place is left":                       waiting(places),
		"F79 never used":                         "",
		"F79 free":                               free(7),
		"F79 held":                               held(0),
		"F79 closed":                             closed(0),
		"F79 started":                            fmt.Sprintf("lambdalock3 X000%s  0\n0000000000000000 0 \nOWNER %[1]s 0 1 %016d 3600000000 s h\n\n", last, now.UnixMicro()),
	}
}

// waits is a queue of owners. One that shares has a comma and its MaxHolders behind its name.
func waits(owners ...string) string {
	queue := " "
	for _, o := range owners {
		owner, most, shares := strings.Cut(o, ",")
		if !shares {
			most = "1"
		}
		queue += owner + "\x01" + most + "\x010000000000000006 "
	}
	return queue
}

// Redis, Valkey and miniredis have different Lua interpreters. All read entries in the same
// way.
func TestEntriesOnRealServers(t *testing.T) {
	onBoth(t, "entries", func(t *testing.T, program string) {
		client := dialerClient(t, "redis://"+testservers.Start(t, program).Addr, patient(net.Dial))
		s := storeOn(t, client)
		for _, entry := range entries(time.Now()) {
			checkEntry(t, s, client, entry)
		}
	})
}

// entries are sound entries, damaged entries and values of other programs. No lease ends within a minute after now, but
// for a turn, some damaged times, and one that ends in a microsecond.
func entries(now time.Time) []string {
	at := func(d time.Duration) string { return fmt.Sprintf("%016d", now.Add(d).UnixMicro()) }
	const magic, seven, hour, old = "lambdalock3 ", "0000000000000007", " 3600000000 ", "1000000000000000 60000000 "
	const marks = "5V0000000000000002 REVOKED D0000000000000003 DOUBTED K0000000000000004 DONE E0000000000000005 LATE F0000000000000006 BEFORE "
	live := magic + "H1790942400000000 OWNEROWNEROWNEROWNEROWNER1 " + marks + "\n" + at(0) + hour + "1790942400123\tid\tname\n"
	held := func(letter, fence, times, queue string) string {
		return magic + letter + fence + " OWNER " + marks + "\n" + times + "holder\n" + queue
	}
	closed := func(letter, times, result string) string {
		return magic + letter + seven + "  " + marks + "\n" + times + "holder\n" + result
	}
	several := func(holders, queue string) string {
		return magic + "X" + seven + "  " + marks + "\n0000000000000000 0 \n" + holders + "\n" + queue
	}
	one := func(fence, times, flags string) string {
		return "OWNER " + fence + " 0 1 " + times + flags + " holder\n"
	}
	three, two := waits("FIRST", "SECOND", "THIRD"), waits("FIRST", "SECOND")
	all := []string{
		live, live + two, live + two[1:], live + " " + two, live + two + " ", live + two[:len(two)-1], live + strings.Replace(two, "SECOND", "\nSECOND", 1), live + " ", live + "  ",
		live + " FIRST SECOND ", live + strings.Replace(two, "\x011\x01", "\x010\x01", 1), live + strings.Replace(two, "\x011\x01", "\x01100\x01", 1), live + strings.Replace(two, "\x011\x01", "\x01x\x01", 1),
		live + strings.Replace(two, "6 ", "6\x0225000000 ", 1), live + strings.Replace(two, "6 ", "6\x0225000000\x01of a\x01later version ", 1), live + strings.Replace(two, "6 ", "6\x01of\x01later ", 1),
		held("H", seven, old, ""), held("H", seven, old, three), held("O", seven, at(0)+" 2000000 ", three), held("O", seven, old, three),
		held("F", seven, old, ""), held("F", seven, old, three), held("F", "9999999999999999", old, ""),
		held("H", "9007199254740990", old, ""), held("H", "9007199254740991", old, ""), held("H", "9007199254740990", old, three),
		held("H", seven, at(10*time.Hour)+hour, ""), held("O", seven, at(10*time.Hour)+" 2000000 ", three), // begin in the future: the clock was set back
		held("H", seven, at(0)+" 9999999999999 ", ""), held("H", seven, at(0)+" 10000000000000 ", ""), held("H", seven, "9999999999999999 60000000 ", ""),
		held("H", seven, at(0)+hour, waits("FIRST", "OWNER", "SECOND")), held("O", seven, at(0)+hour, waits("OWNER", "SECOND")), // asked again while a clock was ahead
		held("H", seven, at(0)+" 0777 ", ""), held("H", seven, at(0)+hour+"a\x00\xff", waits("b\x00\xff")),
		held("H", seven, at(-time.Minute-3*time.Second)+" 60000000 ", three),
		closed("K", at(0)+hour, "a result\n\x00\xff"), closed("K", at(0)+hour, three), closed("K", old, three), closed("K", at(0)+hour, ""),
		closed("C", at(0)+hour, ""), closed("C", old, ""), closed("C", at(10*time.Hour)+hour, ""), closed("H", at(0)+hour, ""), closed("F", old, ""),
		several("", ""), several("", three), several(one(seven, at(0)+hour, "r"), waits("FIRST,2", "SECOND")), several(one(seven, old, "r"), three),
		several(one(seven, at(0)+hour, "s"), ""), several(one(seven, old, "s"), three), several(one(seven, old, "rs"), three), several(one(seven, at(0)+hour, "hs"), ""),
		several("ANN 0000000000000005 0 3 "+at(0)+hour+" a\nB 0000000000000006 2 3 "+at(0)+hour+"h \nC 0000000000000007 1 64 "+old+" c\n", waits("FIRST,64", "SECOND,2", "THIRD")),
		several("ANN 0000000000000005 010 08 "+at(0)+hour+" a\n", waits("FIRST,10")),
		several("ANN 0000000000000005 0 3 "+at(0)+hour+" a", ""), several("A 5 0 3 "+at(0)+hour+" a\n", ""), several("A 0000000000000005 0 9999999999 "+at(0)+hour+" a\n", ""),
		several("ANN 0000000000000005 0 3 "+at(0)+hour+" \n", waits("FIRST,x", ",", ",3")),
		held("H", "0000000000000000", at(0)+hour, ""), several("OWNER 0000000000000000 0 1 "+at(0)+hour+" \n", ""),
		magic + "X0000000000000000  0\n0000000000000000 0 \n\n", magic + "X" + seven + "  0\n0000000000000000 0 \n", magic + "X" + seven + " OWNER \n" + old + "\n\n",
		"lambdalock2" + live[len("lambdalock3"):], "lambdalock4" + live[len("lambdalock3"):],
		"lambdalock1 H OWNER 7 " + at(0) + hour + "  holder", strings.Replace(live, "OWNEROWNER", "OW\x00NER\xff", 1), strings.Replace(live, "OWNEROWNER", "OW\vNER", 1),
		strings.Replace(live, "OWNEROWNER", "OW\u00a0NER\u2003", 1), strings.Replace(live, "H17", "H٧7", 1), strings.Replace(live, "H1790942400000000", "H0x1790942400000", 1),
		strings.Replace(live, "H1", "h1", 1), strings.Replace(live, "H1", "H-", 1), strings.Replace(live, "F0000000000000006", "F6", 1),
		"", " ", "0", "42", "0 0 0", "hello", "lambdalock3", "{}", "\x00", strings.Repeat("lambdalock3 ", 50),
	}
	for cut := 0; cut < len(live); cut += 29 {
		all = append(all, live[:cut], live[cut:], live[:cut]+"\x00"+live[cut:], live[:cut]+" "+live[cut:])
	}
	for i, entry := range all {
		if strings.HasPrefix(entry, magic) {
			places := fmt.Sprintf("%03d", len(strings.Fields(entry[lastLine(entry):])))
			all[i] = magic + entry[len(magic):min(len(entry), 13)] + places + entry[min(len(entry), 13):]
		}
	}
	for _, places := range []string{"000", "001", "999", "abc", "-01"} {
		all = append(all, live[:13]+places+live[13:]+three)
	}
	return slices.AppendSeq(all, maps.Values(edges(now)))
}

// hasSoundLists reports whether the marks and the queue of an entry are not damaged.
func hasSoundLists(entry string) bool {
	p := soundEntry.FindStringSubmatch(entry)
	_, sound := marksOf(p[4])
	queue := p[8]
	if p[1] == "X" {
		queue = queue[strings.Index("\n"+queue, "\n\n")+1:]
	}
	number := entry[13:16]
	if !sound || number == "000" || !soundQueue.MatchString(queue) {
		return sound
	}
	for place := range strings.SplitSeq(strings.Trim(queue, " "), " ") {
		sound = sound && soundPlace.MatchString(place)
	}
	return sound && number == fmt.Sprintf("%03d", strings.Count(queue, " ")-1)
}

// requestsOn are requests to an entry: of a stranger, and of those that a sound entry names.
func requestsOn(entry rules.State, sound bool) (all []driver.Request) {
	fence, owner := max(1, entry.LastFence), driver.Owner("OWNER")
	if n := len(entry.Holders); n > 0 {
		owner = entry.Holders[n-1].Owner
	}
	owners := []driver.Owner{"STRANGER", owner, "SECOND", "LATE", "BEFORE"}
	if !sound {
		owners = owners[:1]
	}
	for _, by := range owners {
		all = append(all,
			driver.Request{Kind: driver.Acquire, Owner: by, TTL: time.Minute + time.Microsecond, MaxHolders: 1, Holder: "h", Join: true},
			driver.Request{Kind: driver.Acquire, Owner: by, TTL: time.Minute + time.Microsecond, MaxHolders: 3, Join: true},
			driver.Request{Kind: driver.Acquire, Owner: by, Fence: fence, TTL: time.Minute, MaxHolders: 1},
			driver.Request{Kind: driver.Renew, Owner: by, Fence: fence, TTL: time.Minute},
			driver.Request{Kind: driver.Release, Owner: by, Fence: fence},
			driver.Request{Kind: driver.Abandon, Owner: by},
			driver.Request{Kind: driver.Leave, Owner: by},
			driver.Request{Kind: driver.MarkStarted, Owner: by, Fence: fence},
			driver.Request{Kind: driver.Complete, Owner: by, Fence: fence, TTL: time.Minute, Result: driver.HiddenBytes("result")},
		)
	}
	all = append(all,
		driver.Request{Kind: driver.Inspect},
		driver.Request{Kind: driver.Resolve, Fence: fence},
		driver.Request{Kind: driver.Resolve, Fence: fence, Effect: true, TTL: time.Minute},
		driver.Request{Kind: driver.Revoke, Fence: fence, Holder: "h"},
		driver.Request{Kind: driver.Revoke, Fence: fence, Holder: "h", AtOnce: true},
	)
	return all
}

// checkEntry sends requests to a key with this value; "" is a key without one. A value that is no entry is refused, and
// stays. For an entry, the answer, the entry after it, and how long that is kept, are those of the rule book.
func checkEntry(t *testing.T, s *lockstore.Store, client redis.UniversalClient, entry string) {
	t.Helper()
	ctx, key := t.Context(), "k"
	name := DefaultPrefix + key
	before, sound := decode(entry)
	d := driverOf(s)
	for _, r := range requestsOn(before, sound) {
		now, err := client.Time(ctx).Result()
		require.NoError(t, err)
		require.NoError(t, client.Set(ctx, name, entry, keptFor(before, now)).Err())
		if entry == "" {
			require.NoError(t, client.Del(ctx, name).Err())
		}
		got, err := d.Do(ctx, key, r)
		after, kept := client.Get(ctx, name).Val(), client.PTTL(ctx, name).Val()
		if !sound {
			require.ErrorIs(t, err, lockstore.ErrCorrupt, "F53 %+v of %q", r, entry)
			require.Equal(t, entry, after, "F53")
			continue
		}
		if entry != "" && !hasSoundLists(entry) {
			if err != nil { // who is remembered, or waits, is not said
				require.ErrorIs(t, err, lockstore.ErrCorrupt)
			}
			continue
		}
		if next, _, want, _ := book.Decide(before, rules.At(now), r); next.LastFence >= 1<<53 { // Lua counts no further
			newLease := r.Kind == driver.Acquire && want.Outcome == driver.Granted && want.Fence > before.LastFence
			if err != nil || newLease && want.Fence >= 1<<53 {
				require.ErrorIs(t, err, lockstore.ErrCorrupt)
			} else { // there was one fence for two grants
				require.True(t, got.Fence == 0 || before.LastFence < got.Fence && got.Fence < 1<<53, "%+v of %q: %+v", r, entry, got)
			}
			continue
		}
		require.NoError(t, err, "%+v of %q", r, entry)
		if m := client.Time(ctx).Val(); !m.Equal(now) { // a server whose clock goes on
			_, _, want, _ := book.Decide(before, rules.At(now), r)
			if _, _, later, _ := book.Decide(before, rules.At(m), r); got.Outcome != want.Outcome || got.Status.State != want.Status.State {
				want = later // a lease has ended meanwhile
			}
			require.Equal(t, want.Outcome, got.Outcome, "%+v of %q", r, entry)
			require.Equal(t, want.Status.State, got.Status.State, "%+v of %q", r, entry)
			continue
		}
		next, problem := differs(before, now, r, got, after)
		require.Empty(t, problem, "%q", entry)
		// alone.lua changes one byte, and no time
		alone := r.Kind == driver.Release && got.Outcome == driver.Done && strings.Contains("HO", entry[12:13]) && strings.HasSuffix(entry, "\n")
		want := keptFor(next, now)
		switch {
		case after == "":
			want = -2 // there is no key
		case after == entry, alone:
			want = keptFor(before, now)
		}
		if kept != want {
			t.Errorf("kept for %v after %s; want %v: %+v of %q", kept, r.Kind, want, r, entry)
		}
	}
}

// keptFor is until an hour after the end of what an entry is kept for, in whole milliseconds.
func keptFor(s rules.State, now time.Time) time.Duration {
	left := time.Duration(0)
	begins := func(since time.Time, lasts time.Duration) {
		left = max(left, min(lasts, since.Add(lasts).Sub(now)))
	}
	begins(s.Closed.Since, s.Closed.For)
	for _, h := range s.Holders {
		begins(h.Since, h.TTL)
		if h.Started {
			left = max(left, lockstore.StartMarkTime)
		}
	}
	return time.Hour + (left + time.Millisecond - 1).Truncate(time.Millisecond)
}

// FuzzReply parses any answer of a server. The result is within its bounds, or an error.
func FuzzReply(f *testing.F) {
	for _, text := range []string{
		"", "G1790942400000000 60000000 0 ", "G7 5 2 NEXT\nOWNER 8 2000000 1 NEXT", "H7 5 2 0 1790942400123\tid\tname\n", "H7 5", "W7 5 2 0 \n", "I0 0 1 0 \n", "I0", "I",
		"I7 0 0 0 \n7 5 0 3 H holder\n8 5 1 3 W \n", "R\nOWNER 8 2000000 0 ", "O7", "O", "R", "L", "L\nOWNER 8 2000000 0 ", "B", "S", "K7 5 0 0 1790942400123\tid\tname\nresult\n", "K7 5 0 ",
		"C7 5 0 0 holder\n", "X7 5 0 1 holder\n", "DX7 5 0 0 holder\n", "DI7 5 0 0 holder\n\nOWNER 8 2000000 0 ", "D", "DR", "U7 0 0 1 holder\n", "U7", "A", "A1 states token", "Gx", "G1 ", "G1 x", "X", "\x00",
		"G-1 5 0 ", "I-1", "H1 -5 0 0 h\n", "G1 9223372036854775807 0 ", "H1 9223372036854776 0 0 h\n", "G99999999999999999999 1 0 ",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseReply(text)
		if err != nil {
			return
		}
		require.Contains(t, "GHXWKCUIROLBSA", string(rune(r.code)))
		require.GreaterOrEqual(t, r.fence, lockstore.Fence(0))
		require.GreaterOrEqual(t, r.left, time.Duration(0))
		holder := lockstore.DecodeHolderInfo(r.holder)
		require.LessOrEqual(t, len(holder.Name)+len(holder.ID), 256)
		answer, err := r.answer("k", driver.Request{Kind: driver.Acquire})
		require.NotEqual(t, err == nil, answer.Outcome == 0)
	})
}
