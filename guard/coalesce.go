package guard

import (
	"context"

	"github.com/lambdalock/lambdalock/lockstore"
)

type eventKey struct{}

// WithEventID returns a context for the run of one event. id is what the event's source sends it again by, such as the id of a
// message, see Options.Coalesce.
func WithEventID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, eventKey{}, id)
}

// Coalesces says whether a run of Do may be covered, see Options.Coalesce. Adapters of batches ask it: one run does the work of all events of a
// batch for one key.
func (g *Guard) Coalesces() bool { return g.Validate() == nil && g.opt.Coalesce != "" }

// eventID is the id of the event of a run that coalesces. It sends nothing.
func (g *Guard) eventID(ctx context.Context) (id string, err error) {
	if g.opt.Coalesce == "" {
		return "", nil
	}
	id, _ = ctx.Value(eventKey{}).(string)
	if id == "" && g.opt.EventID != nil {
		id = g.opt.EventID(ctx)
	}
	if id == "" {
		return "", lockstore.Invalidf("guard: Coalesce is %q, and the event of this run has no id; want one of WithEventID or Options.EventID", g.opt.Coalesce)
	}
	return id, nil
}
