package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/aws/aws-sdk-go-v2/service/sfn"
	"github.com/aws/aws-sdk-go-v2/service/sfn/types"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// TestExecutions runs executions of the machine's definition in virtual time, several on one key, with the real
// handler and guard, beside runs that wait for the same key in their functions. Wake-ups are lost, late, doubled, refused, or come for nothing; functions die between any two
// requests, also between a hand-over and its wake-up; executions are stopped. No two work at once, each ends
// well, those whose wake-up arrived are served in the order of their places, and a hand-over that nothing has
// disturbed is used within its turn. The same holds for runs that wait.
func TestExecutions(t *testing.T) {
	plants := map[*leasesim.World]func(*world){}
	plant := func(f func(*world)) func(*leasesim.World) { return func(w *leasesim.World) { plants[w] = f } }
	leasesim.Seeds(t, leasesim.Part{
		Name: "executions of a state machine that wait without a function", Few: 40, Full: 4000,
		Controls: map[string]func(*leasesim.World){
			"a wake-up is trusted, and the lock not asked for": plant(func(w *world) { w.trusts = true }),
			"a state that waits has no heartbeat": plant(func(w *world) {
				w.machine.States[waitState].HeartbeatSeconds, w.machine.States[waitState].TimeoutSeconds = 0, 0
			}),
			"who releases wakes before the write": plant(func(w *world) { w.wakesFirst = true }),
		},
	}, func(seed *leasesim.World) {
		ctx, cancel := context.WithCancel(context.Background())
		w := &world{
			World: seed, ctx: ctx, machine: readMachine(seed.T), store: memstore.New(nil),
			owners: map[lockstore.Owner]*simulated{}, waiting: map[string]chan struct{}{},
		}
		if plant := plants[seed]; plant != nil {
			plant(w)
		}
		w.run()
		cancel()
		w.late.Wait()
	})
}

func (w *world) run() {
	dice := leasesim.NewDice(w.Seed, 0)
	w.troubles = []float64{0, 0.01, 0.04}[w.Seed%3]
	if w.trusts { // without wake-ups that come late or for nothing it does no harm
		w.troubles = 0.1
	}
	var lives []func()
	for i := range 2 + int(7*dice.Float()) {
		lives = append(lives, w.execution(fmt.Sprint("e", i), uint64(1+i)).live)
	}
	for i := range int(6 * dice.Float()) {
		lives = append(lives, w.simulated(fmt.Sprint("r", i), uint64(1001+i)).visit)
	}
	var all sync.WaitGroup
	for _, live := range lives {
		all.Go(live)
	}
	all.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if status := w.inspect(); status.Waiting > 0 && !w.leaves {
		w.Fail("%d places are left", status.Waiting)
	}
}

// world is what the executions share: a store, and Step Functions.
type world struct {
	*leasesim.World
	ctx        context.Context // ends with the simulation
	machine    machine
	store      *lockstore.Store
	troubles   float64 // how often each kind of trouble strikes
	wakesFirst bool
	trusts     bool // a wake-up is taken for the lock
	late       sync.WaitGroup

	mu      sync.Mutex
	owners  map[lockstore.Owner]*simulated
	waiting map[string]chan struct{} // states that wait, by token
	queue   []lockstore.Owner        // who has a place
	places  int                      // that were given
	served  int                      // the last of them whose wake-up has arrived
	offer   *offer
	fence   lockstore.Fence // of the last grant
	working *simulated
	leaves  bool // somebody could not give its place up
}

// offer is a hand-over that its owner has not used yet.
type offer struct {
	to        *simulated
	at        time.Time
	turn      time.Duration
	by        *invocation
	disturbed bool
}

func (w *world) inspect() driver.Status {
	a, err := w.store.Driver().Do(context.Background(), key, driver.Request{Kind: driver.Inspect})
	require.NoError(w.T, err)
	return a.Status
}

// disturb says that something has happened to an execution that may cost it its turn.
func (w *world) disturb(e *simulated) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.offer != nil && w.offer.to == e {
		w.offer.disturbed = true
	}
}

