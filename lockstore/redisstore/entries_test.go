package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// stillStore is a store on a miniredis whose clock stands still.
func stillStore(t testing.TB) (*lockstore.Store, *miniredis.Miniredis, time.Time) {
	m := miniredis.RunT(t)
	now := time.UnixMicro(1_790_942_400_123_456)
	m.SetTime(now)
	s := storeOn(t, dialerClient(t, mini, patient(func(string, string) (net.Conn, error) { return m.Dial() })))
	loadScript(t, s)
	return s, m, now
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

// How long an entry is kept: until an hour after the end of its lease, result or cooldown, and for a month after a start. No time is shorter
// than requested.
func TestHowLongAnEntryIsKept(t *testing.T) {
	s, m, now := stillStore(t)
	d := driverOf(s)
	do := func(key string, r driver.Request) driver.Answer {
		a, err := d.Do(t.Context(), key, r)
		require.NoError(t, err)
		return a
	}
	const ttl = 10*time.Second + time.Microsecond
	const asked = ttl - time.Nanosecond
	for name, c := range map[string]struct {
		requests []driver.Kind // after the Acquire
		want     time.Duration
	}{
		"F79 granted":          {nil, ttl},
		"F79 renewed":          {[]driver.Kind{driver.Renew}, time.Minute},
		"F79 released":         {[]driver.Kind{driver.Release}, ttl}, // by alone.lua
		"F79 started":          {[]driver.Kind{driver.MarkStarted}, lockstore.StartMarkTime},
		"started and released": {[]driver.Kind{driver.MarkStarted, driver.Release}, 0},
		"completed":            {[]driver.Kind{driver.MarkStarted, driver.Complete}, time.Minute},
		"abandoned":            {[]driver.Kind{driver.Abandon}, 0},
		"handed over":          {[]driver.Kind{driver.Acquire, driver.Release}, driver.TurnTime},
	} {
		a := do(name, driver.Request{Kind: driver.Acquire, Owner: "OWNER", TTL: asked, MaxHolders: 1})
		for _, kind := range c.requests {
			r := driver.Request{Kind: kind, Owner: "OWNER", Fence: a.Fence, TTL: time.Minute, MaxHolders: 1, Result: driver.HiddenBytes("result")}
			if kind == driver.Acquire {
				r.Owner, r.Fence, r.Join = "WAITS", 0, true
			}
			do(name, r)
		}
		want := time.Hour + (c.want + time.Millisecond - 1).Truncate(time.Millisecond)
		require.Equal(t, want, m.TTL(DefaultPrefix+name), name)
	}

	// F19: a lease or a closed time that begins in the future, because the clock was set back, begins with the next request of anybody.
	for _, back := range []time.Duration{0, time.Microsecond, time.Hour} {
		for _, closed := range []bool{false, true} {
			m.SetTime(now)
			key := fmt.Sprint("F19", back, closed)
			a := do(key, driver.Request{Kind: driver.Acquire, Owner: "OWNER", TTL: asked, MaxHolders: 1})
			if closed {
				do(key, driver.Request{Kind: driver.Complete, Owner: "OWNER", Fence: a.Fence, TTL: asked})
			}
			for later, left := range []time.Duration{ttl, time.Microsecond} {
				m.SetTime(now.Add(-back + time.Duration(later)*(ttl-left)))
				a = do(key, driver.Request{Kind: driver.Acquire, Owner: "OTHER", TTL: asked, MaxHolders: 1})
				require.Equal(t, left, a.Status.Remaining)
			}
			m.SetTime(now.Add(-back + ttl))
			a = do(key, driver.Request{Kind: driver.Acquire, Owner: "OTHER", TTL: asked, MaxHolders: 1})
			require.Equal(t, driver.Granted, a.Outcome)
		}
	}

	// An entry remembers the last owners that have ended.
	for i := range marks + 1 {
		do("marks", driver.Request{Kind: driver.Abandon, Owner: driver.Owner(fmt.Sprint("OWNER", i))})
	}
	for i := marks; i >= 0; i-- {
		a := do("marks", driver.Request{Kind: driver.Acquire, Owner: driver.Owner(fmt.Sprint("OWNER", i)), TTL: ttl, MaxHolders: 1})
		require.Equal(t, i > 0, a.Outcome == driver.Lost, i)
	}
}

// Nobody is covered whose own event has a place: both owners here may be dead, and the two events would be covered by the places of each other.
func TestTwoEventsOfOneWork(t *testing.T) {
	s, m, now := stillStore(t)
	for event, covered := range map[string]bool{"1": false, "2": false, "3": true} {
		require.NoError(t, m.Set(DefaultPrefix+"k", fmt.Sprintf("lambdalock3 H002%016d OWNER 0\n%016[1]d 60000000 \n A\x011\x01%[1]d\x03index\x031 B\x011\x01%[1]d\x03index\x032 ", now.UnixMicro())))
		a, err := driverOf(s).Do(t.Context(), "k", driver.Request{
			Kind: driver.Acquire, Owner: driver.Owner("TRY" + event), TTL: time.Minute, MaxHolders: 1, Join: true, Work: "index", Event: event,
		})
		require.NoError(t, err)
		require.Equal(t, []any{driver.Refused, covered}, []any{a.Outcome, a.Covered}, "event %s", event)
	}
}

// What an event costs whose work another's run does: one script that writes nothing.
func TestCostOfACoveredEvent(t *testing.T) {
	url := "redis://" + testservers.Redis(t)
	s, admin := openStore(t, url), openClient(t, url)
	loadScript(t, s)
	sent := counted(driverOf(s).client)
	writes := func() string {
		return infoField(admin.Info(t.Context(), "persistence").Val(), "rdb_changes_since_last_save")
	}
	event := func(id string) error {
		return failure(s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: lockstore.MaxTTL, JoinQueue: true, Work: "index", Event: id}))
	}
	require.NoError(t, event("1"))
	require.ErrorIs(t, event("2"), lockstore.ErrRefused)
	before := writes()
	require.NotEmpty(t, before)
	for n := range int32(20) {
		refused, _ := errors.AsType[*lockstore.Refused](event("another"))
		require.NotNil(t, refused)
		require.True(t, refused.Covered)
		require.EqualValues(t, 3+n, sent.Load())
	}
	require.Equal(t, before, writes())
}

