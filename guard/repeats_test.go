package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// TestRepeats counts effects in virtual time. Several processes call idempotency.Do with the
// same two keys, at once and one after the other, also after a result has ended. They freeze
// and die at any request. Requests are refused, lost, late and repeated, and replies are lost
// or slow. The work fails, panics, has no effect, goes on after the end of its context, or has
// a result that is too large. The test compares with what the store itself was told:
//
//   - An effect whose result is not stored has a cause, and the causes are counted: its run was
//     killed, failed, lost its lease, or could not store its result. A run that met no fault
//     stores its result.
//   - With AtMostOnce a key has one effect until its result has ended, and one more each time
//     that an operator lets it run again.
//   - With effect and result in one transaction a key has at most one effect until its result
//     has ended, and exactly one if a call has returned a result.
//   - A repeat gets the first result that was stored, or the error that says why not. It gets no
//     result of another key, of other input or of a run that did not return it.
//   - No run releases its lease after its work has returned a result.
//   - Each call ends in time. When the faults are over, all calls get a result as soon as an
//     operator has resolved the key.
func TestRepeats(t *testing.T) {
	leasesim.Seeds(t, leasesim.Part{
		Name: "simulated repeats in memory", Few: 45, Full: 4500, Shows: more,
		Must: []string{
			"operations", "deaths", "freezes", "effects", more, "transactions", "cancelled transactions", "substitutes", "busy", "replays", "mismatches",
			"no results", "in doubt", "resolved with effect", "resolved without effect", killed, failed, frozen, tooLong, notStored,
		},
		Limits: []string{"The transaction of effect and result is simulated in memstore, with the condition of dynamostore.CompleteItem. DynamoDB Local tests the condition."},
	}, func(world *leasesim.World) {
		w := &repeatWorld{World: world, mode: []string{runAgain, refuse, transaction}[world.Seed%3], store: memstore.New(nil)}
		w.Driver = w.store.Driver()
		w.calls, w.grants, w.last = map[string]*repeatCall{}, map[grantID]*repeatGrant{}, map[string]*repeatGrant{}
		w.Say("the world", "%s", w.mode)
		w.run()
	})
}

const (
	runAgain    = "run again"
	refuse      = "refuse"
	transaction = "transaction"

	more = "effects more than one" // with runAgain

	// Why the result of a run that had an effect is not stored.
	killed    = "effects of killed runs"
	failed    = "effects of failed runs"
	frozen    = "effects of runs frozen past their lease"
	tooLong   = "effects of runs that went on past their lease"
	notStored = "effects of runs that could not store their result"

	repeatFor  = 12 * time.Second
	resultMost = 200 // bytes of a result
)

// repeatResult is what the work returns.
type repeatResult struct{ Key, Input, Run, Pad string }

// byHand is what an operator says.
var byHand = repeatResult{Run: "resolved"}

// repeatWorld is one seed in one mode. It is the driver of the store as the network reaches it,
// and notes what the store was told.
type repeatWorld struct {
	*leasesim.World
	driver.Driver // of store
	store         *lockstore.Store
	mode          string

	mu     sync.Mutex             // guards all that follows, also in the types below
	calls  map[string]*repeatCall // by the id of the holder
	grants map[grantID]*repeatGrant
	last   map[string]*repeatGrant // of each key
}

// period is the time of a key until its result has ended.
type period struct {
	effects, again int // again: how often an operator let the work run again
	completed      *repeatGrant
	until          time.Time
}

type grantID struct {
	key   string
	fence lockstore.Fence
}

// repeatGrant is a lease.
type repeatGrant struct {
	*period
	call     *repeatCall
	owner    lockstore.Owner
	result   *repeatResult // of the work
	returned bool          // the work has returned it
	effect   bool
	cause    string        // why nothing is stored
	stored   *repeatResult // what repeats get; nil for a substitute
	input    string        // of which it is the result; "" is not compared
}

