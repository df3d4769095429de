// Command slow is a function that calls a slow provider, at most LOCK_MAX_HOLDERS at a time.
package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() {
	g := boot.MustGuardFromEnv(redisstore.Opener)
	provider := boot.MustURLFromEnv("PROVIDER_URL").String()
	key := func(context.Context, struct{}) (string, error) { return "provider", nil }
	boot.Start(g, guard.Wrap(g, key, func(ctx context.Context, _ guard.Lock, _ struct{}) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, provider, nil)
		if err != nil {
			return "", err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return "", fmt.Errorf("the provider answers %s", answer.Status)
		}
		return "done", context.Cause(ctx) // an answer that was read after the end of the lease may be too late
	}))
}
