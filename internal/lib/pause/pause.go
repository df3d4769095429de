// Package pause waits.
package pause

import (
	"context"
	"time"
)

// For returns nil after d, or earlier with the context's error.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
