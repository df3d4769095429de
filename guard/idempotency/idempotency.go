package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Doubt says what happens after a run that did not say how it ended.
type Doubt int

const (
	// AtLeastOnce lets the work run again: at least one effect.
	AtLeastOnce Doubt = iota
	// AtMostOnce refuses the key until somebody resolves it: at most one effect, while the
	// store remembers that the work has started (lockstore.StartMarkTime, 30 days, at least).
	AtMostOnce
)

// Options are a Once's settings; the zero value is good for most functions.
type Options struct {
	// ResultTime is for how long a result is stored, lockstore.MinTTL to lockstore.MaxResultTime (31
	// days). 0 is 24 hours. It must be longer than the time in which a repeat may come:
	// for SQS at least the retention of the queue, and of its dead-letter queue if somebody redrives it.
	ResultTime time.Duration

	// InDoubt says what happens after a run that was killed, or failed.
	InDoubt Doubt

	// MaxResultBytes bounds the JSON text of a result, in bytes, 1 to the constant MaxResultBytes.
	// 0 is 4,096. Each KiB of a result costs on DynamoDB one write unit more when it is stored
	// (three in a transaction), one at each repeat, and two at the first run after ResultTime.
	MaxResultBytes int

	// Version is the version of the result's form, at most 64 bytes. A result of another
	// version is not read: a repeat that needs it gets a *RepeatNoAnswer. Change it when a new deployment
	// would misread the results of the old one: when a field that stays means something else,
	// or when a new field must not be zero. A result with a field that the struct Out does not have
	// is never read, unless Out decodes itself.
	Version string
}

// MaxResultBytes bounds Options.MaxResultBytes. The rest of lockstore.MaxResultBytes is for the header.
const MaxResultBytes = lockstore.MaxResultBytes - 512

const (
	defaultResultTime = 24 * time.Hour
	defaultMaxResult  = 4 << 10
	maxVersion        = 64
)

// Once runs work once for each key. It is safe for concurrent use, and keeps nothing in
// memory.
type Once struct {
	guard *guard.Guard
	opt   Options
}

// New checks the guard and the options.
func New(g *guard.Guard, opt Options) (*Once, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if n := g.MaxHolders(); n > 1 {
		return nil, fmt.Errorf("idempotency: MaxHolders (boot: LOCK_MAX_HOLDERS) is %d; want 1", n)
	}
	if g.Coalesces() {
		return nil, errors.New("idempotency: the guard has guard.Options.Coalesce (boot: LOCK_COALESCE); want none: each event has an answer of its own here")
	}
	if err := opt.check(); err != nil {
		return nil, err
	}
	return &Once{g, opt}, nil
}

func (o *Options) check() error {
	o.ResultTime = cmp.Or(o.ResultTime, defaultResultTime)
	o.MaxResultBytes = cmp.Or(o.MaxResultBytes, defaultMaxResult)
	switch {
	case o.ResultTime < lockstore.MinTTL || o.ResultTime > lockstore.MaxResultTime:
		return fmt.Errorf("idempotency: ResultTime is %v; want 0 (24 hours) or %v to %v", o.ResultTime, lockstore.MinTTL, lockstore.MaxResultTime)
	case o.InDoubt != AtLeastOnce && o.InDoubt != AtMostOnce:
		return fmt.Errorf("idempotency: InDoubt is %d; want AtLeastOnce or AtMostOnce", o.InDoubt)
	case o.MaxResultBytes < 0 || o.MaxResultBytes > MaxResultBytes:
		return fmt.Errorf("idempotency: MaxResultBytes is %d; want 0 (%d) or 1 to %d", o.MaxResultBytes, defaultMaxResult, MaxResultBytes)
	case len(o.Version) > maxVersion:
		return fmt.Errorf("idempotency: Version has %d bytes; want at most %d", len(o.Version), maxVersion)
	}
	return nil
}

// Validate returns an error if New has not made the Once. Adapters call it, so that a mistake in the
// program is an error before anything else is called.
func (o *Once) Validate() error {
	if o == nil || o.guard == nil {
		return errNoOnce
	}
	return nil
}

// InDoubt is Options.InDoubt.
func (o *Once) InDoubt() Doubt { return o.opt.InDoubt }

// Call is one event. Calls with the same Key are repeats of one another.
type Call struct {
	// Key is a key of the store, see lockstore.ValidateKey. Use another key for a lock: a
	// key with a result is a lock that nobody gets while the result is stored.
	Key string

	// Fingerprint is the part of the input that has to be the same in a repeat, such as the amount, or the text of
	// the event. A deployment that changes its JSON, by a new field of the struct for example,
	// makes a RepeatMismatch of each repeat of what was stored before. Fingerprint is never stored; a
	// hash of its JSON is. If a call has another Fingerprint than the run whose result is stored, it
	// gets a *RepeatMismatch. nil is not compared, in both directions.
	Fingerprint any
}

// NewCall is a call whose key is made of the parts, as lockstore.KeyOrHash makes it. Name what
// is done first, then the id of the event: NewCall("charge", order.ID). Synchronous callers of
// a Lambda get a new request id for each call, so the request id is no id of the event.
func NewCall(parts ...string) Call { return Call{Key: lockstore.KeyOrHash(parts...)} }

// Replay says that a result was stored before.
type Replay struct {
	First lockstore.HolderInfo // who worked, or who revoked the lease of this run
}

