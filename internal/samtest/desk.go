package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/lambdalock/lambdalock/lambdatest"
)

// desk opens accounts and reads balances, which only the functions can.
type desk struct{ env *lambdatest.Env }

// buildDesk builds the program that all desks run.
func buildDesk(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "desk")
	return binary, lambdatest.Build(ctx, "./functions/internal/unguarded", binary)
}

func openDesk(ctx context.Context, binary string, s *store, t template) (desk, error) {
	env, err := lambdatest.Start(ctx, lambdatest.Config{
		Binary: binary,
		Name:   "desk",
		Env:    append([]string{accountsVariable + "=" + s.url(loopback, t.urls[accountsVariable])}, s.env...),
	})
	return desk{env}, err
}

func (d desk) open(ctx context.Context, account string, balance int64) error {
	return d.ask(ctx, fmt.Sprintf(`{"open": {"account": %q, "balance": %d}}`, account, balance), nil)
}

func (d desk) balance(ctx context.Context, account string) (int64, error) {
	var answer struct{ Balance int64 }
	err := d.ask(ctx, fmt.Sprintf(`{"read": {"account": %q}}`, account), &answer)
	return answer.Balance, err
}

func (d desk) ask(ctx context.Context, event string, to any) error {
	r, err := d.env.Invoke(ctx, []byte(event))
	if err != nil {
		return err
	}
	if r.ErrorType != "" {
		return errors.New(r.ErrorMessage)
	}
	if to == nil {
		return nil
	}
	return json.Unmarshal(r.Payload, to)
}