// repeatCall is one call of Do.
type repeatCall struct {
	key, id, input string
	obeys          bool      // its work ends with its context
	frozen         bool      // it stood still, or its clock jumped
	trouble        bool      // so, or the network had a fault
	end            time.Time // its deadline, or the end of its work if that is later
	grant          *repeatGrant
	workErr        error
	refused        []ended // how it has to end, each time that the store has refused it for good
}

// ended is how a call ends whose work did not run.
type ended struct {
	said, first string // the id of the first run
	result      repeatResult
}

func (w *repeatWorld) run() {
	var all sync.WaitGroup
	for id := range uint64(5) {
		all.Go(func() {
			for n := uint64(0); w.faulty(); n++ {
				for p := w.process(id<<32|n, false); !p.Dead() && w.faulty(); leasesim.Pass(p.UpTo(leasesim.TTL)) {
					if key := []string{"a", "b"}[int(2*p.Float())]; id > 0 {
						p.try(key)
					} else {
						w.resolve(key, p.Float())
					}
				}
			}
		})
	}
	all.Wait()
	// The last late requests arrive. The dead delay others by a lease and by their turns.
	leasesim.Pass(3*leasesim.TTL + driver.MaxTurnsBefore*lockstore.TurnTime)
	w.Settle()
	for _, key := range []string{"a", "b"} { // without faults, before and after an operator
		for round := range uint64(2) {
			for id := range uint64(3) {
				all.Go(func() { w.process(1<<62|round<<32|id, true).try(key) })
			}
			all.Wait()
			w.resolve(key, float64(w.Seed%2))
		}
		if w.last[key].completed == nil {
			w.Fail("key %s has no result when the faults are over", key)
		}
	}
	causes := map[*period]int{}
	for _, g := range w.grants {
		if g.effect && g.completed != g {
			causes[g.period]++
			if g.cause == "" {
				w.Fail("the result of call %s is not stored, and has no cause", g.call.id)
			}
			w.Count(g.cause)
		}
	}
	for p, n := range causes {
		if p.effects > 1+n {
			w.Fail("%d effects, and %d causes for more than one", p.effects, n)
		} else if w.mode == runAgain {
			w.Counts[more] += int64(p.effects - 1)
		}
	}
}

// resolve is what an operator does with a key in doubt.
func (w *repeatWorld) resolve(key string, f float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx := context.Background()
	status, err := w.store.Inspect(ctx, key)
	if require.NoError(w.T, err); status.State != lockstore.InDoubt {
		return
	}
	g := w.last[key]
	if f < 0.5 {
		w.Count("resolved without effect")
		g.again++
		err = w.store.ResolveNoEffect(ctx, key, status.Fence)
	} else {
		w.Count("resolved with effect")
		g.completed, g.until, g.stored, g.input = g, time.Now().Add(repeatFor), &byHand, ""
		err = idempotency.ResolveEffect(ctx, w.store, key, status.Fence, []byte(`{"Run":"resolved"}`), idempotency.Options{ResultTime: repeatFor})
	}
	require.NoError(w.T, err)
}

// Do is the store, as requests reach it.
func (w *repeatWorld) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.grants[grantID{key, r.Fence}]
	switch r.Kind {
	case driver.Acquire:
		a, err := w.Driver.Do(ctx, key, r)
		w.acquired(key, r, a)
		return a, err
	case driver.Complete:
		return w.complete(ctx, key, r, g)
	case driver.Release:
		if g != nil && g.returned {
			w.Fail("call %s releases its lease after its work has returned a result", g.call.id)
		}
	}
	return w.Driver.Do(ctx, key, r)
}

