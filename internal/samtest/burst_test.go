//go:build sam

package samtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	burstSize  = 12
	burstTime  = 90 * time.Second // of one withdrawal, all its retries
	burstPause = 200 * time.Millisecond
	// burstWaiting is how many have to wait for the lock at once before it is released: on a small machine the
	// containers start one after the other. burstWait is how long a function waits, at most half of its time.
	burstWaiting = 2
	burstWait    = "5s"
)

// burst sends withdrawals from one account at the same time, each to an environment
// of its own, and looks for lost updates.
//
// Another invocation holds the lock until several wait for it. Nobody may withdraw
// before, and then all go for the lock.
//
// A withdrawal reads the balance, pays and writes the new balance. Where a second
// withdrawal is between its own read and write meanwhile, either one of the two
// updates is lost, which the balances show, or the account refuses the smaller fence,
// which is an answer 409 other than those of a lock that is busy.
func (s *suite) burst(t *testing.T, on *service) {
	plain, busy := s.named(t, "withdraw"), s.named(t, "withdraw-busy")
	if s.locks == nil {
		t.Skip("it needs a lock that another holds, and the cache is out of reach from here")
	}
	var held struct{ Body string }
	require.NoError(t, json.Unmarshal(busy.Want, &held))
	s.prepare(t, plain)
	release := s.hold(t, busy.Held)
	defer release()
	ctx, cancel := context.WithTimeout(s.ctx, burstTime)
	defer cancel()

	answers, errs := make([]withdrawal, burstSize), make([]error, burstSize)
	var all sync.WaitGroup
	for i := range burstSize {
		all.Go(func() { answers[i], errs[i] = on.withdraw(ctx, plain, held.Body, fmt.Sprint("burst-", i)) })
	}
	for waiting := 0; waiting < burstWaiting; <-time.After(20 * time.Millisecond) {
		status, err := s.locks.Inspect(ctx, busy.Held)
		require.NoError(t, err)
		require.Equal(t, lockstore.Held, status.State)
		waiting = status.Waiting
	}
	early := s.accounts.balance(t, account)
	release()
	all.Wait()
	require.EqualValues(t, opening, early, "the balance while the lock was held")
	again := 0
	for i, a := range answers {
		require.NoError(t, errs[i])
		again += a.again
	}
	t.Logf("%d answers said that the lock was busy, or did not arrive", again)
	require.NoError(t, checkBalances(answers, s.accounts.balance(t, account)))
}

// withdrawal is what one client was told.
type withdrawal struct {
	Amount, Balance int64
	again           int // answers after which the client tried again
}

// reservedForOthers is a part of the answer while nobody holds the lock, but other
// invocations have waited longer for it.
const reservedForOthers = "Other requests have waited longer for the same resource."

// withdraw makes one withdrawal as a client would. held is the body of the answer
// where another holds the lock.
func (s *service) withdraw(ctx context.Context, plain fixture, held, id string) (w withdrawal, err error) {
	if plain.Event, err = renamed(plain.Event, id); err != nil {
		return w, err
	}
	for ; ; w.again++ {
		select {
		case <-time.After(burstPause):
		case <-ctx.Done():
			return w, fmt.Errorf("%s: busy for too long: %w", id, ctx.Err())
		}
		got, err := patiently(ctx, func() ([]byte, error) { return s.once(ctx, plain) }, slow)
		if errors.Is(err, errNoAnswer) {
			continue // the account knows the id, and answers as it did
		}
		if err != nil {
			return w, fmt.Errorf("%s: %w", id, err)
		}
		var response struct {
			StatusCode int
			Body       string
		}
		if err := json.Unmarshal(got, &response); err != nil {
			return w, fmt.Errorf("%s: %.200q: %w", id, got, err)
		}
		switch {
		case response.StatusCode == 200:
			return w, json.Unmarshal([]byte(response.Body), &w)
		case response.StatusCode == 409 && (eventfiles.SameText(held, response.Body) || strings.Contains(response.Body, reservedForOthers)):
		default:
			return w, fmt.Errorf("%s: status %d: %s", id, response.StatusCode, response.Body)
		}
	}
}

// renamed is the event with another withdrawal id.
func renamed(event []byte, id string) ([]byte, error) {
	var e, fields map[string]any
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, err
	}
	body, _ := e["body"].(string)
	if err := json.Unmarshal([]byte(body), &fields); err != nil {
		return nil, fmt.Errorf("the event's body: %w", err)
	}
	fields["id"] = id
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	e["body"] = string(text)
	return json.Marshal(e)
}

// checkBalances looks for lost updates: each client is to have seen a balance of its
// own, and the last one is the account's. Each withdrawal takes the same.
func checkBalances(answers []withdrawal, balance int64) error {
	slices.SortFunc(answers, func(a, b withdrawal) int { return int(b.Balance - a.Balance) })
	left := int64(opening)
	for i, a := range answers {
		if left -= a.Amount; a.Balance != left {
			return fmt.Errorf("an update was lost: the balance after withdrawal %d is %d, not %d", i+1, a.Balance, left)
		}
	}
	if balance != left {
		return fmt.Errorf("an update was lost: the account has %d, not %d", balance, left)
	}
	return nil
}
