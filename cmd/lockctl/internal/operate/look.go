package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/lockstore"
)

// lookEvery is how often watch, and revoke --wait, look at a key.
const lookEvery = time.Second

// looker looks at a key again and again. A store that has answered once and does not answer
// later ends nothing: the next look may succeed.
type looker struct {
	*operator
	answered bool // at least once: its address is right
	told     bool // that it does not answer
}

// look reads the key. While the store does not answer it says so, once, and tries again.
func (l *looker) look(ctx context.Context) (lockstore.Status, error) {
	for {
		status, err := l.inspect(ctx)
		switch {
		case ctx.Err() != nil: // then the error may be any
			return lockstore.Status{}, exit.Ended(ctx)
		case err == nil:
			if l.told {
				fmt.Fprintln(l.err, "lockctl: the store answers again")
			}
			l.answered, l.told = true, false
			return status, nil
		case !l.answered || exit.Status(err) != exit.Unavailable:
			return lockstore.Status{}, err
		case !l.told:
			fmt.Fprintf(l.err, "lockctl: warning: the store does not answer; lockctl goes on waiting: %v\n", err)
			l.told = true
		}
		if err := untilNextLook(ctx, lookEvery); err != nil {
			return lockstore.Status{}, err
		}
	}
}

// untilNextLook waits for d.
func untilNextLook(ctx context.Context, d time.Duration) error {
	if pause.For(ctx, d) != nil {
		return exit.Ended(ctx)
	}
	return nil
}
