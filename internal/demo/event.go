package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// event is the API event that every invocation is made of.
type event struct {
	fields map[string]any
	amount int64 // in cents
}

// readEvent reads an API event as the functions get it.
func readEvent(path string) (event, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return event{}, fmt.Errorf("run the demo in the repository's root: %w", err)
	}
	var e event
	if err := json.Unmarshal(text, &e.fields); err != nil {
		return event{}, fmt.Errorf("%s: %w", path, err)
	}
	body, _ := e.fields["body"].(string)
	var w struct {
		Amount int64 `json:"amount"`
	}
	if err := json.Unmarshal([]byte(body), &w); err != nil || w.Amount < 1 {
		return event{}, fmt.Errorf("%s: its body has no amount", path)
	}
	e.amount = w.Amount
	return e, nil
}

// with returns the event for another account and withdrawal.
func (e event) with(account, id string) ([]byte, error) {
	fields := make(map[string]any, len(e.fields))
	for name, value := range e.fields {
		fields[name] = value
	}
	fields["rawPath"] = "/accounts/" + account + "/withdrawals"
	fields["pathParameters"] = map[string]string{"id": account}
	fields["body"] = fmt.Sprintf(`{"id": %q, "amount": %d}`, id, e.amount)
	return json.Marshal(fields)
}
