package operate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestMain(m *testing.M) {
	watchdog.Start()
	m.Run()
}

// scripted is the driver of a store whose answers are given, one for each request. The last one
// stays. One that names no holder names who revokes.
type scripted struct {
	driver.Driver
	answers []scriptedAnswer
	looks   int
}

type scriptedAnswer struct {
	status driver.Status
	err    error
	slow   bool // it comes after the time of the call
}

func (s *scripted) Do(ctx context.Context, _ string, r driver.Request) (driver.Answer, error) {
	a := s.answers[min(s.looks, len(s.answers)-1)]
	s.looks++
	if a.slow {
		<-ctx.Done()
		return driver.Answer{}, fmt.Errorf("outcome unknown: %w", ctx.Err())
	}
	a.status.Holder = cmp.Or(a.status.Holder, r.Holder)
	return driver.Answer{Outcome: driver.Done, Status: a.status}, a.err
}

var (
	revoked   = scriptedAnswer{status: driver.Status{State: driver.Revoked, Holder: annRevoked.Encode(), Fence: 7, Remaining: 10 * time.Second, Holders: []driver.LiveLease{ofFence7}}}
	inDoubt   = scriptedAnswer{status: driver.Status{State: driver.InDoubt, Holder: annRevoked.Encode(), Fence: 7}}
	completed = scriptedAnswer{status: driver.Status{State: driver.Completed, Fence: 7, Remaining: time.Minute}}
	open7     = scriptedAnswer{status: driver.Status{Fence: 7}}
	reserved7 = scriptedAnswer{status: driver.Status{State: driver.Reserved, Fence: 7, Remaining: time.Second, Waiting: 1}}
	next      = scriptedAnswer{status: driver.Status{State: driver.Held, Fence: 8, Remaining: time.Minute, Holders: []driver.LiveLease{{State: driver.Held, Fence: 8, MaxHolders: 1, Remaining: time.Minute}}}}
	fails     = scriptedAnswer{err: fmt.Errorf("%w: connection refused", lockstore.ErrUnavailable)}
	slow      = scriptedAnswer{slow: true}
	damaged   = scriptedAnswer{err: lockstore.ErrCorrupt}

	annRevoked = lockstore.HolderInfo{Name: "revoked by ann"}
	ofFence7   = driver.LiveLease{State: driver.Revoked, Text: annRevoked.Encode(), Fence: 7, MaxHolders: 1, Remaining: 10 * time.Second}
)

// what has been said and printed until a wait of watch or revoke --wait has ended.
type ended struct {
	status    int
	err, said string
	printed   string
	looks     int
}

// waitsIn runs a wait in virtual time. Ctrl-C comes after interrupt.
func waitsIn(t *testing.T, interrupt time.Duration, answers []scriptedAnswer, wait func(context.Context, operator) error) (e ended) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), interrupt)
		defer cancel()
		var out, said bytes.Buffer
		script := &scripted{answers: answers}
		err := wait(ctx, operator{store: lockstore.New("scripted", script), key: "k", out: &out, err: &said})
		e = ended{status: exit.Status(err), said: said.String(), printed: out.String(), looks: script.looks}
		if !exit.Silent(err) {
			e.err = err.Error()
		}
	})
	return e
}

const (
	warned  = "lockctl: warning: the store does not answer; lockctl goes on waiting: "
	answers = "lockctl: the store answers again\n"
)

func refused() string { return warned + fails.err.Error() + "\n" }