// Do runs work once for c.Key, and returns its result. If the work has run before and its
// result is stored, Do returns this result and a *Replay, and work does not run. Otherwise the
// Replay is nil, and Do returns what work returned, with the exceptions of guard.Guard.Do.
//
// The further errors are *RepeatMismatch, *RepeatInDoubt and *RepeatNoAnswer. If c.Fingerprint has
// no JSON form, the error is a *guard.LockBadRequest and nothing ran.
func Do[Out any](ctx context.Context, o *Once, c Call, work func(context.Context, guard.Lock) (Out, error)) (out Out, replay *Replay, err error) {
	if err := mistake[Out](o); err != nil {
		return out, nil, err
	}
	if work == nil {
		return out, nil, errNoWork
	}
	match, err := c.hash()
	if err != nil {
		return out, nil, &guard.LockBadRequest{Key: c.Key[:min(len(c.Key), lockstore.MaxKeyBytes)], Err: err}
	}
	form := form{match, o.opt.Version}
	opt := doonce.Options{
		MarkStarted: o.opt.InDoubt == AtMostOnce,
		OnRefused: func(refusal error) (outcome string, _ error) {
			busy, refused := refusal.(*guard.LockBusy), &lockstore.Refused{}
			_ = errors.As(refusal, &refused)
			out, outcome, err = read[Out](busy, refused.Result, form)
			if err == nil {
				replay = &Replay{busy.Holder}
			}
			return outcome, err
		},
	}
	err = o.guard.DoOnce(ctx, c.Key, opt, func(ctx context.Context, lock guard.Lock) (doonce.Completion, error) {
		result, err := work(context.WithValue(ctx, pendingKey{}, &pending{o, lock, form}), lock)
		out = result
		if err != nil {
			own, noEffect := doonce.Unmarked(err)
			return doonce.Completion{NoEffect: noEffect}, own
		}
		return completion(o, form, result), nil
	})
	return out, replay, err
}

// mistake returns an error if o cannot store results of the type Out.
func mistake[Out any](o *Once) error {
	if reflect.TypeFor[Out]().Implements(reflect.TypeFor[io.Reader]()) {
		return errStream
	}
	return o.Validate()
}

// Wrap returns a plain Lambda handler that runs next once for each call(in). It answers as
// Do does. If call returns an error, next does not run and the error is a
// *guard.LockBadRequest.
//
// The event is what comes again. A batch of SQS or of a stream comes again in other parts,
// so do not wrap a handler of batches; see sqsbatch.Once and stream.Once.
//
// Mistakes in the program are plain errors of every invocation, see package guard.
func Wrap[In, Out any](o *Once, call func(context.Context, In) (Call, error), next guard.Handler[In, Out]) guard.Wrapped[In, Out] {
	mistake := mistake[Out](o)
	switch {
	case mistake != nil:
	case call == nil:
		mistake = errors.New("idempotency: the call function is nil")
	case next == nil:
		mistake = errors.New("idempotency: the handler is nil")
	}
	return guard.WrapUnlocked(func(ctx context.Context, in In) (out Out, err error) {
		if mistake != nil {
			return out, mistake
		}
		c, err := call(ctx, in)
		if err != nil {
			return out, &guard.LockBadRequest{Key: c.Key, Err: err}
		}
		out, _, err = Do(ctx, o, c, func(ctx context.Context, lock guard.Lock) (Out, error) { return next(ctx, lock, in) })
		return out, err
	})
}

// NoEffect marks the error of work that had no effect: with AtMostOnce the lease is released. Do
// returns err without the mark. NoEffect(nil) is nil.
//
// The mark must be the outermost error. Do does not look for it inside another error: there
// it may say that a part of the work had no effect, or the work of another Do inside.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return &doonce.NoEffect{Err: err}
}

// Result is a result that the work stores itself, together with its effect.
type Result struct {
	Lock guard.Lock            // of the key, and not of a lock inside the work
	Data lockstore.HiddenBytes // what to store
	Time time.Duration         // for how long
}

// Prepare returns the result of the work to which ctx belongs, for a transaction that
// writes it together with the effect. The work must return the same out after the
// transaction. If out cannot be stored, Prepare returns an error, and nothing has happened.
//
// Make the transaction the last thing that the work does. It ends the lease, so the next
// renewal finds the lease lost and cancels the work's context. If this comes before the
// transaction's reply, or if the work goes on, Do may return a *guard.LockLost, and a repeat
// gets the result.
func Prepare[Out any](ctx context.Context, out Out) (Result, error) {
	p, ok := ctx.Value(pendingKey{}).(*pending)
	if !ok {
		return Result{}, errNoPending
	}
	kind, text, err := encode(out, p.once.opt.MaxResultBytes)
	if err != nil {
		return Result{}, err
	}
	return Result{p.lock, p.form.envelope(kind, text), p.once.opt.ResultTime}, nil
}

// pending is the run to which a context belongs.
type pending struct {
	once *Once
	lock guard.Lock
	form form
}

type pendingKey struct{}

var (
	errNoOnce    = errors.New("idempotency: the Once is nil or was not made by New")
	errNoWork    = errors.New("idempotency: the work is nil")
	errStream    = errors.New("idempotency: the result is an io.Reader, which has no text to store")
	errNoPending = errors.New("idempotency: Prepare needs the context of work that Do has called")
)
