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
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// TestSimulation runs simulated clients with the real client and the real scripts, on
// miniredis, in virtual time. The network is slow, loses requests and replies, delivers
// requests too late, repeats and refuses requests, and makes the server forget its
// scripts. Replies arrive byte by byte.
//
// No two clients may trust their leases at the same time, and fences grow in the order of
// trust. Each answer of a script, and each change of the entry, is that of the rule book. Who was
// handed the key finds an element in its list, or the answer names it; and an element that has
// arrived ends the wait of its owner.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/redisstore -run TestSimulation replays
// one seed.
func TestSimulation(t *testing.T) {
	leasesim.Verify(t, "simulated clients over miniredis", 4, 600, 0.1, simulate)
}

func simulate(t *testing.T, seed uint64, fromReply bool) (leasesim.Counts, []string) {
	w := &wire{t: t, server: miniredis.NewMiniRedis(), start: time.Now(), woken: map[string]time.Time{}, counts: leasesim.NewCounts(
		"scripts", "refused requests", "lost replies", "cut requests", "requests without an answer", "late requests", "late replies",
		"slow requests and replies", "repeated requests", "forgotten scripts",
		"hand-overs", "hand-overs that a second request tells", "wake-ups", "wake-ups by a release", "waits without a wake-up",
		"grants of a second seat")}
	t.Cleanup(w.server.Close)
	sim := &leasesim.Sim{Seed: seed, TTL: simTTL, Length: 15 * simTTL, Several: true, Open: w.open, FromReply: fromReply}
	counts, problems := sim.Run(t)
	w.underWay.Wait()
	maps.Copy(counts, w.counts)
	counts[leasesim.HandedOver] += 0
	return counts, problems
}

const simTTL = 3 * time.Second

// wire is the network of one seed, and the server.
type wire struct {
	t        *testing.T
	server   *miniredis.Miniredis
	start    time.Time
	underWay sync.WaitGroup // connections and requests that are repeated

	mu     sync.Mutex // while a script runs
	counts leasesim.Counts
	woken  map[string]time.Time // when an element arrived in a list that has it still
}

func (w *wire) open(p *leasesim.Process) (*lockstore.Store, func()) {
	client := dialerClient(w.t, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		w.underWay.Go(func() { w.serve(p, theirs) })
		return byteByByte{ours}, nil
	})
	s, err := New(client, Options{})
	require.NoError(w.t, err)
	return s, func() { require.NoError(w.t, client.Close()) }
}

// byteByByte is a connection whose replies arrive byte by byte.
type byteByByte struct{ net.Conn }

func (s byteByByte) Read(b []byte) (int, error) { return s.Conn.Read(b[:1]) }

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

// simScripts are the kinds of the scripts, by hash and by source.
var simScripts = func() map[string]driver.Kind {
	kinds := map[string]driver.Kind{}
	for name, kind := range map[scriptName]driver.Kind{
		acquireScript: driver.Acquire, renewScript: driver.Renew, releaseScript: driver.Release, abandonScript: driver.Abandon,
		leaveScript: driver.Leave, wakeScript: driver.AwaitTurn,
	} {
		s := scripts[name]()
		kinds[s.sha.(string)], kinds[s.source.(string)] = kind, kind
	}
	return kinds
}()

// requestOf is the request that a script gets.
func requestOf(kind driver.Kind, args []string) driver.Request {
	number := func(text string) int64 { n, _ := strconv.ParseInt(text, 10, 64); return n }
	r := driver.Request{Kind: kind, Owner: driver.Owner(args[0])}
	switch kind {
	case driver.Acquire:
		ttl, holder, _ := strings.Cut(args[1], " ")
		most, fence, _ := strings.Cut(args[3], " ")
		most, r.Join = strings.CutSuffix(most, "+")
		r.TTL, r.Holder = time.Duration(number(ttl))*time.Microsecond, holder
		r.MaxHolders, r.Fence = int(number(most)), driver.Fence(number(fence))
	case driver.Renew:
		r.Fence, r.TTL = driver.Fence(number(args[1])), time.Duration(number(args[2]))*time.Microsecond
	case driver.Release:
		r.Fence = driver.Fence(number(args[1]))
	}
	return r
}

// script runs a script on the server and checks its answer and how it changed the entry.
func (w *wire) script(server net.Conn, command []string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, _ := decode(w.entry())
	raw := w.exchange(server, command)
	if strings.HasPrefix(raw, "-NOSCRIPT") {
		return raw
	}
	kind, keys, args := simScripts[command[1]], command[3:4], command[4:]
	if command[2] == "2" {
		keys, args = command[3:5], command[5:]
	}
	_, text, _ := strings.Cut(raw, "\r\n")
	w.counts["scripts"]++
	if kind == driver.AwaitTurn {
		w.counts["hand-overs that a second request tells"]++
		w.woken[keys[0]] = time.Now()
		return raw
	}
	r := requestOf(kind, args)
	reply, err := parseReply(strings.TrimSuffix(text, "\r\n"))
	if err != nil {
		w.t.Errorf("%s answered %q: %v", kind, raw, err)
		return raw
	}
	answer, err := reply.answer(leasesim.Key, r)
	if err != nil {
		w.t.Errorf("%s answered %q: %v", kind, raw, err)
		return raw
	}
	if kind == driver.Acquire {
		answer.TTL = min(answer.TTL, r.TTL)
		if answer.Seat > 0 {
			w.counts["grants of a second seat"]++
		}
	}
	// Who finds an element in the list that the request named is not in the answer.
	after, _ := decode(w.entry())
	n := 0 // of those who were handed the key before
	for _, h := range after.Holders {
		if !h.HandedOver || h.Fence <= before.LastFence {
			continue
		}
		if len(keys) == 2 && keys[1] == listOf(h.Owner) {
			w.counts["wake-ups by a release"]++
			w.woken[keys[1]] = time.Now()
			answer.HandedOver = slices.Insert(answer.HandedOver, min(n, len(answer.HandedOver)), h.Owner)
		}
		n++
	}
	w.counts["hand-overs"] += int64(len(answer.HandedOver))
	if _, problem := differs(before, time.Now(), r, answer, w.entry()); problem != "" {
		w.t.Errorf("F23 F24 F26 F30 M04 M05 M06 M08 M09 M15 M18 M31 M32: at %v: %s", time.Since(w.start), problem)
	}
	return raw
}

func (w *wire) entry() string {
	text, err := w.server.Get(DefaultPrefix + leasesim.Key)
	if err != nil && !errors.Is(err, miniredis.ErrKeyNotFound) {
		w.t.Error(err)
	}
	return text
}

// listOf is the name of an owner's list.
func listOf(o lockstore.Owner) string {
	return (&server{prefix: DefaultPrefix}).list(leasesim.Key, o)
}
