package memstore

import (
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// entry is what is known of one key. The zero entry is a key that nobody has
// written.
type entry struct {
	owner   lockstore.Owner // of the lease, also when it is dead; "" when there is none
	fence   lockstore.Fence // of the last grant
	expires time.Time       // the key is closed until then
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

// closed says that nobody new may have the key. A key without an owner is
// closed after ReleaseAfter.
func (e entry) closed(now time.Time) bool { return now.Before(e.expires) }

// holds says that this lease is live. For an abandon, Fence 0, it is not.
func (e entry) holds(l lockstore.Lease, now time.Time) bool {
	return e.owner == l.Owner && e.fence == l.Fence && e.closed(now)
}

func (e entry) ending(o lockstore.Owner) (how, bool) {
	for _, p := range e.endings {
		if p.owner == o {
			return p.how, true
		}
	}
	return 0, false
}

// end makes a new slice, because copies of the entry share the old one.
func (e *entry) end(o lockstore.Owner, h how) {
	first := max(0, len(e.endings)-maxEndings+1)
	e.endings = append(slices.Clone(e.endings[first:]), ending{o, h})
}
