// A lock for the executions of an AWS Step Functions state
// machine. Its states hold it over minutes or hours, with waits and with work in
// other services between them. A Lambda function is the only one who talks to
// the store, and remembers nothing:
//
//	{"action": "acquire",  "key": "account/7", "execution": ARN, "redrive": 0, "ttl": 180}
//	{"action": "renew",    "key": "account/7", "execution": ARN, "redrive": 0, "fence": N, "ttl": 180}
//	{"action": "release",  "key": "account/7", "execution": ARN, "redrive": 0, "fence": N}
//	{"action": "abandon", "key": "account/7", "execution": ARN, "redrive": 0}
//
// where execution is $$.Execution.Id and redrive is $$.Execution.RedriveCount.
// Acquire and renew answer with the fence, and with expiresAt by the function's
// clock, the safety margin taken off. The errors are those of package guard, for
// a Retry or a Catch to match by name: LockBusy, LockLost, LockDeadline,
// LockInvalid, LockCorrupt and LockStoreUnavailable.
//
// # Life of a lock
//
// Acquire takes the lock for ttl seconds. A state that may run into their end
// renews before; what does neither loses the lock by the store's clock, so a
// dead execution blocks others for ttl at most. Every write to what the lock
// guards carries the fence, and refuses a smaller one: that alone keeps out an
// execution that goes on after its lock was lost. Release says LockLost when the
// lock was lost before it: what was written may then stand beside another's.
//
// The owner is made of the execution, its count of redrives and the key. So each
// of the four may be repeated after an answer that was lost: acquire answers
// with the same lease, with the time that is left. No other execution can have
// that owner, nor can a redrive of the same one: a redriven execution that goes
// on in the middle finds its lock lost at the next renew or release.
//
// An execution that fails in one of its states abandons in its last ones. One
// that times out or is aborted runs no state any more. For it EventBridge sends
// the execution's change of status, and handler abandons by the owner alone,
// which needs no fence: nobody may have seen one. Abandon frees the lock, and
// refuses a late acquire of the same owner, which may still be under way, for as
// long as the store remembers it; after that such a lock is nobody's, and ends
// by its ttl. The key is then looked for in the execution's input, as its field "key": an
// execution that is gone has said nothing else. Express workflows send no such
// events, so their executions are refused.
//
// An execution takes a key once: its parallel branches share the lock, and after
// its release the same execution gets LockLost.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/stableowner"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Answer is what a state gets. Fence and ExpiresAt are those of acquire and
// renew.
type Answer struct {
	Key       string          `json:"key"`
	Fence     lockstore.Fence `json:"fence,omitempty"`
	ExpiresAt time.Time       `json:"expiresAt,omitzero"`
}

// handler handles the actions of states and the events of executions that have
// ended.
func handler(g *guard.Guard) func(context.Context, json.RawMessage) (Answer, error) {
	return func(ctx context.Context, in json.RawMessage) (Answer, error) {
		r, err := parse(in)
		if err != nil {
			return Answer{}, &guard.LockInvalid{Key: r.key[:min(len(r.key), lockstore.MaxKeyBytes)], Err: err}
		}
		return r.do(ctx, g)
	}
}

func (r request) do(ctx context.Context, g *guard.Guard) (Answer, error) {
	lease := lockstore.Lease{Key: r.key, Owner: r.owner(), Fence: r.fence}
	var err error
	switch r.action {
	case acquire:
		lease, err = g.Acquire(ctx, guard.LeaseRequest{Key: r.key, TTL: r.ttl, Owner: lease.Owner, HolderInfo: r.execution.holder()})
	case renew:
		lease.TTL, err = g.Renew(ctx, lease, r.ttl)
	default: // abandon is a release whose fence is 0
		if err = g.Release(ctx, lease); err == nil {
			return Answer{Key: r.key}, nil
		}
	}
	if err != nil {
		return Answer{}, err
	}
	return Answer{r.key, lease.Fence, time.Now().Add(lease.TTL).UTC().Truncate(time.Millisecond)}, nil
}

// owner is a hash of what makes an acquisition.
func (r request) owner() lockstore.Owner {
	return stableowner.Of("lambdalock step", string(r.execution), fmt.Sprint(r.redrive), r.key)
}
