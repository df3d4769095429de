package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// burst sends withdrawals from one account at the same time, each to an
// environment of its own, and looks for lost updates and for critical sections
// that overlap.
//
// The lock is held while the environments start, so that nobody may get through,
// and then released, so that all go for it at the same time.
//
// The answers tell the rest. A withdrawal reads the balance, pays and writes the new
// balance. If another one is between its own read and write meanwhile, either
// one of the two updates is lost and the balances show it, or the account
// refuses the smaller fence and the answer says that another request went ahead,
// which is an answer 409 other than that of a lock that is held.
//
// The functions' own reports are looked at too, where they can be had.
type burst struct {
	took time.Duration
	busy int // answers that the lock is held, which were tried again
}

const (
	burstSize  = 12
	burstTime  = 90 * time.Second // of one withdrawal, all its retries
	burstPause = 200 * time.Millisecond
	// burstHold is how long the lock is held: as long as containers take to start
	// on a small machine. burstWait is what they wait for it, at most half
	// of a function's time.
	burstHold = 3 * time.Second
	burstWait = "5s"
)

// runBurst sends the event again and again with other ids. held is the body of
// the answer when another holds the lock, as we do until release.
func runBurst(ctx context.Context, server service, id string, event []byte, held string, d desk, release func(context.Context) error) (burst, error) {
	ctx, cancel := context.WithTimeout(ctx, burstTime)
	defer cancel()
	began := time.Now()
	answers := make([]withdrawal, burstSize)
	errs := make([]error, burstSize)
	var all sync.WaitGroup
	for i := range burstSize {
		all.Go(func() { answers[i], errs[i] = withdraw(ctx, server, id, event, held, fmt.Sprint("burst-", i)) })
	}
	early := holdOn(ctx, d, release)
	all.Wait()
	b := burst{took: time.Since(began)}
	for _, a := range answers {
		b.busy += a.busy
	}
	if err := errors.Join(append(errs, early)...); err != nil {
		return b, err
	}
	balance, err := d.balance(ctx, account)
	if err != nil {
		return b, err
	}
	return b, errors.Join(checkBalances(answers, balance), server.overlap())
}

// holdOn releases the lock after a while, and says whether somebody withdrew
// before that.
func holdOn(ctx context.Context, d desk, release func(context.Context) error) error {
	select {
	case <-time.After(burstHold):
	case <-ctx.Done():
		return ctx.Err()
	}
	balance, err := d.balance(ctx, account)
	if err == nil && balance != opening {
		err = fmt.Errorf("the balance went from %d to %d while the lock was held", opening, balance)
	}
	return errors.Join(err, release(ctx))
}

// withdrawal is what one client was told.
type withdrawal struct {
	amount, balance int64
	busy            int
}

// withdraw makes one withdrawal as a client would: busy is tried again.
func withdraw(ctx context.Context, server service, id string, event []byte, held, name string) (withdrawal, error) {
	payload, err := renamed(event, name)
	if err != nil {
		return withdrawal{}, err
	}
	for w := (withdrawal{}); ; w.busy++ {
		got, err := server.invoke(ctx, id, payload)
		if err != nil {
			return w, fmt.Errorf("%s: %w", name, err)
		}
		var response struct {
			StatusCode int
			Body       string
		}
		if err := json.Unmarshal(got.text, &response); err != nil {
			return w, fmt.Errorf("%s: %.200q: %w", name, got.text, err)
		}
		switch {
		case response.StatusCode == 200:
			var made struct{ Amount, Balance int64 }
			err := json.Unmarshal([]byte(response.Body), &made)
			w.amount, w.balance = made.Amount, made.Balance
			return w, err
		case response.StatusCode == 409 && response.Body == held:
			select {
			case <-time.After(burstPause):
			case <-ctx.Done():
				return w, fmt.Errorf("%s: busy for too long: %w", name, ctx.Err())
			}
		default:
			return w, fmt.Errorf("%s: status %d: %s", name, response.StatusCode, response.Body)
		}
	}
}

// renamed is the event with another withdrawal id.
func renamed(event []byte, name string) ([]byte, error) {
	var e map[string]any
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, err
	}
	body, _ := e["body"].(string)
	var fields map[string]any
	if err := json.Unmarshal([]byte(body), &fields); err != nil {
		return nil, fmt.Errorf("the event's body: %w", err)
	}
	fields["id"] = name
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	e["body"] = string(text)
	return json.Marshal(e)
}

// checkBalances looks for lost updates: every client is to have seen a balance
// of its own, one amount below another's, and the account the smallest.
func checkBalances(answers []withdrawal, balance int64) error {
	slices.SortFunc(answers, func(a, b withdrawal) int { return int(b.balance - a.balance) })
	left := int64(opening)
	for i, a := range answers {
		left -= a.amount
		if a.balance != left {
			return fmt.Errorf("an update was lost: the balance after withdrawal %d is %d, not %d", i+1, a.balance, left)
		}
	}
	if balance != left {
		return fmt.Errorf("an update was lost: the account has %d, not %d", balance, left)
	}
	return nil
}

// section is the time in which a function held the lock, by its own report.
type section struct {
	begin, end time.Time
	fence      int64
}

// sections reads the functions' reports. The containers write at the same time,
// so a report need not begin a line.
func sections(log string) []section {
	var all []section
	for i := strings.IndexByte(log, '{'); i >= 0; i = strings.IndexByte(log, '{') {
		log = log[i:]
		var r struct {
			Message    string    `json:"message"`
			AcquiredAt time.Time `json:"acquired_at"`
			HoldMS     float64   `json:"hold_ms"`
			Fence      int64     `json:"fence"`
		}
		if json.NewDecoder(strings.NewReader(log)).Decode(&r) == nil && r.Message == "lock" && !r.AcquiredAt.IsZero() {
			all = append(all, section{r.AcquiredAt, r.AcquiredAt.Add(time.Duration(r.HoldMS * float64(time.Millisecond))), r.Fence})
		}
		log = log[1:]
	}
	slices.SortFunc(all, func(a, b section) int { return a.begin.Compare(b.begin) })
	return all
}

// checkSections says whether any of the critical sections that were reported
// shared time, and whether their fences grew. There are at most as many as
// withdrawals, and too few would show nothing.
func checkSections(all []section, most int) error {
	if len(all) < 2 || len(all) > most {
		return fmt.Errorf("%d critical sections were reported, not 2 to %d", len(all), most)
	}
	for i := 1; i < len(all); i++ {
		switch before, now := all[i-1], all[i]; {
		case now.begin.Before(before.end):
			return fmt.Errorf("critical sections %d and %d share %v", i, i+1, before.end.Sub(now.begin))
		case now.fence <= before.fence:
			return fmt.Errorf("the fence of critical section %d is %d, after %d", i+1, now.fence, before.fence)
		}
	}
	return nil
}
