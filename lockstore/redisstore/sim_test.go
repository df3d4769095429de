package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestSimulation runs simulated clients with the real client and the real scripts, on
// miniredis, in virtual time. The network is slow, loses requests and replies, delivers
// requests too late, repeats and refuses requests, and makes the server forget its
// scripts.
//
// No two clients may trust their leases at the same time, and fences grow in the order of
// trust. The test also checks each change of the entry:
//
//   - Acquire does not grant the key of a live lease, and does not grant the key to an
//     owner that has ended.
//   - Renew extends only a live lease of its owner, and never shortens it.
//   - Release ends only the owner's lease.
//   - The fence never becomes smaller.
//   - The queue changes as lockstore says: a refused owner gets the last place, a
//     grant ends its place and those before it, and who leaves moves nobody else. A grant
//     before the owner's turn is wrong, and so is a refusal after the turn has come.
//   - A wake-up that has arrived ends the wait of its owner.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/redisstore -run TestSimulation replays
// one seed.
func TestSimulation(t *testing.T) {
	t.Parallel()
	leasesim.Verify(t, "simulated clients over miniredis", 5, 600, 0.5, simulate)
}

func simulate(t *testing.T, seed uint64, fromReply bool) (leasesim.Counts, []string) {
	w := &wire{t: t, server: miniredis.NewMiniRedis(), start: time.Now(), ended: map[lockstore.Owner]bool{}, woken: map[string]time.Time{}, counts: leasesim.NewCounts(
		"scripts", "refused requests", "lost replies", "cut requests", "requests without an answer", "late requests", "late replies",
		"slow requests and replies", "repeated requests", "forgotten scripts",
		"grants in the queue's order", "grants past a place", "refusals of a free key", "leaves", "wake-ups", "wake-ups by a release", "waits without a wake-up")}
	t.Cleanup(w.server.Close)
	sim := &leasesim.Sim{Seed: seed, TTL: simTTL, Length: 15 * simTTL, Open: w.open, FromReply: fromReply}
	counts, problems := sim.Run(t)
	w.underWay.Wait()
	maps.Copy(counts, w.counts)
	return counts, problems
}

const simTTL = 3 * time.Second

// wire is the network of one seed, and the server.
type wire struct {
	t        *testing.T
	server   *miniredis.Miniredis
	start    time.Time
	underWay sync.WaitGroup // connections and requests that are repeated

	mu        sync.Mutex // while a script runs
	counts    leasesim.Counts
	had       []lockstore.Owner        // the owners of all grants
	ended     map[lockstore.Owner]bool // owners that released or abandoned
	abandoned lockstore.Owner          // the last owner that abandoned without having the key
	woken     map[string]time.Time     // when a wake-up arrived in a list that has it still
}

func (w *wire) open(p *leasesim.Process) (*lockstore.Store, func()) {
	client := dialerClient(w.t, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		w.underWay.Go(func() { w.serve(p, theirs) })
		return ours, nil
	})
	s, err := New(client, Options{})
	require.NoError(w.t, err)
	return s, func() { require.NoError(w.t, client.Close()) }
}

// serve is one connection. What it has read from the client reaches the server, even if the
// client does not wait any more.
func (w *wire) serve(p *leasesim.Process, client net.Conn) {
	defer client.Close()
	server, err := w.server.Dial()
	if err != nil {
		w.t.Error(err)
		return
	}
	defer server.Close()
	for r := bufio.NewReader(client); ; {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		reply := ""
		switch {
		case strings.HasPrefix(command[0], "eval"):
			reply = w.carry(p, server, command)
		case command[0] == "blpop":
			reply = w.exchange(server, command)
			w.waited(command[1], reply)
		default:
			reply = w.exchange(server, command)
		}
		if reply == hang {
			_, _ = io.Copy(io.Discard, r) // until the client gives up
			return
		}
		if _, err := io.WriteString(client, reply); err != nil || reply == "" {
			return
		}
	}
}

const hang = "hang"