// A wait ends when its end has come, and goes on while the store fails.
func TestWaits(t *testing.T) {
	revokes := func(ctx context.Context, o operator) error {
		r := revoker{operator: o, fence: 7}
		return r.await(ctx)
	}
	watches := func(ctx context.Context, o operator) error { return o.watch(ctx, "free") }
	for name, c := range map[string]struct {
		wait      func(context.Context, operator) error
		interrupt time.Duration
		answers   []scriptedAnswer
		want      ended
		lines     int // printed
	}{
		"revoke until it is open":           {revokes, time.Hour, []scriptedAnswer{revoked, revoked, open7}, ended{looks: 3}, 1},
		"revoke until it is reserved":       {revokes, time.Hour, []scriptedAnswer{revoked, reserved7}, ended{looks: 2}, 1},
		"revoke until another has it":       {revokes, time.Hour, []scriptedAnswer{revoked, next}, ended{looks: 2}, 1},
		"revoke until it is in doubt":       {revokes, time.Hour, []scriptedAnswer{revoked, inDoubt}, ended{status: exit.No, err: `"k" is in doubt: nobody holds it, and nobody gets it before lockctl resolve`, looks: 2}, 0},
		"revoke until it is resolved":       {revokes, time.Hour, []scriptedAnswer{revoked, completed}, ended{status: exit.No, err: `"k" has the state completed, has no lease to revoke, and opens within 1m0s`, looks: 2}, 0},
		"revoke for a store that fails":     {revokes, time.Hour, []scriptedAnswer{fails, fails, revoked, fails, open7}, ended{said: refused() + answers + refused() + answers, looks: 5}, 1},
		"revoke for a slow store":           {revokes, time.Hour, []scriptedAnswer{revoked, slow, open7}, ended{said: warned + "outcome unknown: context deadline exceeded\n" + answers, looks: 3}, 1},
		"revoke until Ctrl-C":               {revokes, 1500 * time.Millisecond, []scriptedAnswer{revoked}, ended{status: exit.Interrupted, looks: 2}, 0},
		"revoke until the entry is damaged": {revokes, time.Hour, []scriptedAnswer{revoked, damaged}, ended{status: exit.Damaged, err: damaged.err.Error(), looks: 2}, 0},
		"watch after a failure":             {watches, time.Hour, []scriptedAnswer{next, fails, slow, next, revoked, open7}, ended{said: refused() + answers, looks: 6}, 4},
		"watch until Ctrl-C":                {watches, 2500 * time.Millisecond, []scriptedAnswer{next}, ended{status: exit.Interrupted, looks: 3}, 2},
		"watch not without a first answer":  {watches, time.Hour, []scriptedAnswer{fails}, ended{status: exit.Unavailable, err: fails.err.Error(), looks: 1}, 0},
		"watch not for Ctrl-C before it":    {watches, time.Second, []scriptedAnswer{slow}, ended{status: exit.Interrupted, looks: 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := waitsIn(t, c.interrupt, c.answers, c.wait)
			assert.Equal(t, c.lines, strings.Count(got.printed, "\n"), got.printed)
			got.printed = ""
			assert.Equal(t, c.want, got)
		})
	}
}

// A hand-over to a parked run that does not come is found at the end of its turn, and no other: not one that is used, an
// ordinary one, or one that comes later.
func TestCheckWaitsForParkedRuns(t *testing.T) {
	handed := func(fence driver.Fence, left time.Duration) driver.LiveLease {
		return driver.LiveLease{State: driver.Reserved, Fence: fence, MaxHolders: 3, Remaining: left}
	}
	at := func(holders ...driver.LiveLease) scriptedAnswer {
		return scriptedAnswer{status: driver.Status{State: driver.Reserved, Holders: holders}}
	}
	used := handed(7, time.Minute)
	used.State = driver.Held
	const early, late, over = 6 * time.Second, 5 * time.Second, time.Second
	for name, c := range map[string]struct {
		answers []scriptedAnswer
		found   []driver.Fence
		want    ended
	}{
		"it does not come":     {[]scriptedAnswer{at(handed(7, early)), at(handed(7, late))}, []driver.Fence{7}, ended{looks: 2}},
		"it comes":             {[]scriptedAnswer{at(handed(7, early)), at(used)}, nil, ended{looks: 2}},
		"it has come and gone": {[]scriptedAnswer{at(handed(7, early)), open7}, nil, ended{looks: 2}},
		"an ordinary turn":     {[]scriptedAnswer{at(handed(7, late))}, nil, ended{looks: 1}},
		"another one later":    {[]scriptedAnswer{at(handed(7, early)), at(handed(8, over)), at(handed(8, over))}, nil, ended{looks: 2}},
		"one of two":           {[]scriptedAnswer{at(handed(7, early), handed(8, early)), at(handed(7, late), handed(8, early)), open7}, []driver.Fence{7}, ended{looks: 3}},
		"damaged after one":    {[]scriptedAnswer{at(handed(7, early), handed(8, early)), at(handed(7, late), handed(8, early)), damaged}, []driver.Fence{7}, ended{status: exit.Damaged, err: damaged.err.Error(), looks: 3}},
		"it is damaged":        {[]scriptedAnswer{at(handed(7, early)), damaged}, nil, ended{status: exit.Damaged, err: damaged.err.Error(), looks: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			got := waitsIn(t, time.Hour, c.answers, func(ctx context.Context, o operator) error {
				found, failed := notWoken(ctx, &looker{operator: &o})
				var fences []driver.Fence
				for _, f := range found {
					var fence driver.Fence
					_, err := fmt.Sscanf(f.Problem, `"k" was handed over to a parked run, fence %d, and`, &fence)
					assert.NoError(t, err, f.Problem)
					fences = append(fences, fence)
				}
				assert.Equal(t, c.found, fences)
				return failed
			})
			assert.Equal(t, c.want, got)
		})
	}
}