// simulated is one execution of the machine, or one run that waits, with random numbers of its own.
type simulated struct {
	caller
	w    *world
	ctx  context.Context // ends when the execution is stopped, or its time is over
	stop context.CancelFunc
	*leasesim.Dice
	failures atomic.Int32
	tokens   int
	fence    lockstore.Fence // of its lock
	failed   string          // why it can do nothing more

	// The world's lock guards these.
	token  string // of the state that waits
	place  int    // the number of its place; 0 is none
	status string // "" is at work
}

func (w *world) execution(name string, stream uint64) *simulated {
	e := w.simulated(name, stream)
	w.owners[request{execution: execution(e.arn()), key: key}.owner()] = e
	return e
}

func (w *world) simulated(name string, stream uint64) *simulated {
	return &simulated{caller: caller{name: name}, w: w, Dice: leasesim.NewDice(w.Seed, stream)}
}

// strikes says whether one kind of trouble strikes now.
func (e *simulated) strikes(what string) bool {
	if e.Float() >= e.w.troubles {
		return false
	}
	e.w.Count(what)
	return true
}

// fails is strikes for what the machine tries again, at most four times: it has no more retries for one state.
func (e *simulated) fails(what string) bool {
	if e.failures.Load() >= 4 || !e.strikes(what) {
		return false
	}
	e.failures.Add(1)
	return true
}

// pass is false if the execution ends meanwhile.
func (e *simulated) pass(d time.Duration) bool {
	select {
	case <-time.After(d):
		return e.ctx.Err() == nil
	case <-e.ctx.Done():
		return false
	}
}

