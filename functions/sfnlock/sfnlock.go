// A lock for the executions of an AWS Step Functions state
// machine. Its states hold it over minutes or hours, with waits and with work in
// other services between them. A Lambda function is the only one who talks to
// the store, and remembers nothing:
//
//	{"action": "acquire",  "key": "account/7", "execution": ARN, "redrive": 0, "ttl": 300, "woken": false}
//	{"action": "acquire",  "key": "account/7", "execution": ARN, "redrive": 0, "ttl": 300, "taskToken": TOKEN}
//	{"action": "renew",    "key": "account/7", "execution": ARN, "redrive": 0, "fence": N, "ttl": 180}
//	{"action": "release",  "key": "account/7", "execution": ARN, "redrive": 0, "fence": N}
//	{"action": "abandon", "key": "account/7", "execution": ARN, "redrive": 0}
//
// where execution is $$.Execution.Id, redrive is $$.Execution.RedriveCount and taskToken is
// $$.Task.Token. Acquire and renew answer with the fence, and with expiresAt by the function's
// clock, the safety margin taken off. The errors are those of package guard, for
// a Retry or a Catch to match by name: LockBusy, LockLost, LockNoTime,
// LockBadRequest, LockCorrupt and LockStoreUnavailable; and NotWoken.
//
// # Waiting
//
// Acquire with a taskToken is for a state of lambda:invoke.waitForTaskToken. It is guard.Guard.Park, see docs/waiting.md.
// If the lock is free, the function itself sends the token back. If the queue has no place, the error is LockBusy, which
// fails the state.
//
// The next state acquires without a token. With woken, which
// is optional, the function logs "woken too late" if the execution has lost its place. A state that waits needs
// HeartbeatSeconds, though nobody sends heartbeats, and a Retry that asks again, with the same owner and a new token. It
// also needs a Catch that acquires after NotWoken: the execution has the lock, and the function could not send the token.
//
// # Life of a lock
//
// A state that may run into the end of ttl renews before. Every write to what the lock guards carries the fence, and
// refuses a smaller one: that alone keeps out an execution that goes on after its lock was lost. Release says LockLost when
// the lock was lost before it: what was written may then stand beside another's.
//
// The owner is made of the execution, its count of redrives and the key. So each of the four may be repeated after an
// answer that was lost: acquire answers with the same lease, with the time that is left. No other execution can have that
// owner, nor can a redrive of the same one, which finds its lock lost at the next renew or release.
//
// An execution that fails in one of its states abandons in its last ones. One that times out or is aborted runs no state
// any more. For it EventBridge sends the execution's change of status, and handler abandons by the owner alone: nobody may
// have seen a fence. Abandon frees the lock, and refuses a late acquire of the same owner for as long as the store
// remembers it. The key is then looked for in the execution's input, as its field "key". An execution without a valid
// one has had no lock, so its end is a line of the log, and no error. Express workflows send no such
// events, so their executions are refused.
//
// An execution takes a key once: its parallel branches share the lock, and after its release the same execution gets
// LockLost.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/stableowner"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Answer is what a state gets. Fence and ExpiresAt are those of acquire and
// renew.
type Answer struct {
	Key       string          `json:"key"`
	Fence     lockstore.Fence `json:"fence,omitempty"`
	ExpiresAt time.Time       `json:"expiresAt,omitzero"`
}

// NotWoken: the execution has the lock, and could not be told. It has to ask again.
type NotWoken struct{ Err error }

func (e *NotWoken) Error() string {
	return "the lock is granted, but the state was not woken: " + e.Err.Error()
}

func (e *NotWoken) Unwrap() error { return e.Err }

// wake ends the state that waits at an address.
type wake func(context.Context, lockstore.WakeAddress) error

// handler handles the actions of states and the events of executions that have
// ended.
func handler(g *guard.Guard, w wake) func(context.Context, json.RawMessage) (Answer, error) {
	return func(ctx context.Context, in json.RawMessage) (Answer, error) {
		if g.Coalesces() {
			return Answer{}, errors.New("sfnlock: LOCK_COALESCE is true; want false: an execution needs its own lock, and no other one does its work")
		}
		r, err := parse(in)
		if errors.Is(err, errNoKey) { // as an error it would be sent again and again, and lie among what failed for days
			tell.Log(ctx, nil, slog.LevelWarn, "nothing to abandon", slog.String("execution", string(r.execution)), slog.String("error", err.Error()))
			return Answer{}, nil
		}
		if err != nil {
			return Answer{}, &guard.LockBadRequest{Key: r.key[:min(len(r.key), lockstore.MaxKeyBytes)], Err: err}
		}
		if r.token != "" {
			return r.park(ctx, g, w)
		}
		return r.do(ctx, g)
	}
}

func (r request) do(ctx context.Context, g *guard.Guard) (Answer, error) {
	lease := lockstore.Lease{Key: r.key, Owner: r.owner(), Fence: r.fence}
	var err error
	switch r.action {
	case acquire:
		lease, err = g.Acquire(ctx, r.lease())
		if busy, _ := err.(*guard.LockBusy); r.woken && busy != nil && busy.QueuePosition == 0 {
			tell.Log(ctx, nil, slog.LevelWarn, "woken too late", slog.String("key", r.key))
		}
	case renew:
		lease.TTL, err = g.Renew(ctx, lease, r.ttl)
	case release:
		err = g.Release(ctx, lease)
	default:
		err = g.Abandon(ctx, r.key, lease.Owner)
	}
	switch {
	case err != nil:
		return Answer{}, err
	case r.action != acquire && r.action != renew:
		return Answer{Key: r.key}, nil
	}
	return Answer{r.key, lease.Fence, time.Now().Add(lease.TTL).UTC().Truncate(time.Millisecond)}, nil
}

func (r request) lease() guard.LeaseRequest {
	return guard.LeaseRequest{Key: r.key, TTL: r.ttl, Owner: r.owner(), HolderInfo: r.execution.holder()}
}

// park is an acquire of a state that waits. It is not told the fence, which only an acquire after the
// wait may rely on.
func (r request) park(ctx context.Context, g *guard.Guard, w wake) (Answer, error) {
	req := r.lease()
	_, err := g.Park(ctx, req, lockstore.MaxParkedTurn, r.token)
	if errors.Is(err, errors.ErrUnsupported) { // the store has no parked places, so the Retry for LockBusy has to do
		_, err = g.Acquire(ctx, req)
	}
	if err == nil { // nobody else wakes an execution that has not waited
		if err = w(ctx, r.token); err != nil {
			err = &NotWoken{err}
		}
	} else if busy, _ := err.(*guard.LockBusy); busy != nil && busy.QueuePosition > 0 {
		err = nil
	}
	if err != nil {
		return Answer{}, err
	}
	return Answer{Key: r.key}, nil
}

// owner is a hash of what makes an acquisition.
func (r request) owner() lockstore.Owner {
	return stableowner.Of("lambdalock step", string(r.execution), fmt.Sprint(r.redrive), r.key)
}
