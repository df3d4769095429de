//go:build !race

// The search has one goroutine. The race detector would find nothing and make it ten times as
// slow, so make test leaves it to make verify.

package memstore

import (
	"slices"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/leasesearch"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
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
var hows = []how{released, expired, kept}

func (s *searched) Put(e leasesearch.Entry, now time.Time, _ leasesearch.Clocks) {
	s.time = now
	next := entry{owner: e.Owner, fence: e.Fence, expires: e.Ends, freed: e.Ends, queue: e.Queue}
	for _, p := range e.Endings {
		next.end(p.Owner, hows[p.How-1])
	}
	s.write(leasesearch.Key, next)
}

func (s *searched) Get() leasesearch.Entry {
	e := s.entries[leasesearch.Key]
	next := leasesearch.Entry{Owner: e.owner, Fence: e.fence, Ends: e.expires, Queue: e.queue}
	if e.freed.After(e.expires) {
		next.Ends = e.freed
	}
	for _, p := range e.endings {
		next.Endings = append(next.Endings, leasesearch.Ending{Owner: p.owner, How: leasesearch.How(slices.Index(hows, p.how) + 1)})
	}
	return next
}