// live runs the execution from its start until it has ended, and EventBridge has said so.
func (e *simulated) live() {
	w := e.w
	sleep(w.ctx, e.UpTo(time.Minute))
	e.ctx, e.stop = context.WithTimeout(w.ctx, time.Duration(w.machine.TimeoutSeconds)*time.Second)
	defer e.stop()
	if w.troubles > 0 && e.Float() < 0.1 {
		defer time.AfterFunc(e.UpTo(5*time.Minute), e.stop).Stop()
	}
	status := e.run()
	e.ended("executions ", status)
	if status == "TIMED_OUT" || status == "FAILED" {
		w.mu.Lock()
		w.Fail("%s is %s: %v", e.name, status, e.failed)
		w.mu.Unlock()
	}
	if status == "SUCCEEDED" {
		return
	}
	for range 3 { // Lambda tries an event of EventBridge three times
		sleep(w.ctx, e.UpTo(3*time.Second))
		if _, failed := e.invoke(w.ctx, event(w.T, e.arn(), status, 0, map[string]any{"key": key}), time.Minute); failed == "" {
			return
		}
		sleep(w.ctx, time.Minute)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Count("events that were lost")
	w.leaves = true
}

// ended says that the execution, or the run, does nothing more.
func (e *simulated) ended(what, status string) {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	e.status = status
	w.Count(what + status)
	if w.working == e {
		w.working = nil
	}
	if w.offer != nil && w.offer.to == e {
		w.offer.disturbed = true
	}
}

// visit is a run that waits for the key while its function runs.
func (e *simulated) visit() {
	w := e.w
	sleep(w.ctx, e.UpTo(4*time.Minute))
	e.ctx, e.stop = context.WithCancel(w.ctx)
	defer e.stop()
	step := []time.Duration{20 * time.Millisecond, 3 * time.Second}[int(2*e.Float())] // a run of less than 50 ms asks for no longer lease
	_, failed := e.inFunction(e.ctx, time.Minute, func(ctx context.Context, g *guard.Guard, i *invocation) (Answer, error) {
		return Answer{}, g.Do(ctx, key, func(ctx context.Context, lock guard.Lock) error {
			for range 3 {
				if !sleep(ctx, e.UpTo(step)) || i.died.Err() != nil {
					break
				}
				e.works(lock.Fence)
			}
			e.rests()
			return nil
		})
	})
	if failed == "" {
		failed = "OK"
	}
	e.ended("runs ", failed)
	if failed != "OK" && failed != "LockBusy" {
		w.mu.Lock()
		w.leaves = true
		w.mu.Unlock()
	}
}

// run asks for the lock, works, renews and releases as the machine's definition says, with its retries and times. What
// else the machine does TestPayout shows in an interpreter. It returns the status.
func (e *simulated) run() string {
	e.locks()
	e.write()
	e.pass(time.Duration(e.w.machine.States["Pay"].Seconds) * time.Second)
	e.task(renewState, `, "ttl": 180, "fence": %d`, e.fence)
	e.write()
	e.write()
	e.rests()
	e.task(releaseState, `, "fence": %d`, e.fence)
	switch {
	case e.ctx.Err() == context.DeadlineExceeded:
		return "TIMED_OUT"
	case e.ctx.Err() != nil:
		return "ABORTED"
	case e.failed != "":
		return "FAILED"
	}
	return "SUCCEEDED"
}

// locks asks for the lock, and waits while another has it.
func (e *simulated) locks() {
	for woken := false; ; woken = true {
		answer := e.task(acquireState, `, "ttl": 300, "woken": %v`, woken)
		fence, _ := answer["fence"].(float64)
		e.fence = lockstore.Fence(fence)
		if e.failed != "LockBusy" {
			return
		}
		e.failed = ""
		e.retried(waitState, e.wait)
		if e.w.trusts {
			e.fence = e.w.inspect().Fence
			return
		}
		if e.failed != "" || e.ctx.Err() != nil {
			return
		}
	}
}

func matches(names []string, failed string) bool {
	return slices.Contains(names, failed) || slices.Contains(names, "States.ALL")
}

// task invokes the function for a state.
func (e *simulated) task(name, more string, args ...any) (answer map[string]any) {
	in := e.input(strings.ToLower(name), fmt.Sprintf(more, args...))
	e.retried(name, func(s *state) (failed string) {
		answer, failed = e.invoke(e.ctx, in, time.Duration(s.TimeoutSeconds)*time.Second)
		return failed
	})
	return answer
}

// retried does what a state asks for, with its retries. An execution that has failed or was stopped does nothing.
func (e *simulated) retried(name string, try func(*state) (failed string)) {
	s := e.w.machine.States[name]
	tries := make([]int, len(s.Retry))
	for e.failed == "" && e.ctx.Err() == nil {
		failed := try(s)
		if failed == "" {
			return
		}
		i := slices.IndexFunc(s.Retry, func(re retrier) bool { return matches(re.ErrorEquals, failed) })
		if i < 0 || tries[i] == s.Retry[i].MaxAttempts {
			e.failed = failed
			return
		}
		e.pass(e.UpTo(s.Retry[i].pause(tries[i])))
		tries[i]++
	}
}

// wait ends when somebody sends the token, when the function fails, and without a heartbeat.
func (e *simulated) wait(s *state) (failed string) {
	w := e.w
	woken := make(chan struct{})
	w.mu.Lock()
	e.tokens++
	token := fmt.Sprintf("token-%d-of-%s", e.tokens, e.name)
	e.token = token
	w.waiting[token] = woken
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		e.token = ""
		delete(w.waiting, token)
	}()
	limits := [2]<-chan time.Time{}
	for i, seconds := range []int{s.HeartbeatSeconds, s.TimeoutSeconds} {
		if seconds > 0 {
			limits[i] = time.After(time.Duration(seconds) * time.Second)
		}
	}
	if _, failed := e.invoke(e.ctx, e.input(acquire, fmt.Sprintf(`, "ttl": 300, "taskToken": %q`, token)), time.Minute); failed != "" {
		return failed
	}
	select {
	case <-woken:
		return ""
	case <-limits[0]:
		w.Count("heartbeats that were missing")
		return []string{"States.HeartbeatTimeout", "States.Timeout"}[e.tokens%2]
	case <-limits[1]:
		return "States.Timeout"
	case <-e.ctx.Done():
		return ""
	}
}

