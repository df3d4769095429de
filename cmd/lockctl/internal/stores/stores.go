// Package stores opens the store that a command works on.
package stores

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
)

// Variable is the environment variable with the store's URL.
const Variable = "LOCK_URL"

// Flag is the help text of the flag --store.
const Flag = "`URL` of the store; default $" + Variable

const timeout = 5 * time.Second // for the first requests to the store

// Open opens the store of a URL with the openers of lockctl and with more of them.
func Open(ctx context.Context, url string, getenv func(string) string, more ...lockstore.Opener) (lockstore.Store, error) {
	openers := append(more, dynamostore.Opener, redisstore.Opener, elasticache.Opener)
	store, err := lockstore.Open(ctx, url, getenv, openers...)
	if err != nil {
		return nil, &exit.Error{Status: exit.Config, Err: fmt.Errorf("--store, %s: %w", Variable, err)}
	}
	return store, nil
}

// Try uses the store once, so that a wrong address or password is told before
// anything begins.
func Try(ctx context.Context, store lockstore.Store) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, ok := lockstore.As[lockstore.Inspector](store)
	if !ok {
		return nil
	}
	_, err := s.Inspect(ctx, "lockctl")
	if err == nil {
		return nil
	}
	status := exit.Unavailable
	if errors.Is(err, lockstore.ErrCorrupt) {
		status = exit.Config
	}
	return &exit.Error{Status: status, Err: fmt.Errorf("--store, %s: %w", Variable, short(err))}
}

// Check returns what the store would have changed in its server's set-up.
func Check(ctx context.Context, store lockstore.Store) ([]lockstore.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, ok := lockstore.As[lockstore.Checker](store)
	if !ok {
		return nil, nil
	}
	return s.Check(ctx)
}