// The last fences: above 2^53 a number of Lua cannot grow by one. And an owner may look like a mark of the entry.
func TestLastFencesAndOwnersLikeMarks(t *testing.T) {
	s, m, _ := stillStore(t)
	for last, more := range map[int64]bool{1<<52 + 1: true, 1<<53 - 2: true, 1<<53 - 1: false} {
		require.NoError(t, m.Set(DefaultPrefix+"k", fmt.Sprintf("lambdalock3 F000%d D0000000000000007 0\n1000000000000000 1 \n", last)))
		require.ErrorIs(t, s.ResolveNoEffect(t.Context(), "k", 7), lockstore.ErrLost)
		lease, err := s.Acquire(t.Context(), newRequest("k"))
		if !more {
			require.ErrorIs(t, err, lockstore.ErrCorrupt)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, last+1, lease.Fence)
	}
}

// FuzzEntry writes any value to a lock's key.
func FuzzEntry(f *testing.F) {
	s, m, now := stillStore(f)
	client := dialerClient(f, "redis://"+m.Addr(), patient(net.Dial))
	sound, damaged, full, cut := entries(now)
	for i, entry := range slices.Concat(sound, damaged, full, cut) {
		// One goroutine asks. Real servers read all in TestEntriesOnRealServers.
		if !verifyrecord.WithRaceDetector || i%16 == 0 {
			f.Add(entry)
		}
	}
	f.Fuzz(func(t *testing.T, entry string) { checkEntry(t, s, client, entry) })
}