// write is what the execution does under its lock.
func (e *simulated) write() {
	if e.failed == "" && e.pass(e.UpTo(50*time.Millisecond)) {
		e.works(e.fence)
	}
}

// works looks whether anybody else is at work.
func (e *simulated) works(fence lockstore.Fence) {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.working != nil && w.working != e {
		w.Fail("%s and %s are at work", e.name, w.working.name)
	}
	w.working = e
	if held := w.inspect(); held.State != driver.Held && held.State != driver.Reserved || held.Fence != fence {
		w.Fail("%s is at work with fence %v, and the key is %v with fence %d", e.name, fence, held.State, held.Fence)
	}
}

// rests ends the work.
func (e *simulated) rests() {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.w.working == e {
		e.w.working = nil
	}
}

// invocation is one run of the function, in an environment of its own.
type invocation struct {
	e    *simulated
	died context.Context
	die  context.CancelFunc
}

// invoke runs sfnlock. It dies with its environment, and not with the execution.
func (e *simulated) invoke(ctx context.Context, in json.RawMessage, limit time.Duration) (answer map[string]any, failed string) {
	return e.inFunction(ctx, limit, func(ctx context.Context, g *guard.Guard, i *invocation) (Answer, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return handler(g, sfnwake.New(i))(ctx, in)
	})
}

// inFunction runs a function in an environment of its own.
func (e *simulated) inFunction(ctx context.Context, limit time.Duration, do func(context.Context, *guard.Guard, *invocation) (Answer, error)) (answer map[string]any, failed string) {
	w, i := e.w, &invocation{e: e}
	i.died, i.die = context.WithCancel(context.Background())
	g, err := guard.New(w.store.WrapDriver(func(d driver.Driver) driver.Driver { return &wire{i, d} }), guard.Options{Wake: sfnwake.New(i), Wait: time.Minute})
	require.NoError(w.T, err)
	type reply struct {
		answer Answer
		err    error
	}
	replies := make(chan reply, 1)
	w.late.Go(func() {
		run, cancel := context.WithTimeout(lambdacontext.NewContext(w.ctx, &lambdacontext.LambdaContext{AwsRequestID: "r"}), time.Minute)
		defer cancel()
		if i.goesOn() {
			a, err := do(run, g, i)
			if i.goesOn() {
				replies <- reply{a, err}
			}
		}
	})
	over := time.After(limit)
	select {
	case r := <-replies:
		sleep(w.ctx, e.UpTo(20*time.Millisecond))
		if r.err != nil {
			return nil, reflect.TypeOf(r.err).Elem().Name()
		}
		text, err := json.Marshal(r.answer)
		require.NoError(w.T, err)
		require.NoError(w.T, json.Unmarshal(text, &answer))
		return answer, ""
	case <-i.died.Done():
		w.disturb(e)
		return nil, "Runtime.ExitError"
	case <-over:
		w.disturb(e)
		return nil, "States.Timeout"
	case <-ctx.Done():
		return nil, ""
	}
}

// goesOn is a point at which the function may die. It never returns true again then, and the function does nothing more.
func (i *invocation) goesOn() bool {
	w := i.e.w
	if i.died.Err() == nil && i.e.fails("functions that died") {
		i.die()
	}
	if i.died.Err() == nil {
		return true
	}
	w.mu.Lock()
	if w.offer != nil && w.offer.by == i {
		w.offer.disturbed = true
	}
	w.mu.Unlock()
	<-w.ctx.Done()
	return false
}

