package memstore

import (
	"slices"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/leasesearch"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestSearch(t *testing.T) {
	sizes := []leasesearch.Size{{Clients: 2, Breaks: true}, {Clients: 2, Dead: 2, Healthy: true}}
	if verifyrecord.Full() {
		sizes = []leasesearch.Size{
			{Clients: 2, Earlier: 2, Breaks: true}, {Clients: 3, Earlier: 1}, {Clients: 2, Dead: 1, Breaks: true},
			{Clients: 2, Dead: 3}, {Clients: 2, Dead: 3, Healthy: true},
			{Clients: 2, Earlier: 1, Dead: 2, Healthy: true}, {Clients: 3, Dead: 1, Healthy: true},
		}
	}
	leasesearch.Verify(t, "every state of a few clients of the store in memory", func() leasesearch.Store {
		s := &searched{}
		s.Store = New(func() time.Time { return s.time })
		return s
	}, sizes,
		"The search has one key and a TTL of two ticks. Each client has at most one earlier owner with requests on their way. With 3 clients at most one of them has such an owner. With 2 clients both have one in some searches.",
		"The search with a queue has no renewals and no fenced writes, a cooldown of one tick, and at most 3 places whose owners no client has any more.",
		"The clients of the search are a model of the guard. The guard itself is simulated, and so are the stores on Redis and DynamoDB.")
}

// searched is the store of the search.
type searched struct {
	*Store
	time time.Time
}

// hows are in the order of leasesearch.How, without None.
var hows = []rules.How{rules.Released, rules.Expired, rules.Completed}

// revoked stands for the owner of a lease that was revoked.
const revoked lockstore.Owner = "revoked by an operator"

func (s *searched) Put(e leasesearch.Entry, now time.Time, _ leasesearch.Clocks) {
	s.time = now
	next := rules.State{LastFence: e.Fence}
	switch {
	case e.Owner != "":
		h := rules.Holder{Owner: e.Owner, Fence: e.Fence, MaxHolders: 1, Since: e.Ends.Add(-leasesearch.TTL), TTL: leasesearch.TTL}
		if e.Owner == revoked {
			h.Owner, h.Revoked = "", true
		}
		next.Holders = []rules.Holder{h}
	case e.Kept:
		next.Closed = rules.Closed{Since: e.Ends.Add(-leasesearch.Cooldown), For: leasesearch.Cooldown}
	default:
		next.Freed = e.Ends
	}
	for _, o := range e.Queue {
		next.Queue = append(next.Queue, rules.Waiter{Owner: o, MaxHolders: 1})
	}
	for _, p := range e.Endings {
		next.Ended = append(next.Ended, rules.Ended{Owner: p.Owner, How: hows[p.How-1]})
	}
	s.write(leasesearch.Key, next)
}

func (s *searched) Get() leasesearch.Entry {
	state := s.states[leasesearch.Key]
	e := leasesearch.Entry{Fence: state.LastFence, Ends: state.Freed, Kept: state.Closed.For > 0}
	if e.Kept {
		e.Ends = state.Closed.End()
	}
	for _, h := range state.Holders {
		if e.Owner = h.Owner; h.Revoked {
			e.Owner = revoked
		}
		if h.End().After(e.Ends) {
			e.Ends = h.End()
		}
	}
	for _, p := range state.Queue {
		e.Queue = append(e.Queue, p.Owner)
	}
	for _, p := range state.Ended {
		e.Endings = append(e.Endings, leasesearch.Ending{Owner: p.Owner, How: leasesearch.How(slices.Index(hows, p.How) + 1)})
	}
	return e
}
