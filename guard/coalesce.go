package guard

import (
	"context"
	"fmt"
)

type eventKey struct{}

// WithEventID returns a context for the run of one event, see Options.EventID. An empty id changes nothing.
func WithEventID(ctx context.Context, id string) context.Context {
	if id == "" {
		return ctx
	}
	return context.WithValue(ctx, eventKey{}, id)
}

// Coalesces says whether the run of one event may do the work of others, see Options.Coalesce. Adapters of batches ask it: there one run does the
// work of all events of a batch for one key.
func (g *Guard) Coalesces() bool { return g.Validate() == nil && g.opt.Coalesce != "" }

// eventID is the id of the event of a run that coalesces. That there is none is a mistake in the program. It sends nothing. Do calls it before its run
// begins, and returns the error as it is: there is no report.
func (g *Guard) eventID(ctx context.Context) (id string, err error) {
	if g.opt.Coalesce == "" {
		return "", nil
	}
	id, _ = ctx.Value(eventKey{}).(string)
	if id == "" && g.opt.EventID != nil {
		id = g.opt.EventID(ctx)
	}
	if id == "" {
		return "", fmt.Errorf("guard: Coalesce is %q, and the event of this run has no id; want one of WithEventID or Options.EventID", g.opt.Coalesce)
	}
	return id, nil
}
