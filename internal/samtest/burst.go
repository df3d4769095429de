package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// burst sends withdrawals from one account at the same time, each to a
// container of its own, and looks for lost updates and for critical sections
// that share time.
type burst struct {
	n       int
	took    time.Duration
	busy    int // answers 409 that were tried again
	balance int64
	granted int // critical sections
}

const (
	burstSize  = 12
	burstTime  = 90 * time.Second // of one withdrawal, all its retries
	burstPause = 200 * time.Millisecond
)

func runBurst(ctx context.Context, server *server, id string, event []byte, d desk) (burst, error) {
	b := burst{n: burstSize}
	ctx, cancel := context.WithTimeout(ctx, burstTime)
	defer cancel()
	began := time.Now()
	answers := make([]withdrawal, b.n)
	errs := make([]error, b.n)
	var all sync.WaitGroup
	for i := range b.n {
		all.Go(func() { answers[i], errs[i] = withdraw(ctx, server, id, event, fmt.Sprint("burst-", i)) })
	}
	all.Wait()
	b.took = time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return b, err
	}
	var err error
	if b.balance, err = d.balance(ctx, account); err != nil {
		return b, err
	}
	// The log is whole when the server has ended.
	server.stop()
	log, err := os.ReadFile(server.log)
	if err != nil {
		return b, err
	}
	granted := sections(string(log))
	b.granted = len(granted)
	for _, a := range answers {
		b.busy += a.busy
	}
	return b, errors.Join(checkBalances(answers, b.balance), checkSections(granted, b.n))
}

// withdrawal is what one client was told.
type withdrawal struct {
	amount, balance int64
	busy            int
}

// withdraw makes one withdrawal as a client would: busy is tried again.
func withdraw(ctx context.Context, server *server, id string, event []byte, name string) (withdrawal, error) {
	payload, err := renamed(event, name)
	if err != nil {
		return withdrawal{}, err
	}
	for w := (withdrawal{}); ; w.busy++ {
		text, err := server.invoke(ctx, id, payload)
		if err != nil {
			return w, fmt.Errorf("%s: %w", name, err)
		}
		var response struct {
			StatusCode int
			Body       string
		}
		if err := json.Unmarshal(text, &response); err != nil {
			return w, fmt.Errorf("%s: %.200q: %w", name, text, err)
		}
		switch response.StatusCode {
		case 200:
			var made struct{ Amount, Balance int64 }
			err := json.Unmarshal([]byte(response.Body), &made)
			w.amount, w.balance = made.Amount, made.Balance
			return w, err
		case 409:
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
			Message string    `json:"message"`
			Granted time.Time `json:"granted"`
			HoldMS  float64   `json:"hold_ms"`
			Fence   int64     `json:"fence"`
		}
		if json.NewDecoder(strings.NewReader(log)).Decode(&r) == nil && r.Message == "lock" && !r.Granted.IsZero() {
			all = append(all, section{r.Granted, r.Granted.Add(time.Duration(r.HoldMS * float64(time.Millisecond))), r.Fence})
		}
		log = log[1:]
	}
	slices.SortFunc(all, func(a, b section) int { return a.begin.Compare(b.begin) })
	return all
}

// checkSections says whether each withdrawal had a critical section, none of
// them shared time, and their fences grew.
func checkSections(all []section, want int) error {
	if len(all) != want {
		return fmt.Errorf("%d critical sections were reported, not %d", len(all), want)
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