// Redis, Valkey and miniredis have different Lua interpreters. All read entries in the same
// way.
func TestEntriesOnRealServers(t *testing.T) {
	onBoth(t, "F53 entries", func(t *testing.T, program string) {
		client := dialerClient(t, "redis://"+testservers.Start(t, program).Addr, patient(net.Dial))
		s := storeOn(t, client)
		sound, damaged, full, cut := entries(time.Now())
		for _, entry := range sound {
			require.Zero(t, checkEntry(t, s, client, entry), "%q", entry)
		}
		for _, entry := range damaged {
			require.Equal(t, len(everyKind), checkEntry(t, s, client, entry), "%q", entry)
		}
		lease := func(owner string, fence, seat, most int, flags string) string {
			return fmt.Sprintf("%s %016d %d %d 0000000000000001 9 %s \n", owner, fence, seat, most, flags)
		}
		for leases, says := range map[string]string{
			lease("a", 9, 0, 2, "") + lease("b", 9, 1, 2, ""):  "the fences of the holders do not grow up to the last fence",
			lease("a", 9, 0, 2, "") + lease("b", 10, 1, 2, ""): "the fences of the holders do not grow up to the last fence",
			lease("a", 8, 0, 2, "") + lease("a", 9, 1, 2, ""):  "an owner has two leases",
			lease("a", 8, 1, 2, "") + lease("b", 9, 1, 2, ""):  "two holders have one seat",
			lease("a", 8, 0, 2, "") + lease("b", 9, 1, 1, ""):  "more hold the key than one of them allows",
			lease("a", 9, 0, 2, "s"):                           "the work of a lease with others has started",
		} {
			entry := "lambdalock3 X0000000000000000009  0\n0000000000000000 0 \n" + leases + "\n"
			require.Equal(t, len(everyKind), checkEntry(t, s, client, entry), "%q", entry)
			require.ErrorContains(t, failure(s.Inspect(t.Context(), "0")), says)
		}
		for _, entry := range slices.Concat(full, cut) {
			checkEntry(t, s, client, entry)
		}
	})
}

// checkEntry sends requests to keys with this value, of its owners and of others. Each is answered, or the value is refused as no entry,
// and stays. It returns how many refuse it. What the answers to an entry are, the comparison with the rule book says.
func checkEntry(t *testing.T, s *lockstore.Store, client redis.UniversalClient, entry string) int {
	t.Helper()
	ctx := t.Context()
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range everyKind {
			p.Set(ctx, DefaultPrefix+fmt.Sprint(i), entry, time.Hour)
		}
		return nil
	})
	require.NoError(t, err)
	var refused []string
	for i, r := range everyKind {
		if _, err := driverOf(s).Do(ctx, fmt.Sprint(i), r); err != nil {
			require.ErrorIs(t, err, lockstore.ErrCorrupt, "%+v of %q", r, entry)
			refused = append(refused, DefaultPrefix+fmt.Sprint(i))
		}
	}
	if len(refused) > 0 {
		for i, value := range client.MGet(ctx, refused...).Val() {
			require.Equal(t, entry, value, refused[i])
		}
	}
	return len(refused)
}

// everyKind are requests of a stranger, and of those that entries name.
var everyKind = func() (all []driver.Request) {
	for _, by := range []driver.Owner{"STRANGER", "OWNER", "SECOND", "LATE", "BEFORE"} {
		for kind := driver.Inspect; kind <= driver.Revoke; kind++ {
			if by != "STRANGER" && (kind == driver.Inspect || kind == driver.Resolve || kind == driver.Revoke) {
				continue // it has no owner
			}
			r := driver.Request{Kind: kind, Owner: by, Fence: 7, TTL: time.Minute, Holder: "h", Result: driver.HiddenBytes("result"), MaxHolders: 1}
			if kind == driver.Acquire {
				extends := r
				r.Fence, r.Join = 0, true
				shares := r
				shares.MaxHolders = 3
				all = append(all, extends, shares)
			}
			all = append(all, r)
			if r.AtOnce, r.Effect = true, true; kind == driver.Resolve || kind == driver.Revoke {
				all = append(all, r)
			}
		}
	}
	return all
}()

// waits is a queue of owners. One that shares has a comma and its MaxHolders behind its name.
func waits(owners ...string) string {
	queue := " "
	for _, o := range owners {
		if !strings.Contains(o, ",") {
			o += ",1"
		}
		queue += strings.Replace(o, ",", "\x01", 1) + "\x010000000000000006 "
	}
	return queue
}

