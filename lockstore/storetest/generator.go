package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// step is a request of a sequence, after some time. Owners and fences are numbers in the
// order in which they appeared.
type step struct {
	lapse   time.Duration
	kind    driver.Kind
	owner   int
	fence   int
	ttl     time.Duration
	most    int           // MaxHolders
	join    bool          // of Acquire, AtOnce of Revoke, Effect of Resolve
	parked  time.Duration // of an Acquire
	event   int           // of an Acquire that coalesces, see works
	extends bool          // an Acquire with the fence
	result  bool
	far     int   // not 0: another fence, see request
	noNote  bool  // the caller has forgotten the store's note
	unheard bool  // the reply is lost
	looks   bool  // an Inspect follows, also if nothing has changed
	inside  *step // another owner's request, which arrives during this one
	at      int   // before the first, second or third request of the store
	again   bool  // that request is the one before it, sent again after a lost reply
	beside  bool  // another request arrives meanwhile, so what a refusal says of the holder may be of before it
	blurred bool  // and so may be what the answer to a Revoke says of the key
}

func (s step) String() string {
	text := fmt.Sprintf("%v later: %s owner %d, fence %d, %v, MaxHolders %d, join/now/effect %t, parked %v, extends %t, result %t, event %d",
		s.lapse, s.kind, s.owner, s.fence, s.ttl, s.most, s.join, s.parked, s.extends, s.result, s.event)
	if s.far > 0 {
		text += fmt.Sprint(", with another fence, ", s.far)
	}
	if s.unheard {
		text += ", and the reply is lost"
	}
	if s.inside != nil {
		text += fmt.Sprintf("\n    before request %d of it, after a lost reply %t: %s", s.at, s.again, s.inside)
	}
	return text
}

// sequences is how many random sequences Run makes by default, if waiting takes no time.
const sequences = 500

// byDefault is fewer under the race detector: it looks for races, and each sequence of requests has
// the same ones.
func byDefault() int {
	if verifyrecord.WithRaceDetector {
		return sequences / 10
	}
	return sequences
}

// longest bounds a random sequence. On the wall clock sequences are shorter outside make verify, and no
// time passes before most of their requests.
const (
	longest      = 40
	people       = longest + lockstore.MaxHolders // that a sequence may have
	shortest     = 20
	onTheClock   = 12
	unheardEvery = 8 // requests, in a sequence with lost replies
)

// generator makes the steps of a sequence.
type generator struct {
	*rand.Rand
	length  int
	virtual bool
	crowd   bool          // most requests are about the queue
	most    [3]int        // MaxHolders of the owners, one after the other
	unheard bool          // some replies are lost
	turn    time.Duration // of those owners that park; 0: none does
	events  bool          // some acquires coalesce
	ttl     time.Duration // the longest
	opening int           // the first steps are by owners that come one after the other, and wait
	// What the callers know.
	leases  map[int]int // owner -> the number of its fence
	holders []int
	owners  int
	doubt   bool // the key is in doubt
	revoked int  // an owner whose lease is revoked, or -1
	handed  int  // an owner that was handed the key and has not asked since, or -1
}

func newGenerator(c *check, random *rand.Rand) *generator {
	g := &generator{Rand: random, virtual: c.virtual, crowd: random.IntN(2) == 0, most: [3]int{1, 1, 1}, leases: map[int]int{}, revoked: -1, handed: -1, length: onTheClock}
	if c.virtual || verifyrecord.Full() {
		g.length = shortest + random.IntN(longest-shortest+1)
	}
	if random.IntN(2) == 0 {
		const most = lockstore.MaxHolders
		g.most = [][3]int{{1, 2, 2}, {2, 1, 2}, {2, 2, 2}, {3, 2, 1}, {3, 1, 3}, {most, most, 1}, {1, most, most}}[random.IntN(7)]
	}
	if random.IntN(3) == 0 {
		g.opening = 3 + random.IntN(5)
	}
	if g.ttl = 10 * time.Second; random.IntN(8) == 0 {
		g.ttl = lockstore.MaxTTL
	}
	g.events = random.IntN(3) == 0
	g.unheard = c.LoseReplies != nil && c.virtual && random.IntN(4) == 0
	if c.Parks && random.IntN(3) == 0 {
		g.turn = 3 * time.Second // another than that of a place where somebody waits
		if random.IntN(2) == 0 {
			g.turn = driver.MaxParkedTurn - time.Duration(random.IntN(2))*edgeTTL
		}
	}
	return g
}

// next is the next step. Some have another one inside.
func (g *generator) next(m *comparison, ran []step) step {
	s := g.alone(m, ran)
	if m.Inside == nil || !m.virtual || g.IntN(3) > 0 || s.kind == driver.AwaitTurn || s.unheard {
		return s
	}
	other := g.alone(m, ran)
	if other.kind != driver.AwaitTurn && other.owner != s.owner {
		other.lapse, other.unheard = 0, false
		s.inside, s.at, s.again = &other, 1+g.IntN(3), g.IntN(2) == 0
	}
	return s
}