// carry delivers a script call to the server, or loses it. It returns the reply, or "" to
// end the connection, or hang.
func (w *wire) carry(p *leasesim.Process, server net.Conn, command []string) string {
	in, out, fate := p.UpTo(40*time.Millisecond), p.UpTo(40*time.Millisecond), p.Float()
	lose := false
	switch {
	case fate < 0.02:
		w.count("refused requests")
		return "-LOADING Redis is loading the dataset in memory\r\n"
	case fate < 0.07:
		w.count("lost replies")
		lose = true
	case fate < 0.10:
		w.count("cut requests")
		return ""
	case fate < 0.13:
		w.count("requests without an answer")
		return hang
	case fate < 0.18:
		w.count("late requests")
		in = p.UpTo(2 * simTTL)
	case fate < 0.22:
		w.count("late replies")
		out = p.UpTo(2 * simTTL)
	case fate < 0.26:
		w.count("slow requests and replies") // and the client waits for them
		in, out = p.UpTo(answerTimeout/2), p.UpTo(answerTimeout/2)
	case fate < 0.32:
		w.count("repeated requests")
		again := p.UpTo(2 * simTTL)
		w.underWay.Go(func() {
			leasesim.Pass(in + again)
			server, err := w.server.Dial()
			if err != nil {
				w.t.Error(err)
				return
			}
			defer server.Close()
			w.script(server, command)
		})
	case fate < 0.34:
		w.count("forgotten scripts")
		w.exchange(server, []string{"SCRIPT", "FLUSH"})
	}
	leasesim.Pass(in)
	reply := w.script(server, command)
	leasesim.Pass(out)
	if lose {
		return ""
	}
	return reply
}

func (w *wire) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// exchange sends a command and reads the reply, which the server writes at once.
func (w *wire) exchange(server net.Conn, command []string) string {
	text := fmt.Sprintf("*%d\r\n", len(command))
	for _, word := range command {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(server, text); err != nil {
		w.t.Error(err)
	}
	reply := make([]byte, 1<<16)
	n, err := server.Read(reply)
	if err != nil {
		w.t.Error(err)
	}
	return string(reply[:n])
}

// waited checks the end of a wait for a wake-up.
func (w *wire) waited(list, reply string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, woken := w.woken[list]
	delete(w.woken, list)
	if strings.Contains(reply, list) {
		w.counts["wake-ups"]++
		return
	}
	w.counts["waits without a wake-up"]++
	if woken && time.Since(at) < listTime {
		w.t.Errorf("at %v: a wake-up arrived %v ago, and the wait ended without it", time.Since(w.start), time.Since(at))
	}
}

// listTime is how long the server keeps a wake-up.
const listTime = 5 * time.Second

// seen is an entry on the server.
type seen struct {
	state string
	owner lockstore.Owner
	fence int64
	end   int64 // of the lease, or since when the key is free, in microseconds
	queue string
}

func (w *wire) entry() seen {
	text, err := w.server.Get(DefaultPrefix + leasesim.Key)
	if errors.Is(err, miniredis.ErrKeyNotFound) {
		return seen{state: "F"}
	}
	if err != nil {
		w.t.Error(err)
		return seen{}
	}
	text, queue, _ := strings.Cut(text, "\n")
	f := strings.SplitN(text, " ", 9)
	number := func(i int) int64 {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			w.t.Error(err)
		}
		return n
	}
	return seen{f[1], lockstore.Owner(f[2]), number(3), number(4) + number(5), queue}
}

// places are the owners that wait.
func (s seen) places() []string { return strings.Fields(s.queue) }

// untilTurn is how long the key is kept for those before the owner.
func (s seen) untilTurn(me lockstore.Owner) time.Duration {
	before := slices.Index(s.places(), string(me))
	if before < 0 {
		before = len(s.places())
	}
	return lockstore.UntilTurn(before, time.Duration(time.Now().UnixMicro()-s.end)*time.Microsecond)
}

// after is the queue without the places that a grant to the owner ends.
func (s seen) after(me lockstore.Owner) []string {
	p := s.places()
	if i := slices.Index(p, string(me)); i >= 0 {
		return p[i+1:]
	}
	return nil
}

// without is the queue without the owner's place.
func (s seen) without(me lockstore.Owner) []string {
	return slices.DeleteFunc(s.places(), func(o string) bool { return o == string(me) })
}

// live reports whether the lease is live now.
func (s seen) live() bool { return s.state == "H" && time.Now().UnixMicro() < s.end }

// simScripts are the names of the scripts by hash and by source.
var simScripts = func() map[string]string {
	names, scripts := map[string]string{}, newScripts()
	for i, name := range map[scriptName]string{acquireScript: "acquire", renewScript: "renew", releaseScript: "release", wakeScript: "wake"} {
		sc := scripts[i]
		names[sc.sha.(string)], names[sc.source.(string)] = name, name
	}
	return names
}()

