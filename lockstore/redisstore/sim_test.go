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
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/redisstore -run TestSimulation replays
// one seed.
func TestSimulation(t *testing.T) {
	leasesim.Verify(t, "simulated clients over miniredis", 20, 1000, 0.5, simulate)
}

func simulate(t *testing.T, seed uint64, fromReply bool) (leasesim.Counts, []string) {
	w := &wire{t: t, server: miniredis.NewMiniRedis(), start: time.Now(), ended: map[lockstore.Owner]bool{}, counts: leasesim.NewCounts(
		"scripts", "refused requests", "lost replies", "cut requests", "requests without an answer", "late requests", "late replies",
		"slow requests and replies", "repeated requests", "forgotten scripts")}
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
}

func (w *wire) open(p *leasesim.Process) (lockstore.Store, func()) {
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
		if strings.HasPrefix(command[0], "eval") {
			reply = w.carry(p, server, command)
		} else {
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
			pass(in + again)
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
	pass(in)
	reply := w.script(server, command)
	pass(out)
	if lose {
		return ""
	}
	return reply
}

func pass(d time.Duration) { <-time.After(d) }

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

// seen is an entry on the server.
type seen struct {
	state string
	owner lockstore.Owner
	fence int64
	end   int64 // of the lease, in microseconds
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
	f := strings.SplitN(text, " ", 9)
	number := func(i int) int64 {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			w.t.Error(err)
		}
		return n
	}
	return seen{f[1], lockstore.Owner(f[2]), number(3), number(4) + number(5)}
}

// live reports whether the lease is live now.
func (s seen) live() bool { return s.state == "H" && time.Now().UnixMicro() < s.end }

// simScripts are the names of the scripts by hash and by source.
var simScripts = func() map[string]string {
	names, scripts := map[string]string{}, newScripts()
	for i, name := range map[scriptName]string{acquireScript: "acquire", renewScript: "renew", releaseScript: "release"} {
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
	case name == "release" && code == released:
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
