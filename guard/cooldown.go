package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// WithCooldown returns a Do with a cooldown: after work that returned nil, nobody can
// acquire the key for the time d. So a second trigger of the same work finds the key
// busy. d counts from the release. On DynamoDB the local clock gives its end; if the reply shows that
// this clock was wrong, the end is written again. After an error, a panic or a
// lost lock there is no cooldown. If the release with the
// cooldown fails, Report.ReleaseErr says so; the key may then be free from the end of the lease
// on, before the cooldown would have ended.
//
// A run of this function that finds the key in its cooldown does not wait, and State of its
// LockBusy is lockstore.Cooldown. A plain Do waits if the cooldown ends within its
// Options.Wait.
//
// It is an error if d is not within lockstore.MinTTL and lockstore.MaxTTL, or if MaxHolders is above 1.
func (g *Guard) WithCooldown(d time.Duration) (func(ctx context.Context, key string, work func(context.Context, Lock) error) error, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if err := g.alone("a cooldown"); err != nil {
		return nil, err
	}
	if d < lockstore.MinTTL || d > lockstore.MaxTTL {
		return nil, fmt.Errorf("guard: the cooldown is %v; want %v to %v", d, lockstore.MinTTL, lockstore.MaxTTL)
	}
	return func(ctx context.Context, key string, work func(context.Context, Lock) error) error {
		return g.do(ctx, key, d, work)
	}, nil
}
