package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The numbers of the life cycle. The first three are the defaults of TTL, MaxHold and DeadlineMargin. The
// others are no options: nobody has needed to change one.
const (
	defaultTTL            = time.Minute
	defaultMaxHold        = 15 * time.Minute
	defaultDeadlineMargin = 300 * time.Millisecond

	// margin ends the trust in a lease before the store may grant the key to another
	// owner. It covers two things: the time until the work notices that its context is
	// cancelled, and clocks that run at slightly different rates.
	margin = 250 * time.Millisecond
	// leastWork is the least time for the work. A run does not start it if its own lease gives less.
	leastWork = 100 * time.Millisecond
	// leastTurn is how long a run must be able to trust a hand-over to begin its work at once. With less it extends the lease first, because an
	// extension beside the work may come too late if the store or the processor is busy. The trust counts from the begin of the wait, so after a
	// long wait less is left.
	leastTurn = 500 * time.Millisecond
	// callTime bounds one call to the store, except AwaitTurn, see retrier.limit.
	callTime = 2 * time.Second
	// minCallTimeout is what a call gets when the time to ask is nearly over. A call
	// that is cut off would turn a clear answer into an unknown outcome.
	minCallTimeout = 200 * time.Millisecond
	// storeRetryBudget bounds how long a run asks a store that gives no clear answer. A longer Options.Wait raises it.
	storeRetryBudget = 5 * time.Second
	// releaseTime bounds a release, an abandon and a leave with all repeats, unless the work was marked as started.
	releaseTime = time.Second
	// shutdownTime bounds a release or an abandon after Shutdown. Lambda ends the process 500 ms
	// after SIGTERM. The rest is for the store, which may take 50 ms to notice that its time is
	// over, and for the report.
	shutdownTime = 300 * time.Millisecond
	// answerTime is kept for the handler's answer when a release takes long.
	answerTime = 100 * time.Millisecond
	// ttlSlack is how much longer than the run a lease lasts. So a short run need not renew, although a
	// store may let it trust the lease for less than the TTL.
	ttlSlack = time.Second
	// returnTime is how long after MaxHold the lease lasts at least, so that work that its context has stopped can return. Before the caller's
	// deadline the work has DeadlineMargin for that. ttlSlack, less what a store keeps for itself, is more.
	returnTime = 250 * time.Millisecond

	firstPause = 50 * time.Millisecond
	maxPause   = time.Second
	// maxWaitPause bounds the pause of a run in the queue when the store has answered too early.
	maxWaitPause = 200 * time.Millisecond

	// contendedTime bounds a release while the store's answers match lockstore.ErrContended: each of them gives it releaseTime again.
	contendedTime = 5 * time.Second
	// completeTime bounds storing a result, and a release after the work was marked as started. It outlasts most failovers of a store.
	completeTime = time.Minute
)

