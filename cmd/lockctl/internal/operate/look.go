package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
)

// lookEvery is how often watch, and revoke --wait, look at a key.
const lookEvery = time.Second

// looker looks at a key again and again. A store that has answered once and does not answer
// later ends nothing: the next look may succeed.
type looker struct {
	*operator
	pause    time.Duration // before the next look
	answered bool          // at least once: its address is right
	told     bool          // that it does not answer
}

// look reads the key, but for the first time not before the pause. While the store does not answer it says so, once, and
// tries again.
func (l *looker) look(ctx context.Context) (lockstore.Status, error) {
	for {
		if l.pause > 0 && pause.For(ctx, l.pause) != nil {
			return lockstore.Status{}, exit.Ended(ctx)
		}
		l.pause = lookEvery
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
	}
}