func (w *repeatWorld) acquired(key string, r driver.Request, a driver.Answer) {
	c, last, at := w.calls[lockstore.DecodeHolderInfo(r.Holder).ID], w.last[key], grantID{key, a.Fence}
	done, inDoubt := a.Status.State.Done(), a.Status.State == driver.InDoubt
	switch {
	case a.Outcome == driver.Granted && w.grants[at] == nil:
		g := &repeatGrant{period: &period{}, call: c, owner: r.Owner, input: c.input}
		if last != nil && last.completed == nil {
			g.period = last.period
		} else if last != nil && time.Now().Before(last.until) {
			w.Fail("call %s has the key before the end of what is stored", c.id)
		}
		w.grants[at], w.last[key] = g, g
	case inDoubt:
		c.refused = append(c.refused, ended{said: "in doubt", first: last.call.id})
	case done && c.input != "" && last.input != "" && c.input != last.input:
		c.refused = append(c.refused, ended{said: "mismatches", first: last.call.id})
	case done && last.stored == nil:
		c.refused = append(c.refused, ended{said: "no results", first: last.call.id})
	case done:
		c.refused = append(c.refused, ended{"replays", last.call.id, *last.stored})
	}
}

// inTransaction is the owner in a Complete that is a transaction of effect and result. As
// dynamostore.CompleteItem it is refused when the key is completed already.
const inTransaction lockstore.Owner = "in-a-transaction"

func (w *repeatWorld) complete(ctx context.Context, key string, r driver.Request, g *repeatGrant) (a driver.Answer, err error) {
	withEffect, before := r.Owner == inTransaction, g.completed == g
	r.Owner = g.owner
	if withEffect && before {
		a.Outcome = driver.Lost
	} else {
		a, err = w.Driver.Do(ctx, key, r)
	}
	done := a.Outcome == driver.Done
	if done && !before {
		if g.completed, g.until = g, time.Now().Add(repeatFor); bytes.Contains(r.Result, []byte(g.call.id)) {
			g.stored = g.result
		}
		if !g.returned && !withEffect || g.stored == nil && g.result.Pad == "" {
			w.Fail("call %s stores %q; its work has returned %+v: %v", g.call.id, []byte(r.Result), g.result, g.returned)
		}
	}
	switch {
	case withEffect && done:
		w.Count("transactions")
		w.affect(g)
	case withEffect:
		w.Count("cancelled transactions")
	}
	return a, err
}

// affect is the effect of the work under a grant.
func (w *repeatWorld) affect(g *repeatGrant) {
	w.Count("effects")
	g.effect = true
	if g.effects++; g.effects > 1+g.again && w.mode != runAgain {
		w.Fail("key %s has effect number %d; want at most %d", g.call.key, g.effects, 1+g.again)
	}
}

// faulty says that the processes still have faults.
func (w *repeatWorld) faulty() bool { return time.Since(w.Start) < leasesim.Time }

// repeatProcess is one execution environment: a guard, and its way to the store.
type repeatProcess struct {
	*leasesim.Process
	w      *repeatWorld
	store  *lockstore.Store
	once   *idempotency.Once
	report guard.Report
	call   *repeatCall
	tried  int
}

func (w *repeatWorld) process(stream uint64, calm bool) *repeatProcess {
	p := &repeatProcess{w: w, Process: w.NewProcess(fmt.Sprintf("%x", stream), stream, 0.015), call: &repeatCall{}}
	p.Calm, p.Struck = calm, func(what string) {
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		p.call.trouble = true
		p.call.frozen = p.call.frozen || what == "freezes" || what == "clock steps"
	}
	p.store = lockstore.New("repeats", leasesim.Over(p.Process, w))
	opt := guard.Options{
		TTL: leasesim.TTL, MaxHold: 4 * leasesim.TTL, Wait: 2 * leasesim.TTL,
		HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{ID: p.call.id} },
		Observe:    func(_ context.Context, r guard.Report) { p.report = r },
	}
	if !calm && p.Float() < 0.5 {
		opt.Wait = 0
	}
	inDoubt := map[string]idempotency.Doubt{refuse: idempotency.AtMostOnce}[w.mode]
	var err error
	p.once, err = idempotency.New(p.NewGuard(p.store, opt), idempotency.Options{ResultTime: repeatFor, InDoubt: inDoubt, MaxResultBytes: resultMost})
	require.NoError(w.T, err)
	return p
}