// Options are a Guard's settings; the zero value is good for most functions.
type Options struct {
	// TTL is the longest lease that Do and DoAll ask for at once. A dead holder blocks others for
	// about as long at most, see P4 in docs/guarantees.md. 0 is one minute, or MaxHold when that
	// is less. A run whose context ends sooner takes a shorter lease. A run that may
	// last longer renews its lease after each third.
	TTL time.Duration

	// MaxHold is the longest time for the work, however often the lease is renewed. It may be
	// lockstore.MinTTL to lockstore.MaxTTL (24 hours). 0 is 15 minutes, or TTL when that is more. A job
	// outside Lambda may need more than that.
	MaxHold time.Duration

	// Wait is how long a run waits for a lock that another owner holds. It waits for at
	// most half of the time that its context has left. 0 does not wait. Waiting runs get
	// the lock in the order of their arrival, and a run that does not wait is refused
	// while others do.
	Wait time.Duration

	// DeadlineMargin is the time between the end of the work's context and the deadline of the
	// caller's context. In this time the work returns, the lease is released and the answer is sent. 0 is
	// 300 ms. Within it the lease is not renewed, so keep it below half of TTL.
	DeadlineMargin time.Duration

	// Coalesce, if it is not empty, names the work of Do, such as the function's name. Then of many events for one key only one waits:
	// a run that finds the key held, and another event's run of the same work waiting, ends at once with *LockCovered. The
	// other run begins later than this one was called, so it does what this event asks for, too.
	//
	// That holds if the work reads what the events speak of when it begins, and not from its own event; and if the source
	// of the events sends again what was not answered with success: the run that waits may fail. So take *LockCovered
	// for a success only where the source does that, as sqsbatch and stream do. Coalesce needs a Wait and an event's id, see
	// EventID. The name has 1 to lockstore.MaxWorkBytes characters of printable ASCII without spaces. DoAll, a cooldown and
	// package idempotency return an error.
	Coalesce string

	// EventID returns the event's id at its source: a new one for each event, and the same one whenever
	// this event comes again. With a new id for each try, the place of a try that died would cover the
	// next one. Lambda's request id is the same for each try of an asynchronous event, and another one for each try of SQS, a
	// stream, or an HTTP client. Only Coalesce needs it, and only if the context has no id of [WithEventID]: sqsbatch and stream set
	// that, httpapi and httpguard take the header Idempotency-Key, or answer 400.
	EventID func(context.Context) string

	// HolderInfo says, for people who inspect the lock, which run holds it. nil, a panic, and a call that
	// takes too long (see Observe) leave the holder without a name.
	HolderInfo func(context.Context) lockstore.HolderInfo

	// Wake wakes a parked owner at its address, see [Guard.Park]. nil wakes nobody. Package sfnwake has one
	// for AWS Step Functions.
	//
	// The guard calls Wake when a request of a run has handed the key over to this owner, or completed the key: on
	// goroutines of its own, for several owners at once. A wake-up has 1 s, or what the release has left if that is less.
	// Until then the guard repeats a Wake that fails, unless the error matches
	// ErrInvalid, ErrRefused, ErrLost or ErrCorrupt of lockstore: return ErrInvalid if nobody waits at the address
	// any more. Nothing here changes the outcome of a run; see Report.OwnersWoken and Report.WakeErr.
	Wake func(context.Context, lockstore.WakeAddress) error

	// Granted is called when a run of Do, DoAll or package idempotency has the lock, before its work: to begin a span, for example. The report
	// says what is known so far. The work's context and Observe's context take their values from the context that Granted
	// returns. That context must have no cancel of its own: context.Cause of the work's context would show the cause of
	// that. The time of Granted counts against the lease. nil is not called.
	Granted func(context.Context, Report) context.Context

	// Observe is called at the end of each run, after the release: once for each key
	// that the call tried, also if it got no lock. Inspect, a mistake in the program and a key function
	// that fails do not call it. nil observes nothing.
	//
	// The guard calls HolderInfo, Granted and Observe on goroutines of their own. It waits for each for at most 1 s and half of
	// the time until the deadline, but for at least 50 ms; after Shutdown for 50 ms. Then the run goes on without it, and a DoAll waits no more
	// for this hook. A panic and a
	// runtime.Goexit of theirs do not change the run: they are told on standard error. If 1,000 calls have not returned,
	// further ones are left out.
	Observe func(context.Context, Report)
}

// Guard starts work only when it has the lock, and cancels the work's context before another can
// get the lock. It is safe for concurrent use. It keeps nothing of a run after its end.
type Guard struct {
	store      *lockstore.Store
	opt        Options
	parks      bool // the store has parked places
	maxHolders int
	cooldown   time.Duration // of Do; 0 is none
	mistake    error         // of WithMaxHolders or WithCooldown

	// What a guard has in common with the guards that WithMaxHolders and WithCooldown make of it.
	clock  *clock
	random func(time.Duration) time.Duration // 0 up to its argument
	runs   *registry
	polls  *sync.Map // by keys, what runs that wait without a place have just read
}

// New checks the store and the options, and returns a Guard. Its error names the option and
// the bound.
func New(store *lockstore.Store, opt Options) (*Guard, error) {
	if err := store.Validate(); err != nil {
		return nil, err
	}
	for _, o := range []struct {
		name         string
		value, least time.Duration
	}{
		{"TTL", opt.TTL, lockstore.MinTTL}, {"MaxHold", opt.MaxHold, lockstore.MinTTL},
		{"Wait", opt.Wait, 0}, {"DeadlineMargin", opt.DeadlineMargin, 0},
	} {
		if o.value != 0 && (o.value < o.least || o.value > lockstore.MaxTTL) {
			return nil, fmt.Errorf("guard: %s is %v; want %v to %v, or 0 for the default", o.name, o.value, o.least, lockstore.MaxTTL)
		}
	}
	opt.MaxHold = cmp.Or(opt.MaxHold, max(defaultMaxHold, opt.TTL))
	opt.TTL = cmp.Or(opt.TTL, min(defaultTTL, opt.MaxHold))
	opt.DeadlineMargin = cmp.Or(opt.DeadlineMargin, defaultDeadlineMargin)
	switch {
	case opt.TTL > opt.MaxHold:
		return nil, fmt.Errorf("guard: TTL is %v but MaxHold is %v; want TTL at most MaxHold", opt.TTL, opt.MaxHold)
	case opt.DeadlineMargin > opt.MaxHold-leastWork:
		return nil, fmt.Errorf("guard: DeadlineMargin is %v but MaxHold is %v; want DeadlineMargin at most MaxHold less %v", opt.DeadlineMargin, opt.MaxHold, leastWork)
	case opt.Coalesce != "" && opt.Wait == 0:
		return nil, fmt.Errorf("guard: Coalesce is %.70q but Wait is 0; want a Wait, only who waits is covered", opt.Coalesce)
	case opt.Coalesce != "" && lockstore.ValidateWork(opt.Coalesce) != nil:
		return nil, fmt.Errorf(badWork, opt.Coalesce, lockstore.MaxWorkBytes)
	}
	_, parks := driver.As[driver.Parker](store.Driver())
	return &Guard{
		store: store.OnWake(wakeParked), opt: opt, parks: parks, maxHolders: 1,
		clock: systemClock(), random: rand.N[time.Duration],
		runs: newRegistry(), polls: new(sync.Map),
	}, nil
}