// entries are entries, damaged entries and values of other programs, and what may be one of these. No lease ends within a minute after
// now, but for a turn, and some damaged times.
func entries(now time.Time) (sound, damaged, full, cut []string) {
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
	sound = []string{
		live, live + two, live + two[1:], live + " " + two, live + two + " ", live + two[:len(two)-1], live + strings.Replace(two, "SECOND", "\nSECOND", 1), live + " ", live + "  ",
		live + " FIRST SECOND ", live + strings.Replace(two, "\x011\x01", "\x010\x01", 1), live + strings.Replace(two, "\x011\x01", "\x01100\x01", 1), live + strings.Replace(two, "\x011\x01", "\x01x\x01", 1),
		live + strings.Replace(two, "6 ", "6\x0225000000 ", 1), live + strings.Replace(two, "6 ", "6\x0225000000\x01of a\x01later version ", 1), live + strings.Replace(two, "6 ", "6\x01of\x01later ", 1),
		held("H", seven, old, ""), held("H", seven, old, three), held("O", seven, at(0)+" 2000000 ", three), held("O", seven, old, three),
		held("F", seven, old, ""), held("F", seven, old, three),
		held("H", seven, at(10*time.Hour)+hour, ""), held("O", seven, at(10*time.Hour)+" 2000000 ", three), // begin in the future: the clock was set back
		held("H", seven, at(0)+" 9999999999999 ", ""), held("H", seven, "9999999999999999 60000000 ", ""),
		held("H", seven, at(0)+hour, waits("FIRST", "OWNER", "SECOND")), held("O", seven, at(0)+hour, waits("OWNER", "SECOND")), // asked again while a clock was ahead
		held("H", seven, at(0)+" 0777 ", ""), held("H", seven, at(0)+hour+"a\x00\xff", waits("b\x00\xff")),
		held("H", seven, at(-time.Minute-3*time.Second)+" 60000000 ", three),
		closed("K", at(0)+hour, "a result\n\x00\xff"), closed("K", at(0)+hour, three), closed("K", old, three),
		closed("C", at(0)+hour, ""), closed("C", old, ""), closed("C", at(10*time.Hour)+hour, ""),
		several("", ""), several("", three), several(one(seven, at(0)+hour, "r"), waits("FIRST,2", "SECOND")), several(one(seven, old, "r"), three),
		several(one(seven, at(0)+hour, "s"), ""), several(one(seven, old, "s"), three), several(one(seven, old, "rs"), three), several(one(seven, at(0)+hour, "hs"), ""),
		several("ANN 0000000000000005 0 3 "+at(0)+hour+" a\nB 0000000000000006 2 3 "+at(0)+hour+"h \nC 0000000000000007 1 64 "+old+" c\n", waits("FIRST,64", "SECOND,2", "THIRD")),
		several("ANN 0000000000000005 010 08 "+at(0)+hour+" a\n", waits("FIRST,10")),
		several("ANN 0000000000000005 0 3 "+at(0)+hour+" \n", waits("FIRST,x", ",", ",3")), magic + "X0000000000000000  0\n0000000000000000 0 \n\n",
		strings.Replace(live, "OWNEROWNER", "OW\x00NER\xff", 1), strings.Replace(live, "OWNEROWNER", "OW\vNER", 1), strings.Replace(live, "OWNEROWNER", "OW\u00a0NER\u2003", 1),
		strings.Replace(live, "F0000000000000006", "F6", 1),
	}
	damaged = []string{
		held("H", seven, at(0)+" 10000000000000 ", ""), closed("K", at(0)+hour, ""), closed("H", at(0)+hour, ""), closed("F", old, ""),
		several("ANN 0000000000000005 0 3 "+at(0)+hour+" a", ""), several("A 5 0 3 "+at(0)+hour+" a\n", ""), several("A 0000000000000005 0 9999999999 "+at(0)+hour+" a\n", ""),
		held("H", "0000000000000000", at(0)+hour, ""), several("OWNER 0000000000000000 0 1 "+at(0)+hour+" \n", ""),
		magic + "X" + seven + "  0\n0000000000000000 0 \n", magic + "X" + seven + " OWNER \n" + old + "\n\n",
		"lambdalock2" + live[len("lambdalock3"):], "lambdalock4" + live[len("lambdalock3"):], "lambdalock1 H OWNER 7 " + at(0) + hour + "  holder",
		strings.Replace(live, "H17", "H٧7", 1), strings.Replace(live, "H1790942400000000", "H0x1790942400000", 1), strings.Replace(live, "H1", "h1", 1), strings.Replace(live, "H1", "H-", 1),
		"", " ", "0", "42", "0 0 0", "hello", "lambdalock3", "{}", "\x00", strings.Repeat("lambdalock3 ", 50),
	}
	full = []string{ // no fence is left for some requests
		held("F", "9999999999999999", old, ""), held("H", "9007199254740990", old, ""), held("H", "9007199254740991", old, ""), held("H", "9007199254740990", old, three),
	}
	for at := 0; at < len(live); at += 29 {
		cut = append(cut, live[:at], live[at:], live[:at]+"\x00"+live[at:], live[:at]+" "+live[at:])
	}
	for _, all := range [][]string{sound, damaged, full, cut} {
		for i, entry := range all {
			if strings.HasPrefix(entry, magic) {
				places := fmt.Sprintf("%03d", len(strings.Fields(entry[lastLine(entry):])))
				all[i] = magic + entry[len(magic):min(len(entry), 13)] + places + entry[min(len(entry), 13):]
			}
		}
	}
	for places, isNumber := range map[string]bool{"000": true, "001": true, "999": true, "abc": false, "-01": false} {
		if entry := live[:13] + places + live[13:] + three; isNumber {
			sound = append(sound, entry)
		} else {
			damaged = append(damaged, entry)
		}
	}
	return sound, damaged, full, cut
}