// chance is false in a process without faults.
func (p *repeatProcess) chance(f float64) bool { return p.Float() < f && !p.Calm }

var (
	errGone = errors.New("the process is dead")
	errWork = errors.New("the work failed")
)

// try is one call of Do.
func (p *repeatProcess) try(key string) {
	d := time.Second + p.UpTo(5*leasesim.TTL)
	if p.Calm {
		d = 5 * leasesim.TTL
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if p.chance(0.1) { // the caller goes away
		defer time.AfterFunc(p.UpTo(2*leasesim.TTL), cancel).Stop()
	}
	p.tried++
	c := &repeatCall{key: key, id: fmt.Sprintf("%s.%d", p.Name, p.tried), obeys: !p.chance(0.2), end: time.Now().Add(d)}
	call := idempotency.Call{Key: key}
	if f := p.Float(); f < 0.9 {
		c.input = []string{"one", "one", "one", "other"}[int(f*4/0.9)]
		call.Fingerprint = c.input
	}
	p.w.mu.Lock()
	p.call, p.w.calls[c.id] = c, c
	p.w.mu.Unlock()
	p.Do(func() {
		if out, replay, err := p.do(ctx, call); p.Yield() {
			p.judge(c, out, replay, err)
		}
	})
	if p.Dead() {
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		if c.grant != nil {
			c.grant.cause = killed
		}
	}
}

// judge compares what a call returned with what the store was told.
func (p *repeatProcess) judge(c *repeatCall, out repeatResult, replay *idempotency.Replay, err error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.Say(p.Name, "call %s ends: %+v, %v, %v", c.id, out, replay, err)
	switch late := time.Since(c.end); {
	case late > 2500*time.Millisecond && !c.frozen:
		p.Fail("call %s ended %v after its deadline and its work: %v", c.id, late, err)
	case c.grant != nil:
		p.judgeRun(c, out, replay, err)
	default:
		p.judgeRepeat(c, out, replay, err)
	}
}

func (p *repeatProcess) do(ctx context.Context, call idempotency.Call) (out repeatResult, replay *idempotency.Replay, err error) {
	defer func() {
		if v := recover(); v == errWork {
			err = errWork
		} else if v != nil {
			panic(v)
		}
	}()
	return idempotency.Do(ctx, p.once, call, p.work)
}

func (p *repeatProcess) work(ctx context.Context, lock guard.Lock) (a repeatResult, err error) {
	p.w.mu.Lock()
	c, g := p.call, p.w.grants[grantID{lock.Key, lock.Fence}]
	if g == nil || g.call != c || c.grant != nil {
		p.Fail("call %s works without a lease of its own, or twice: %+v", c.id, lock)
	}
	c.grant, c.workErr = g, errWork
	p.w.mu.Unlock()
	a = repeatResult{Key: c.key, Input: c.input, Run: c.id}
	err = p.stays(ctx)
	if err == nil && p.chance(0.1) {
		err = idempotency.NoEffect(errWork)
	}
	if p.chance(0.15) {
		a.Pad = strings.Repeat("x", resultMost) // too large
	}
	if err == nil {
		err = p.effect(ctx, g, a)
	}
	if err == nil {
		err = p.stays(ctx)
	}
	fails, panics := p.chance(0.15), p.chance(0.3)
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if now := time.Now(); now.After(c.end) {
		c.end = now
	}
	if err == nil && fails {
		if err = errWork; panics {
			panic(err)
		}
	}
	c.workErr, g.returned = err, err == nil
	return a, err
}

// stays is a time of the work. It returns why the work ends.
func (p *repeatProcess) stays(ctx context.Context) error {
	d := p.UpTo(1500 * time.Millisecond)
	if p.chance(0.1) {
		d += p.UpTo(2 * leasesim.TTL)
	}
	leasesim.Pass(d)
	if p.call.obeys && ctx.Err() != nil {
		return ctx.Err()
	}
	if !p.Yield() { // after the question
		return errGone
	}
	return nil
}

func (p *repeatProcess) effect(ctx context.Context, g *repeatGrant, a repeatResult) error {
	p.w.mu.Lock()
	g.result = &a
	if p.w.mode != transaction {
		defer p.w.mu.Unlock()
		p.w.affect(g)
		return nil
	}
	p.w.mu.Unlock()
	part, err := idempotency.Prepare(ctx, a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return p.store.Complete(ctx, lockstore.Lease{Key: part.Lock.Key, Owner: inTransaction, Fence: part.Lock.Fence}, part.Data, part.Time)
}

// judgeRun compares what a call returned whose work ran with what the store was told.
func (p *repeatProcess) judgeRun(c *repeatCall, out repeatResult, replay *idempotency.Replay, err error) {
	g, completeErr := c.grant, p.report.CompleteErr
	own, _ := doonce.Unmarked(c.workErr)
	if completeErr != nil && strings.HasPrefix(completeErr.Error(), "the result is not stored: ") {
		p.Count("substitutes")
		completeErr = nil
	}
	_, lost := errors.AsType[*guard.LockLost](err)
	switch {
	case c.workErr != nil && (lost || errors.Is(err, own)):
		g.cause = failed
	case lost && c.frozen:
		g.cause = frozen
	case lost && !c.obeys:
		g.cause = tooLong
	case err != nil || c.workErr != nil || replay != nil || out != *g.result:
		p.Fail("call %s: its work returned %+v, %v; the call %+v, %v, %T: %v", c.id, g.result, c.workErr, out, replay, err, err)
	case completeErr != nil:
		g.cause = notStored
	case g.completed != g:
		p.Fail("call %s returned its result as stored, and the store was not told", c.id)
	}
	if !c.trouble && c.obeys && (g.cause != "" && g.cause != failed || len(c.refused) > 0) {
		p.Fail("call %s met no fault, and was refused, or its result is not stored: %v; %+v", c.id, err, p.report)
	}
	if err == nil && p.w.mode == transaction && (!g.effect || g.effects != 1) {
		p.Fail("call %s returned a result, and there are %d effects", c.id, g.effects)
	}
}

// judgeRepeat does it for a call whose work did not run.
func (p *repeatProcess) judgeRepeat(c *repeatCall, out repeatResult, replay *idempotency.Replay, err error) {
	var got ended
	switch e := err.(type) {
	case nil:
		got = ended{"replays", replay.First.ID, out}
	case *idempotency.RepeatMismatch:
		got = ended{"mismatches", e.First.ID, out}
	case *idempotency.RepeatNoAnswer:
		got = ended{"no results", e.First.ID, out}
	case *idempotency.RepeatInDoubt:
		got = ended{"in doubt", e.First.ID, out}
	case *guard.LockBusy:
		got.said = "busy"
	case *guard.LockNoTime, *guard.LockStoreUnavailable, *guard.LockLost:
		got.said = "no lease"
	default:
		p.Fail("call %s: %T: %v", c.id, err, err)
	}
	p.Count(got.said)
	switch {
	case got.first != "" && !slices.Contains(c.refused, got):
		p.Fail("call %s with input %q got %+v, %v; the store has said %+v", c.id, c.input, got, err, c.refused)
	case got.first == "" && (p.Calm || got.said == "busy" && !c.trouble && len(c.refused) > 0):
		p.Fail("call %s got no result, and the store has said %+v: %v", c.id, c.refused, err)
	case got.said == "replays" && p.w.mode == transaction && p.w.calls[got.first].grant.effects != 1:
		p.Fail("call %s got a result of %d effects", c.id, p.w.calls[got.first].grant.effects)
	}
}