// WithMaxHolders returns a guard with which up to n runs may hold a key at once: a semaphore of leases.
// With n above 1 the functions that need a single holder return an error, see below.
// n counts the holders of all programs. If they ask for different numbers, the smallest counts: of the
// holders, of those who wait before, and of the one who asks. So a deployment that changes n is
// safe; and if writers ask for 1 and readers for lockstore.MaxHolders, the key is a read-write lock. Waiting
// runs get the key in the order of their arrival, whatever number they ask for.
//
// With n above 1 the work is not alone. Fences grow for the key and not for a seat. So a resource keeps
// one fence for each Lock.Seat. That protects only while all ask for the same n. With different numbers
// only who asks for 1 may write, and the resource keeps one fence for the key.
// DoAll, WithCooldown and package idempotency need n 1: their errors say so, and nothing is
// sent.
//
// The guard shares Shutdown with g. If n is not 1 to lockstore.MaxHolders, every call for a lock is
// an error, see Validate.
func (g *Guard) WithMaxHolders(n int) *Guard {
	if g.Validate() != nil {
		return g
	}
	with := *g
	if with.maxHolders = n; n < 1 || n > lockstore.MaxHolders {
		with.mistake = fmt.Errorf("guard: MaxHolders is %d; want 1 to %d", n, lockstore.MaxHolders)
	}
	return with.checked()
}

// checked notes the mistake of a cooldown of work that is not alone. It sets mistake of g: WithMaxHolders and WithCooldown call it for the
// copy that they have made.
func (g *Guard) checked() *Guard {
	if g.cooldown > 0 && g.mistake == nil {
		g.mistake = g.alone("a cooldown")
	}
	return g
}

// MaxHolders is how many runs may hold a key at once: the number of WithMaxHolders, or 1;
// 0 for a nil guard.
func (g *Guard) MaxHolders() int {
	if g == nil {
		return 0
	}
	return g.maxHolders
}

// alone returns an error if the run of one event may cover another event, or if several runs may hold the key. plain and checked call it, and Complete.
func (g *Guard) alone(what string) error {
	switch {
	case g.Coalesces():
		return fmt.Errorf("guard: Coalesce (boot: LOCK_COALESCE) is %.70q; %s wants none, because one run does not do the work of another there", g.opt.Coalesce, what)
	case g.MaxHolders() > 1:
		return fmt.Errorf("guard: MaxHolders (boot: LOCK_MAX_HOLDERS) is %d; %s wants 1", g.maxHolders, what)
	}
	return nil
}

// plain returns an error if the guard has a cooldown, Coalesce or more than one holder. Only DoAll and DoOnce call it: Acquire takes such a guard.
func (g *Guard) plain(what string) error {
	if g.cooldown > 0 {
		return fmt.Errorf("guard: %s wants a guard without a cooldown", what)
	}
	return g.alone(what)
}

// badWork is the error of a name of the work, and of its longest length.
const badWork = "guard: Coalesce is %.70q; want 1 to %d characters of printable ASCII without spaces"

var (
	errNoGuard   = errors.New("guard: the guard is nil or was not made by New")
	errNoContext = errors.New("guard: the context is nil")
	errNoWork    = errors.New("guard: the work is nil")
)

// Validate returns an error if New has not made the guard, or if WithMaxHolders or WithCooldown got a number out of
// its bounds. Adapters call it, so that a mistake in the program is an error and no panic.
func (g *Guard) Validate() error {
	if g == nil || g.store == nil {
		return errNoGuard
	}
	return g.mistake
}

// usable returns an error for a nil context, and otherwise what Validate says. Each method that sends something calls it before newCall: Acquire and
// Park do so in acquireLease, and Renew, Release, Abandon and Complete in requestFor.
func (g *Guard) usable(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	return g.Validate()
}

// HolderInfo returns what Options.HolderInfo says of a run with this context. Adapters compare
// it with the holder of a busy lock.
func (g *Guard) HolderInfo(ctx context.Context) lockstore.HolderInfo {
	if g == nil || g.opt.HolderInfo == nil {
		return lockstore.HolderInfo{}
	}
	left := never
	if deadline, ok := ctx.Deadline(); ok {
		left = until(deadline)
	}
	said := make(chan lockstore.HolderInfo, 1)
	tell.Start("guard.Options.HolderInfo", func() { said <- g.opt.HolderInfo(ctx) }).Wait(hookTime(left), g.runs.over.Done())
	select {
	case h := <-said:
		return h
	default:
		return lockstore.HolderInfo{}
	}
}

// newPauses makes pauses whose bound is not raised yet. acquire, newRetrier and wakeOwner call it.
func (g *Guard) newPauses() pauses { return pauses{random: g.random, most: maxPause} }