// SendTaskSuccess is that of Step Functions, on a bad way.
func (i *invocation) SendTaskSuccess(ctx context.Context, in *sfn.SendTaskSuccessInput, _ ...func(*sfn.Options)) (*sfn.SendTaskSuccessOutput, error) {
	e, w, token := i.e, i.e.w, *in.TaskToken
	if !i.goesOn() {
		return nil, w.ctx.Err()
	}
	spoiled := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, o := range w.owners {
			if o.token == token && w.offer != nil && w.offer.to == o {
				w.offer.disturbed = true
			}
		}
	}
	later := func() {
		d := e.UpTo(2 * time.Minute)
		w.late.Go(func() {
			if sleep(w.ctx, d) {
				_ = w.send(token)
			}
		})
	}
	if !sleep(ctx, e.UpTo(20*time.Millisecond)) {
		return nil, ctx.Err()
	}
	switch {
	case e.strikes("wake-ups lost"):
		spoiled()
		return &sfn.SendTaskSuccessOutput{}, nil
	case e.strikes("wake-ups late"):
		spoiled()
		later()
		return &sfn.SendTaskSuccessOutput{}, nil
	case e.fails("wake-ups denied"):
		spoiled()
		return nil, denied{}
	case e.strikes("wake-ups doubled"):
		later()
	case e.strikes("wake-ups for nothing"): // of somebody else, too
		w.mu.Lock()
		for other := range w.waiting {
			token := other
			w.late.Go(func() { _ = w.send(token) })
			break
		}
		w.mu.Unlock()
	}
	err := w.send(token)
	if !sleep(ctx, e.UpTo(20*time.Millisecond)) || !i.goesOn() {
		return nil, ctx.Err()
	}
	return &sfn.SendTaskSuccessOutput{}, err
}

// denied is what AWS says without the permission.
type denied struct{}

func (denied) Error() string {
	return "AccessDeniedException: not authorized to perform: states:SendTaskSuccess"
}
func (denied) ErrorCode() string             { return "AccessDeniedException" }
func (denied) ErrorMessage() string          { return "not authorized to perform: states:SendTaskSuccess" }
func (denied) ErrorFault() smithy.ErrorFault { return smithy.FaultClient }