// script runs a script on the server and checks how it changed the entry.
func (w *wire) script(server net.Conn, command []string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.entry()
	reply := w.exchange(server, command)
	after := w.entry()
	if strings.HasPrefix(reply, "-NOSCRIPT") {
		return reply
	}
	first := "" // the list that a release may wake
	if command[2] == "2" {
		first, command = command[4], slices.Delete(slices.Clone(command), 4, 5)
	}
	name, me := simScripts[command[1]], lockstore.Owner(command[4])
	_, answer, _ := strings.Cut(reply, "\r\n")
	fail := func(format string, args ...any) {
		w.t.Errorf("at %v: %s of %s answered %q: %s: %+v became %+v", time.Since(w.start), name, string(me[:4]), reply, fmt.Sprintf(format, args...), before, after)
	}
	if answer == "" {
		fail("not an answer")
		return reply
	}

	w.counts["scripts"]++
	if name == "wake" {
		w.woken[command[3]] = time.Now()
		return reply
	}
	want := before.places() // what the queue has to be now
	switch code := code(answer[0]); {
	case name == "acquire" && code == granted && after.fence != before.fence:
		want = before.after(me)
		turn := before.untilTurn(me)
		switch {
		case before.live():
		case len(want) != len(before.places())-1:
			w.counts["grants past a place"]++
		case len(before.places()) > 0:
			w.counts["grants in the queue's order"]++
		}
		if !before.live() && turn > 0 {
			fail("M32: granted %v before its turn", turn)
		}
	case name == "acquire" && (code == held || code == reserved):
		if command[8] == "1" && !slices.Contains(want, string(me)) && len(want) < 128 {
			want = append(want, string(me))
		}
		if code == reserved {
			w.counts["refusals of a free key"]++
			if before.live() || before.untilTurn(me) <= 0 {
				fail("M31: refused, and its turn has come")
			}
		}
	case name == "release" && code == done:
		want = before.without(me)
		if command[5] == "-" {
			w.counts["leaves"]++
		}
		if first != "" && !after.live() && len(want) > 0 && first == DefaultPrefix+list(lockstore.Owner(want[0])) {
			w.woken[first] = time.Now()
			w.counts["wake-ups by a release"]++
			if answer != "R\r\n" {
				fail("the first in the queue is to be woken")
			}
		}
	}
	if !slices.Equal(want, after.places()) {
		fail("the queue has to be %v", want)
	}
	if i := slices.Index(before.places(), string(me)); i >= 0 && name == "release" && answer[0] == byte(done) && !before.live() {
		free := time.Duration(time.Now().UnixMicro()-before.end) * time.Microsecond
		if got := time.Duration(time.Now().UnixMicro()-after.end) * time.Microsecond; got != lockstore.FreeAfterLeave(i, free) {
			fail("free for %v after one in place %d has left, and before for %v", got, i+1, free)
		}
	}
	before.queue, after.queue = "", ""
	if !before.live() && name == "release" {
		before.end, after.end = 0, 0
	}
	if after.fence < before.fence {
		fail("the fence fell")
	}
	switch code := code(answer[0]); {
	case name == "acquire" && code == granted && after != before:
		switch {
		case before.live():
			fail("a live lease's key was granted")
		case after.fence <= before.fence:
			fail("the fence did not grow")
		case w.remembered(me):
			fail("M18: an owner that has ended has the key")
		}
		w.had = append(w.had, me)
	case name == "acquire" && code == granted && !(before.live() && before.owner == me):
		fail("nothing was granted")
	case name == "acquire" && code == held && (!before.live() || before.owner == me):
		fail("M15: held, but the key is free or the owner's own")
	case name == "renew" && code == granted:
		if !before.live() || before.owner != me || strconv.FormatInt(before.fence, 10) != command[6] {
			fail("M06 M08: the owner did not hold the key")
		}
		if after.end < before.end {
			fail("M09: the lease got shorter")
		}
	case name == "release" && code == done:
		fence := command[5]
		switch {
		case before.state == "H" && before.owner == me:
			w.ended[me] = true
			if after.state != "F" || fence != "0" && fence != strconv.FormatInt(before.fence, 10) {
				fail("M05: it released no lease, or another owner's")
			}
		case after != before:
			fail("M04: another owner's lease was ended")
		case fence == "0" && !w.remembered(me):
			w.abandoned = me
		}
	default:
		if after != before {
			fail("a refused request changed the entry")
		}
	}
	return reply
}

// remembered reports whether an acquire of the owner must be refused, as the package
// documentation says: the owner is one of the last two holders and has released, or it is
// the last owner that abandoned without having the key.
func (w *wire) remembered(o lockstore.Owner) bool {
	return w.ended[o] && slices.Contains(w.had[max(0, len(w.had)-2):], o) || w.abandoned == o
}