// FuzzReply parses any answer of a server. The result is within its bounds, or an error.
func FuzzReply(f *testing.F) {
	for _, text := range []string{
		"", "G1790942400000000 60000000 0 ", "G7 5 2 NEXT\nOWNER 8 2000000 1 NEXT", "H7 5 2 9 0 1790942400123\tid\tname\n", "H7 5", "W7 5 2 9 0 \n", "I0 0 1 9 0 \n", "I0", "I",
		"I7 0 0 9 0 \n7 5 0 3 H holder\n8 5 1 3 W \n", "R\nOWNER 8 2000000 0 ", "O7", "O", "R", "L", "L\nOWNER 8 2000000 0 ", "B", "S", "K7 5 0 9 0 1790942400123\tid\tname\nresult\n", "K7 5 0 9 ",
		"C7 5 0 9 0 holder\n", "X7 5 0 9 1 holder\n", "DX7 5 0 9 0 holder\n", "DI7 5 0 9 0 holder\n\nOWNER 8 2000000 0 ", "D", "DR", "U7 0 0 9 1 holder\n", "U7", "A", "A1 states token", "Gx", "G1 ", "G1 x", "X", "\x00",
		"G-1 5 0 ", "I-1", "H1 -5 0 0 h\n", "G1 9223372036854775807 0 ", "H1 9223372036854776 0 9 0 h\n", "G99999999999999999999 1 0 ",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for kind := driver.Inspect; kind <= driver.Revoke; kind++ {
			a, _, err := (&call{key: "k", text: text}).answer(driver.Request{Kind: kind, TTL: time.Minute})
			if require.Equal(t, err != nil, a.Outcome == 0); err != nil {
				continue
			}
			require.GreaterOrEqual(t, min(a.Fence, a.Status.Fence), lockstore.Fence(0))
			require.GreaterOrEqual(t, min(a.TTL, a.Status.Remaining), time.Duration(0))
			holder := lockstore.DecodeHolderInfo(a.Status.Holder)
			require.LessOrEqual(t, len(holder.Name)+len(holder.ID), 256)
		}
	})
}