// send ends the wait of a state, if it waits.
func (w *world) send(token string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	woken := w.waiting[token]
	if woken == nil {
		return &types.TaskTimedOut{}
	}
	delete(w.waiting, token)
	w.Count("wake-ups")
	close(woken)
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// wire is a function's way to the store. The function may die before and behind each request.
type wire struct {
	i *invocation
	driver.Driver
}

func (s *wire) Unwrap() driver.Driver { return s.Driver }

// around sends a request, between whose ways the function may die.
func (s *wire) around(ctx context.Context, send func()) (died error) {
	if !s.i.goesOn() || !sleep(ctx, s.i.e.UpTo(20*time.Millisecond)) {
		return ctx.Err()
	}
	send()
	if !s.i.goesOn() || !sleep(ctx, s.i.e.UpTo(20*time.Millisecond)) {
		return ctx.Err()
	}
	return nil
}

func (s *wire) PutAddress(ctx context.Context, key string, o driver.Owner, address driver.HiddenBytes, d time.Duration) (err error) {
	p, _ := driver.As[driver.Parker](s.Driver)
	died := s.around(ctx, func() { err = p.PutAddress(ctx, key, o, address, d) })
	return cmp.Or(died, err)
}

func (s *wire) TakeAddress(ctx context.Context, key string, o driver.Owner) (address driver.HiddenBytes, err error) {
	p, _ := driver.As[driver.Parker](s.Driver)
	died := s.around(ctx, func() { address, err = p.TakeAddress(ctx, key, o) })
	return address, cmp.Or(died, err)
}

func (s *wire) Do(ctx context.Context, key string, r driver.Request) (a driver.Answer, err error) {
	w := s.i.e.w
	died := s.around(ctx, func() {
		first := w.wakesFirst && (r.Kind == driver.Release || r.Kind == driver.Abandon)
		if first {
			s.wakeFirst(ctx, key)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		a, err = s.Driver.Do(ctx, key, r)
		w.applied(s.i, r, a)
		if first {
			a.Wake = nil
		}
	})
	return a, cmp.Or(died, err)
}

// Await tells a run that waits of its hand-over. From then on the run may be at work.
func (s *wire) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if !s.i.goesOn() {
		return driver.Answer{}, ctx.Err()
	}
	a, err := s.Driver.Await(ctx, key, r)
	if a.Outcome == driver.Granted {
		s.i.e.w.mu.Lock()
		defer s.i.e.w.mu.Unlock()
		s.i.e.w.applied(s.i, r, a)
	}
	return a, err
}

// wakeFirst is the mistake: the first in the queue is woken before the key is handed over to it.
func (s *wire) wakeFirst(ctx context.Context, key string) {
	w := s.i.e.w
	w.mu.Lock()
	queue := slices.Clone(w.queue)
	w.mu.Unlock()
	if len(queue) == 0 {
		return
	}
	p, _ := driver.As[driver.Parker](s.Driver)
	address, _ := p.TakeAddress(ctx, key, queue[0])
	if token, ok := lockstore.WakeAddress(address).TaskToken(); ok {
		_ = w.send(token)
	}
	sleep(ctx, s.i.e.UpTo(200*time.Millisecond))
}

// applied looks at what the store has done. It is called with the lock held.
func (w *world) applied(i *invocation, r driver.Request, a driver.Answer) {
	e := i.e
	w.owners[r.Owner] = e // a run that waits has made its owner just now
	at := slices.Index(w.queue, r.Owner)
	leave := func() {
		if at >= 0 {
			w.queue = slices.Delete(w.queue, at, at+1)
		}
	}
	switch {
	case r.Kind == driver.Acquire && a.Outcome == driver.Refused:
		w.missed(e)
		switch {
		case a.Position == 0:
			leave()
		case at < 0:
			w.queue = append(w.queue, r.Owner)
			w.places++
			e.place = w.places
			w.Count("places")
		}
	case r.Kind == driver.Leave && a.Outcome == driver.Done:
		leave()
	case r.Kind == driver.Leave && a.Outcome == driver.Holding: // it gives the lease back
		w.fence, w.offer = a.Fence, nil
	case (r.Kind == driver.Acquire || r.Kind == driver.AwaitTurn) && a.Outcome == driver.Granted && a.Fence > w.fence:
		w.fence = a.Fence
		if o := w.offer; o != nil && o.to == e && time.Since(o.at) <= o.turn {
			w.offer = nil
			w.Count("turns that were used")
			if e.place < w.served {
				w.Fail("%s had place %d, and place %d was served before", e.name, e.place, w.served)
			}
			w.served = e.place
		} else {
			w.missed(nil)
			if w.queue = w.queue[at+1:]; at < 0 { // the turns of all before it are over
				w.queue = nil
			}
		}
		e.place = 0
	case r.Kind == driver.Abandon && a.Outcome == driver.Done:
		leave()
		if w.offer != nil && w.offer.to == e {
			w.offer = nil
		}
	}
	for n, owner := range slices.Concat(a.Wake, a.HandedOver) {
		if n > 0 || len(w.queue) == 0 || w.queue[0] != owner {
			w.Fail("the key is handed over to another than the first in the queue")
			continue
		}
		w.queue = w.queue[1:]
		to := w.owners[owner]
		w.offer = &offer{to: to, at: time.Now(), turn: lockstore.TurnTime, by: i, disturbed: to.status != "" || to.ctx.Err() != nil}
		if len(a.Wake) > 0 {
			w.offer.turn = lockstore.MaxParkedTurn
		}
		w.Count(fmt.Sprint("hand-overs with a turn of ", w.offer.turn))
	}
}

// missed ends a hand-over whose turn was over before its owner came: who asks now, nil is another, is told so. It is
// called with the lock held.
func (w *world) missed(by *simulated) {
	o := w.offer
	if o == nil || by != nil && by != o.to {
		return
	}
	w.offer = nil
	w.Count("turns that were missed")
	if !o.disturbed {
		w.Fail("%s did not use its turn in %v, and nothing had disturbed it", o.to.name, time.Since(o.at))
	}
}