// A line for the key and for each holder, whenever another holds it, and none for a renewal.
func TestWatchSeveral(t *testing.T) {
	one := driver.LiveLease{State: driver.Held, Fence: 7, MaxHolders: 3, Remaining: time.Minute}
	renewed, two, handed := one, one, one
	renewed.Remaining = 2 * time.Minute
	two.Fence, two.Seat = 8, 1
	handed.Fence, handed.State = 9, driver.Reserved
	holds := func(last driver.Fence, holders ...driver.LiveLease) scriptedAnswer {
		return scriptedAnswer{status: driver.Status{State: driver.Held, Fence: last, Remaining: time.Minute, Holders: holders}}
	}
	got := waitsIn(t, time.Hour, []scriptedAnswer{
		holds(7, one), holds(8, one, two), holds(8, renewed, two), holds(8, two), holds(9, two, handed), {status: driver.Status{Fence: 9}},
	}, func(ctx context.Context, o operator) error { return o.watch(ctx, "free") })
	assert.Equal(t, 6, got.looks)
	var lines []string
	for line := range strings.Lines(got.printed) {
		cells := strings.Fields(line)
		lines = append(lines, strings.Join(append(cells[1:2:2], cells[4:]...), " "))
	}
	assert.Equal(t, []string{
		"STATE FENCE HOLDER",
		"held 7 1 of 3", "held 7 seat 0: unknown",
		"held 8 2 of 3", "held 7 seat 0: unknown", "held 8 seat 1: unknown",
		"held 8 1 of 3", "held 8 seat 1: unknown",
		"held 9 2 of 3", "held 8 seat 1: unknown", "reserved 9 seat 0",
		"free 9 -",
	}, lines, got.printed)
}

// A second operator waits, too, and is told who was first. Another may have revoked the lease, and the work may have started,
// since the look.
func TestRevokeWaitsForAnother(t *testing.T) {
	held := scriptedAnswer{status: driver.Status{State: driver.Held, Fence: 7, Holders: []driver.LiveLease{{State: driver.Held, Fence: 7, MaxHolders: 1}}}}
	byMe, byAnn := revoked, revoked
	byMe.status.Started, byMe.status.Holder = true, ""
	byAnn.status.Started = true
	for name, c := range map[string]struct {
		wait    bool
		answers []scriptedAnswer
		want    ended
	}{
		"wait":                {true, []scriptedAnswer{revoked, revoked, open7}, ended{printed: "the lease of \"k\" was revoked already: revoked by ann; the key opens within 10s\nthe lease is over; \"k\" is free now.\n", looks: 3}},
		"do not wait":         {false, []scriptedAnswer{revoked}, ended{status: exit.No, err: `the lease of "k" was revoked already: revoked by ann; the key opens within 10s`, looks: 1}},
		"since the look":      {false, []scriptedAnswer{held, byAnn}, ended{status: exit.No, err: `the lease of "k" was revoked already: revoked by ann; its work has started, so the key is in doubt within 10s`, looks: 2}},
		"only the work since": {false, []scriptedAnswer{held, byMe}, ended{printed: "the lease of \"k\" is revoked: unknown can renew it no more; its work has started, so the key is in doubt within 10s, at 2000-01-01T00:00:10Z.\n", looks: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, waitsIn(t, time.Hour, c.answers, func(ctx context.Context, o operator) error {
				r := revoker{operator: o, fence: 7, wait: c.wait}
				return r.run(ctx)
			}))
		})
	}
}

// hands is the driver of a store that hands a key over to two parked owners, and has the addresses of neither. Meanwhile
// the operator interrupts.
type hands struct {
	driver.Driver
	interrupt func()
}

func (h hands) PutAddress(context.Context, string, driver.Owner, driver.HiddenBytes, time.Duration) error {
	return nil
}

func (h hands) TakeAddress(ctx context.Context, _ string, _ driver.Owner) (driver.HiddenBytes, error) {
	return nil, ctx.Err()
}

func (h hands) Do(context.Context, string, driver.Request) (driver.Answer, error) {
	h.interrupt()
	return driver.Answer{Outcome: driver.Done, Wake: []driver.Owner{"p", "q"}}, nil
}

// Two owners are not woken at the same time: each has its line. An interrupt stops no wake-up, because the key is theirs now.
func TestTwoOwnersAreNotWoken(t *testing.T) {
	var said bytes.Buffer
	o := operator{err: &said}
	ctx, interrupt := context.WithCancel(t.Context())
	require.NoError(t, o.waking(lockstore.New("hands", hands{interrupt: interrupt})).Release(ctx, lockstore.Lease{Key: "k", Owner: "o", Fence: 7}))
	assert.Equal(t, 2, strings.Count(said.String(), "lockctl: warning: a parked run has to ask for the key again, and was not woken: the store has no address\n"), said.String())
}
