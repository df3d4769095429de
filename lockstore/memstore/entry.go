package memstore

import (
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// entry is what the store knows of one key. The zero entry is a new key.
type entry struct {
	owner   lockstore.Owner // of the last lease, also after its end; "" after a release
	fence   lockstore.Fence // of the last grant
	expires time.Time       // the end of the lease, or without an owner of the cooldown
	holder  string          // of the last grant, encoded
	endings []ending        // oldest first
}

// ending is an acquisition that is over.
type ending struct {
	owner lockstore.Owner
	how   how
}

type how int

const (
	released how = iota // or abandoned
	expired             // and the key was granted to another
)

const maxEndings = 16

// taken reports whether no other owner may get the key now: a lease is live, or the
// key is in its cooldown.
func (e entry) taken(now time.Time) bool { return now.Before(e.expires) }

// holds reports whether this lease is live. It is false for Fence 0.
func (e entry) holds(l lockstore.Lease, now time.Time) bool {
	return e.owner == l.Owner && e.fence == l.Fence && e.taken(now)
}

func (e entry) ending(o lockstore.Owner) (how, bool) {
	for _, p := range e.endings {
		if p.owner == o {
			return p.how, true
		}
	}
	return 0, false
}

// end adds an ending. It makes a new slice, because copies of the entry share the
// old one.
func (e *entry) end(o lockstore.Owner, h how) {
	first := max(0, len(e.endings)-maxEndings+1)
	e.endings = append(slices.Clone(e.endings[first:]), ending{o, h})
}
