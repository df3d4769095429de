package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
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
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./guard -run TestRepeats replays one seed.
func TestRepeats(t *testing.T) {
	const full = 2000
	first, seeds := verifyrecord.Seed(t, 15, full)
	began, total := time.Now(), map[string]int64{"seeds": int64(seeds)}
	for seed := first; seed < first+uint64(seeds); seed++ {
		for _, mode := range []string{runAgain, refuse, transaction} {
			w := &repeatWorld{seed: seed, mode: mode, counts: map[string]int64{}}
			synctest.Test(t, w.run) // ends this test when it fails
			for name, n := range w.counts {
				total[name] += n
			}
		}
	}
	t.Logf("%d seeds: %v", seeds, total)
	for _, name := range []string{
		"operations", "deaths", "freezes", "effects", more, "transactions", "cancelled transactions", "substitutes", "busy", "replays", "mismatches",
		"no results", "in doubt", "resolved with effect", "resolved without effect", killed, failed, frozen, tooLong, notStored,
	} {
		if seeds >= full { // a few seeds may miss one of these
			require.Positive(t, total[name], "a run without %s shows nothing", name)
		}
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: "simulated repeats in memory", Seed: first, Counts: total, Took: time.Since(began),
		Controls: []verifyrecord.Control{{
			What:  "the same faults when work without a result runs again",
			Shown: total[more] > 0, Saw: fmt.Sprintf("%d effects more than one for an event", total[more]),
		}},
		Limits: []string{"The transaction of effect and result is simulated in the store in memory, under the condition of dynamostore.CompleteItem. Its expression is tested on DynamoDB Local."},
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

	repeatTTL  = 6 * time.Second
	repeatFor  = 12 * time.Second
	repeatTime = 2 * time.Minute
	resultMost = 200 // bytes of a result
	storeMost  = 150 // bytes that the store takes
)

// repeatResult is what the work returns.
type repeatResult struct{ Key, Input, Run, Pad string }

// byHand is what an operator says.
var byHand = repeatResult{Run: "resolved"}

// repeatWorld is one seed in one mode. It is the driver of the store as the network reaches it,
// and notes what the store was told.
type repeatWorld struct {
	driver.Driver // of store
	store         *lockstore.Store

	seed       uint64
	mode       string
	t          *testing.T
	start, end time.Time // of the faults

	mu     sync.Mutex // guards all that follows, also in the types below
	counts map[string]int64
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
	frozen         bool      // it stood still
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

func (w *repeatWorld) fail(format string, args ...any) {
	w.t.Errorf("seed %d, %s, at %v: %s", w.seed, w.mode, time.Since(w.start), fmt.Sprintf(format, args...))
}

func (w *repeatWorld) run(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with VERIFY_SEED=%d VERIFY_SEEDS=1 go test ./guard -run TestRepeats", w.seed)
		}
	})
	w.t, w.start, w.end, w.store = t, time.Now(), time.Now().Add(repeatTime), memstore.New(nil)
	w.Driver = w.store.Driver()
	w.calls, w.grants, w.last = map[string]*repeatCall{}, map[grantID]*repeatGrant{}, map[string]*repeatGrant{}
	var all sync.WaitGroup
	for id := range uint64(5) {
		all.Go(func() {
			for n := uint64(0); time.Now().Before(w.end); n++ {
				for p := w.process(id<<32|n, false); !p.dead && time.Now().Before(w.end); leasesim.Pass(p.UpTo(repeatTTL)) {
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
	leasesim.Pass(3*repeatTTL + lockstore.MaxTurns*lockstore.Turn)
	for _, key := range []string{"a", "b"} { // without faults, before and after an operator
		for round := range uint64(2) {
			for id := range uint64(3) {
				all.Go(func() { w.process(1<<62|round<<32|id, true).try(key) })
			}
			all.Wait()
			w.resolve(key, float64(w.seed%2))
		}
		if w.last[key].completed == nil {
			w.fail("key %s has no result when the faults are over", key)
		}
	}
	causes := map[*period]int{}
	for _, g := range w.grants {
		if g.effect && g.completed != g {
			causes[g.period]++
			if w.counts[g.cause]++; g.cause == "" {
				w.fail("the result of call %s is not stored, and has no cause", g.call.id)
			}
		}
	}
	for p, n := range causes {
		if p.effects > 1+n {
			w.fail("%d effects, and %d causes for more than one", p.effects, n)
		} else if w.mode == runAgain {
			w.counts[more] += int64(p.effects - 1)
		}
	}
}

// resolve is what an operator does with a key in doubt.
func (w *repeatWorld) resolve(key string, f float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx := context.Background()
	status, err := w.store.Inspect(ctx, key)
	if require.NoError(w.t, err); status.State != lockstore.InDoubt {
		return
	}
	g := w.last[key]
	if f < 0.5 {
		w.counts["resolved without effect"]++
		g.again++
		err = w.store.ResolveNoEffect(ctx, key, status.Fence)
	} else {
		w.counts["resolved with effect"]++
		g.completed, g.until, g.stored, g.input = g, time.Now().Add(repeatFor), &byHand, ""
		err = idempotency.ResolveEffect(ctx, w.store, key, status.Fence, []byte(`{"Run":"resolved"}`), idempotency.Options{ResultTime: repeatFor})
	}
	require.NoError(w.t, err)
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
			w.fail("call %s releases its lease after its work has returned a result", g.call.id)
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
			w.fail("call %s has the key before the end of what is stored", c.id)
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
	switch {
	case len(r.Result) > storeMost:
		err = lockstore.Invalidf("the result is too large for this store")
	case withEffect && before:
		a.Outcome = driver.Lost
	default:
		a, err = w.Driver.Do(ctx, key, r)
	}
	done := a.Outcome == driver.Done
	if done && !before {
		if g.completed, g.until = g, time.Now().Add(repeatFor); bytes.Contains(r.Result, []byte(g.call.id)) {
			g.stored = g.result
		}
		if !g.returned && !withEffect || g.stored == nil && g.result.Pad == "" {
			w.fail("call %s stores %q; its work has returned %+v: %v", g.call.id, []byte(r.Result), g.result, g.returned)
		}
	}
	switch {
	case withEffect && done:
		w.counts["transactions"]++
		w.affect(g)
	case withEffect:
		w.counts["cancelled transactions"]++
	}
	return a, err
}

// affect is the effect of the work under a grant.
func (w *repeatWorld) affect(g *repeatGrant) {
	w.counts["effects"]++
	g.effect = true
	if g.effects++; g.effects > 1+g.again && w.mode != runAgain {
		w.fail("key %s has effect number %d; want at most %d", g.call.key, g.effects, 1+g.again)
	}
}

// repeatProcess is one execution environment: a guard, and its way to the store.
type repeatProcess struct {
	*repeatWorld
	name   string
	calm   bool // no faults
	way    *storetest.Faulty
	once   *idempotency.Once
	report guard.Report
	call   *repeatCall
	tried  int
	until  time.Time // the end of a freeze
	dead   bool

	*leasesim.Dice
}

func (w *repeatWorld) process(stream uint64, calm bool) *repeatProcess {
	p := &repeatProcess{repeatWorld: w, name: fmt.Sprintf("%x", stream), calm: calm, Dice: leasesim.NewDice(rand.New(rand.NewPCG(w.seed, stream)))}
	p.way = storetest.NewFaulty(lockstore.New("repeats", w), p.plan)
	opt := guard.Options{
		TTL: repeatTTL, MaxHold: 4 * repeatTTL, Wait: 2 * repeatTTL,
		HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{ID: p.call.id} },
		Observe:    func(_ context.Context, r guard.Report) { p.report = r },
	}
	if !calm && p.Float() < 0.5 {
		opt.Wait = 0
	}
	g, err := guard.New(p.way.Store, opt)
	require.NoError(w.t, err)
	g.SetRandom(p.UpTo)
	inDoubt := map[string]idempotency.Doubt{refuse: idempotency.AtMostOnce}[w.mode]
	p.once, err = idempotency.New(g, idempotency.Options{ResultTime: repeatFor, InDoubt: inDoubt, MaxResultBytes: resultMost})
	require.NoError(w.t, err)
	return p
}

// chance is false in a process without faults.
func (p *repeatProcess) chance(f float64) bool { return p.Float() < f && !p.calm }

// hazard now and then freezes or kills the process. It returns how long it stands still.
func (p *repeatProcess) hazard(chance float64) (still time.Duration, dead bool) {
	strikes, kills, d := p.chance(chance), p.chance(0.25), p.UpTo(3*repeatTTL)
	// Two goroutines that go on at the same moment would make a seed run in two ways.
	apart := p.UpTo(time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch still = max(0, time.Until(p.until)+apart); {
	case p.dead || still > 0 || !strikes:
		return still, p.dead
	case kills:
		p.counts["deaths"]++
		p.dead = true
		return 0, true
	}
	p.counts["freezes"]++
	p.call.frozen, p.call.trouble = true, true
	p.until = time.Now().Add(d)
	return d, false
}

var (
	errCut  = errors.New("connection reset by peer")
	errGone = fmt.Errorf("%w: the process is dead", lockstore.ErrUnavailable)
	errWork = errors.New("the work failed")
)

// plan is the network. Nothing of a dead process arrives but its late duplicates.
func (p *repeatProcess) plan(call storetest.Call) storetest.Fault {
	still, dead := p.hazard(0.015)
	if dead {
		return storetest.Fault{Drop: errGone}
	}
	f := storetest.Fault{Before: still + p.UpTo(40*time.Millisecond), After: p.UpTo(40 * time.Millisecond)}
	late, fate, faulty := time.Millisecond+p.UpTo(2*repeatTTL), p.Float(), p.chance(0.2)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts["operations"]++
	p.call.trouble = p.call.trouble || faulty
	switch {
	case !faulty:
		return f
	case fate < 0.15: // certainly not applied
		f.Drop = fmt.Errorf("%w: throttled", lockstore.ErrUnavailable)
	case fate < 0.35: // the reply is lost
		f.Cut = errCut
	case fate < 0.5:
		f.Drop = errCut
	case fate < 0.65: // it arrives when nobody waits any more
		f.Drop, f.Late = errCut, true
	case fate < 0.8:
		f.After = late
	default:
		f.Late = true
	}
	if f.Late = f.Late && call.Kind != driver.AwaitTurn; f.Late {
		time.AfterFunc(late, func() { p.way.Deliver(context.Background()) })
	}
	return f
}

// try is one call of Do.
func (p *repeatProcess) try(key string) {
	d := time.Second + p.UpTo(5*repeatTTL)
	if p.calm {
		d = 5 * repeatTTL
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if p.chance(0.1) { // the caller goes away
		defer time.AfterFunc(p.UpTo(2*repeatTTL), cancel).Stop()
	}
	p.tried++
	c := &repeatCall{key: key, id: fmt.Sprintf("%s.%d", p.name, p.tried), obeys: !p.chance(0.2), end: time.Now().Add(d)}
	call := idempotency.Call{Key: key}
	if f := p.Float(); f < 0.9 {
		c.input = []string{"one", "one", "one", "other"}[int(f*4/0.9)]
		call.Fingerprint = c.input
	}
	p.mu.Lock()
	p.call, p.calls[c.id] = c, c
	p.mu.Unlock()
	out, replay, err := p.do(ctx, call)
	still, dead := p.hazard(0)
	leasesim.Pass(still)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch late := time.Since(c.end); {
	case dead && c.grant != nil:
		c.grant.cause = killed
	case dead:
	case late > 2500*time.Millisecond && !c.frozen:
		p.fail("call %s ended %v after its deadline and its work: %v", c.id, late, err)
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
	p.mu.Lock()
	c, g := p.call, p.grants[grantID{lock.Key, lock.Fence}]
	if g == nil || g.call != c || c.grant != nil {
		p.fail("call %s works without a lease of its own, or twice: %+v", c.id, lock)
	}
	c.grant, c.workErr = g, errWork
	p.mu.Unlock()
	a = repeatResult{Key: c.key, Input: c.input, Run: c.id}
	err = p.stays(ctx)
	if err == nil && p.chance(0.1) {
		err = idempotency.NoEffect(errWork)
	}
	if p.chance(0.15) { // too large for the store, or for both
		a.Pad = strings.Repeat("x", []int{storeMost - 30, resultMost}[int(2*p.Float())])
	}
	if err == nil {
		err = p.effect(ctx, g, a)
	}
	if err == nil {
		err = p.stays(ctx)
	}
	fails, panics := p.chance(0.15), p.chance(0.3)
	p.mu.Lock()
	defer p.mu.Unlock()
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
		d += p.UpTo(2 * repeatTTL)
	}
	leasesim.Pass(d)
	if p.call.obeys && ctx.Err() != nil {
		return ctx.Err()
	}
	still, dead := p.hazard(0.05) // after the question
	leasesim.Pass(still)
	if dead {
		return errGone
	}
	return nil
}

func (p *repeatProcess) effect(ctx context.Context, g *repeatGrant, a repeatResult) error {
	p.mu.Lock()
	g.result = &a
	if p.mode != transaction {
		defer p.mu.Unlock()
		p.affect(g)
		return nil
	}
	p.mu.Unlock()
	part, err := idempotency.Prepare(ctx, a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return p.way.Complete(ctx, lockstore.Lease{Key: part.Lock.Key, Owner: inTransaction, Fence: part.Lock.Fence}, part.Data, part.Time)
}

// judgeRun compares what a call returned whose work ran with what the store was told.
func (p *repeatProcess) judgeRun(c *repeatCall, out repeatResult, replay *idempotency.Replay, err error) {
	g, completeErr := c.grant, p.report.CompleteErr
	if _, substitute := errors.AsType[*idempotency.ResultError](completeErr); substitute || errors.Is(completeErr, lockstore.ErrInvalid) {
		p.counts["substitutes"]++
		completeErr = nil
	}
	_, lost := errors.AsType[*guard.LockLost](err)
	switch {
	case c.workErr != nil && (lost || errors.Is(err, idempotency.Unmarked(c.workErr))):
		g.cause = failed
	case lost && c.frozen:
		g.cause = frozen
	case lost && !c.obeys:
		g.cause = tooLong
	case err != nil || c.workErr != nil || replay != nil || out != *g.result:
		p.fail("call %s: its work returned %+v, %v; the call %+v, %v, %T: %v", c.id, g.result, c.workErr, out, replay, err, err)
	case completeErr != nil:
		g.cause = notStored
	case g.completed != g:
		p.fail("call %s returned its result as stored, and the store was not told", c.id)
	}
	if !c.trouble && c.obeys && (g.cause != "" && g.cause != failed || len(c.refused) > 0) {
		p.fail("call %s met no fault, and was refused, or its result is not stored: %v; %+v", c.id, err, p.report)
	}
	if err == nil && p.mode == transaction && (!g.effect || g.effects != 1) {
		p.fail("call %s returned a result, and there are %d effects", c.id, g.effects)
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
	case *guard.LockDeadline, *guard.LockStoreUnavailable, *guard.LockLost:
		got.said = "no lease"
	default:
		p.fail("call %s: %T: %v", c.id, err, err)
	}
	p.counts[got.said]++
	switch {
	case got.first != "" && !slices.Contains(c.refused, got):
		p.fail("call %s with input %q got %+v, %v; the store has said %+v", c.id, c.input, got, err, c.refused)
	case got.first == "" && (p.calm || got.said == "busy" && !c.trouble && len(c.refused) > 0):
		p.fail("call %s got no result, and the store has said %+v: %v", c.id, c.refused, err)
	case got.said == "replays" && p.mode == transaction && p.calls[got.first].grant.effects != 1:
		p.fail("call %s got a result of %d effects", c.id, p.calls[got.first].grant.effects)
	}
}