func (g *generator) alone(m *comparison, ran []step) (s step) {
	if n := len(ran); n > 0 {
		g.learn(m, ran[n-1].owner)
		if other := ran[n-1].inside; other != nil {
			g.owners = max(g.owners, other.owner+1)
		}
		if g.IntN(8) == 0 { // a repeat, or a late duplicate
			late := 6
			if g.IntN(3) == 0 {
				late = n
			}
			s = ran[n-1-g.IntN(min(n, late))]
			s.lapse, s.unheard, s.looks, s.inside = 0, false, false, nil
			return s
		}
	}
	switch n := g.IntN(24); {
	case len(ran) < g.opening:
	case n < 2 && g.virtual:
		s.lapse = time.Duration(g.Int64N(int64(g.ttl + g.ttl/2)))
	case n < 2 || n < 8 && g.virtual:
		s.lapse = time.Duration(g.Int64N(int64(4 * time.Second)))
	}
	s.owner = max(0, g.owners-g.IntN(7)) // a new one, or one of the last
	s.fence = g.leases[s.owner]
	last := len(m.fences) - 1
	if g.IntN(10) == 0 {
		s.fence = g.IntN(last + 1)
	}
	if g.IntN(16) == 0 {
		s.far = 1 + g.IntN(len(farFences(0)))
	}
	s.ttl = time.Second + time.Duration(g.IntN(int((g.ttl-time.Second)/time.Millisecond)))*time.Millisecond
	s.result, s.join, s.looks, s.noNote = g.IntN(2) == 0, g.IntN(4) > 0, g.IntN(4) == 0, g.IntN(8) == 0
	s.unheard = g.unheard && g.IntN(unheardEvery) == 0
	kinds := append(make([]driver.Kind, 0, 16),
		driver.Acquire, driver.Acquire, driver.Acquire, driver.Acquire, driver.Acquire, driver.Renew, driver.Renew,
		driver.Release, driver.Release, driver.Release, driver.Abandon, driver.Leave, driver.MarkStarted, driver.Resolve,
	)
	if g.IntN(2) == 0 {
		kinds = append(kinds, driver.Complete)
	}
	if g.crowd && g.IntN(2) == 0 {
		kinds = append(kinds[:0], driver.Acquire, driver.Acquire, driver.Acquire, driver.Acquire, driver.Leave, driver.Leave, driver.MarkStarted)
		s.owner, s.join = max(0, g.owners-g.IntN(8)), true
		s.fence = g.leases[s.owner]
	}
	if g.IntN(2) == 0 {
		kinds = append(kinds, driver.Revoke)
	}
	s.kind = kinds[g.IntN(len(kinds))]
	if g.doubt && g.IntN(3) == 0 {
		s.kind = driver.Resolve
	}
	switch s.kind {
	case driver.Renew, driver.Release, driver.MarkStarted, driver.Complete: // most come from those who hold the key
		if len(g.holders) > 0 && g.IntN(4) > 0 {
			s.owner = g.holders[g.IntN(len(g.holders))]
			s.fence = g.leases[s.owner]
		}
	case driver.Resolve, driver.Revoke: // an operator names the last grant
		if last > 0 && g.IntN(5) > 0 {
			s.fence = last
		}
	}
	if g.revoked >= 0 && g.IntN(3) == 0 { // its owner does not know
		s.kind = []driver.Kind{driver.Acquire, driver.Renew, driver.Release, driver.MarkStarted, driver.Complete}[g.IntN(5)]
		s.owner, s.fence = g.revoked, g.leases[g.revoked]
	}
	if g.handed >= 0 && g.IntN(4) == 0 || g.owners > 0 && g.IntN(32) == 0 {
		s.kind = driver.AwaitTurn
		if g.IntN(4) > 0 {
			s.owner = max(g.handed, 0)
		}
		if s.owner = min(s.owner, g.owners-1); g.parks(s.owner) {
			s.kind = driver.Acquire
		}
	}
	if len(ran) < g.opening {
		s.kind, s.owner, s.fence, s.join = driver.Acquire, g.owners, 0, true
	}
	switch s.kind {
	case driver.Renew:
		// Renew for less than the TTL may make the lease end earlier or later, see lockstore.Store.
		s.ttl = max(g.ttl, g.turn) // a lease that was handed over to a parked place has the time of its turn
	case driver.Complete:
		if g.IntN(8) == 0 {
			s.ttl = lockstore.MaxResultTime - time.Duration(g.Int64N(int64(lockstore.MaxResultTime/2)))
		}
	case driver.Acquire:
		s.most = g.most[s.owner%len(g.most)]
		if g.parks(s.owner) {
			s.parked = g.turn
		}
		if g.events && s.join {
			s.event = g.IntN(len(works))
		}
		s.extends = s.fence > 0 && g.IntN(3) == 0
	}
	return s
}

// works are the works and the events of acquires. The first does not coalesce.
var works = [...]struct{ work, event string }{{"", ""}, {"index", "0123456789abcdef"}, {"index", "0123456789abcdeF"}, {"sort-2.0", "0123456789abcdef"}}

// parks reports whether an owner parks, so that it never waits.
func (g *generator) parks(owner int) bool { return g.turn > 0 && owner%3 == 1 }

// learn notes what the callers know after a step of an owner.
func (g *generator) learn(m *comparison, owner int) {
	b := m.beliefs[0]
	g.owners, g.holders, g.doubt, g.revoked, g.handed = max(g.owners, owner+1), g.holders[:0], false, -1, -1
	for _, h := range b.state.Holders {
		g.doubt = g.doubt || h.Started && !h.End().After(m.clock().Early)
		fence := slices.Index(b.fences, h.Fence)
		for i := 0; i < g.owners && fence > 0; i++ {
			if m.owners[i] == h.Owner {
				g.leases[i], g.holders = fence, append(g.holders, i)
				if h.Revoked {
					g.revoked = i
				}
				if h.HandedOver {
					g.handed = i
				}
			}
		}
	}
}
