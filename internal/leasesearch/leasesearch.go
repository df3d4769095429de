// Package leasesearch searches every state that a few clients and a store can reach.
package leasesearch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Verify visits every state that a few clients and the store can reach, with every order of
// their steps, for each size. The store is the real one; a call of it is one step. The clients
// are models of a guard: they send an acquire again if no answer comes, abandon in the end,
// trust a lease from before the first request on, renew, write with the fence, release, and
// start again with a new owner, without end. A request may arrive at any time after it was sent, many times or
// never, even if its client does not wait any more. Time may pass between any two steps,
// so a client may stand still at any point. It may also vanish at any point.
//
// What must be true in every state:
//   - A client that trusts its lease has the lease. So no two clients trust.
//   - Each grant has a larger fence than all earlier grants.
//   - An owner that has released or abandoned never has the key again.
//   - A client that was told so holds nothing.
//   - A renewal never revives a lease, and it loses no live one.
//
// With Breaks, an operator may break a live lease at any time. Then its holder may trust it until
// its end, as before, if nobody else is granted the key until then. The end and the queue stay.
//
// Each control breaks one rule, and the search must find a state that shows it. The controls
// without a queue have the clocks of the first size.
//
// With a queue, clients also ask for a place, wait, ask again and leave, some releases begin
// a cooldown, and the places of clients that are gone remain; Dead bounds these places.
// Such a search has no renewals and no writes. In some of them the first client is healthy:
// its requests arrive once, and no time passes while a request of it is under way or while
// its turn has come and it has not asked. Everything may happen to the others. Then this
// must be true, too:
//   - Neither the holder, nor an owner that has ended or left, has a place, and nobody waits
//     in a cooldown.
//   - Each client that waits can be granted the key, at the latest when its turn comes.
//   - A new owner can be granted the key after at most MaxTurns turns.
//   - A healthy client that had fewer than MaxTurns places before it keeps its place until
//     it is served or leaves, or until a cooldown. So nobody overtakes it.
//   - Between two grants a free key is kept from a healthy client for at most one turn for
//     each place before it.
//
// The number of states is finite, because a state has only differences: the time that is
// left and not the date, the order of fences and not their numbers, and clients without an
// order. The search forgets an owner when its client has a new owner and no request of the
// old owner can arrive any more. Size bounds the number of such owners.
func Verify(t *testing.T, name string, open func() Store, sizes []Size, limits ...string) {
	verifyrecord.SkipSearchWithRace(t)
	result := verifyrecord.Result{Kind: verifyrecord.Search, Name: name, Counts: map[string]int64{}, Limits: limits}
	began := time.Now()
	for _, size := range sizes {
		s := search(open, size, rules{})
		t.Logf("%v: %d states, %d steps deep, %v", size, s.states(), s.depth, time.Since(began))
		if s.bad != "" {
			t.Fatalf("%s:\n%s", s.bad, s.trace)
		}
		result.Counts[fmt.Sprintf("states with %v", size)] = int64(s.states())
		result.Counts[fmt.Sprintf("steps with %v", size)] = int64(s.depth)
	}
	controls := []control{
		{"a resource that compares no fences", rules{unfenced: true}, "a stale write"},
		{"M20: trust that counts from the reply", rules{trustFromReply: true}, "trusts a lease that it does not have"},
		{"trust that ends a tick after the store's lease", rules{longTrust: true}, "trusts a lease that it does not have"},
		{"an acquire again after an abandon without an answer", rules{askAfterAbandon: true}, "trusts a lease that it does not have"},
		{"M18: a store that forgets abandoned owners", rules{forgetful: true}, "a late duplicate"},
		{"M08: a renewal after the end of the lease", rules{revive: true}, "revived"},
		{"M05: a release that does not compare the owner", rules{releaseAny: true}, "trusts a lease that it does not have"},
		{"M31: a queue whose turns have no end", rules{queue: endlessTurns}, "can never be granted"},
		{"M32: callers without a place pass by the queue", rules{queue: passBy}, "lost its place"},
		{"a queue whose last owner is served first", rules{queue: lastFirst}, "somebody got a place before"},
		{"a grant that keeps the owner's place", rules{queue: grantKeepsPlace}, "the holder has a place"},
		{"an abandon that keeps the owner's place", rules{queue: abandonKeepsPlace}, "an owner that has ended has a place"},
		{"a leave that keeps the owner's place", rules{queue: leaveKeepsPlace}, "an owner that has left has a place"},
		{"a leave that gives the next owner the rest of the turn", rules{queue: leaveKeepsTurn}, "lost its place"},
		{"a cooldown that keeps the queue", rules{queue: cooldownKeepsQueue}, "somebody waits in a cooldown"},
	}
	if slices.ContainsFunc(sizes, func(s Size) bool { return s.Breaks }) {
		controls = append(controls, control{"a break that opens the key at once", rules{breakNow: true}, "trusts a lease that it does not have"})
	}
	for _, c := range controls {
		size := Size{Clients: 2, Earlier: 1, Clocks: sizes[0].Clocks, Breaks: c.rules.breakNow}
		if c.rules.queue != "" {
			size.Dead, size.Healthy, size.Clocks = 2, true, nil
		}
		s := search(open, size, c.rules)
		if !strings.Contains(s.bad, c.want) {
			t.Fatalf("%s: found %q; want %q\n%s", c.what, s.bad, c.want, s.trace)
		}
		t.Logf("%s: %s after %d steps, %d states:\n%s", c.what, s.bad, s.depth, s.states(), s.trace)
		result.Controls = append(result.Controls, verifyrecord.Control{What: c.what, Shown: true, Saw: fmt.Sprintf("%s, after %d steps", s.bad, s.depth)})
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}

// control is a search that has to find a state in which something is wrong.
type control struct {
	what  string
	rules rules
	want  string
}

// rules are the rules that a control breaks.
type rules struct {
	unfenced, trustFromReply, longTrust, askAfterAbandon, forgetful, revive, releaseAny, breakNow bool
	queue                                                                                         queueRule
}

// queueRule is a rule of the queue that a control breaks, or "".
type queueRule string

const (
	endlessTurns       queueRule = "turns without an end"
	passBy             queueRule = "callers without a place pass by"
	lastFirst          queueRule = "the last place is the first"
	grantKeepsPlace    queueRule = "a grant keeps the place"
	abandonKeepsPlace  queueRule = "an abandon keeps the place"
	leaveKeepsPlace    queueRule = "a leave keeps the place"
	leaveKeepsTurn     queueRule = "a leave keeps the turn"
	cooldownKeepsQueue queueRule = "a cooldown keeps the queue"
)

// Size is the number of clients, and of earlier owners whose requests may still arrive: at
// most one for each client.
type Size struct {
	Clients, Earlier int
	Dead             int      // places of owners that are forgotten; 0: no client asks for a place
	Healthy          bool     // the first client is
	Breaks           bool     // an operator may break leases; the store is a lockstore.Breaker
	Clocks           []Clocks // what a call may read besides the right time
}

// Clocks are how far the times that a call reads are from the right time.
type Clocks struct {
	Read          time.Duration // when it reads
	First, Second time.Duration // when it writes
}

// Store is a store that the search puts into a state. It has one key.
type Store interface {
	lockstore.Store
	lockstore.Keeper
	lockstore.Queuer
	// Put sets what is kept for the key, and the time.
	Put(e Entry, now time.Time, c Clocks)
	// Get returns what is kept for the key.
	Get() Entry
}

// Entry is what a store keeps for a key.
type Entry struct {
	Owner   lockstore.Owner // of the last lease, also after its end; "" after a release; another text if it was broken
	Fence   lockstore.Fence // of the last grant
	Ends    time.Time       // the end of the lease or of the cooldown, or since when the key is free
	Kept    bool            // the store knows that it was a cooldown, also after its end
	Queue   []lockstore.Owner
	Endings []Ending
}

// Ending is an acquisition that is over.
type Ending struct {
	Owner lockstore.Owner
	How   How
}

// How an acquisition has ended.
type How byte

const (
	None How = iota
	Released
	Expired
	Kept
)

func (s Size) queue() bool { return s.Dead > 0 }

func (s Size) String() string {
	text := fmt.Sprintf("%d clients, %d earlier owners", s.Clients, s.Earlier)
	if s.queue() {
		text += fmt.Sprintf(", a queue with %d dead places", s.Dead)
	}
	if s.Healthy {
		text += ", a healthy client"
	}
	if s.Breaks {
		text += ", an operator"
	}
	return text
}

const (
	Key       = "k" // the search's only one
	tick      = time.Second
	searchTTL = 2 // ticks
	TTL       = searchTTL * tick
	Cooldown  = tick
	turn      = byte(lockstore.Turn / tick)
)

// searchNow is the time in every state. firstFence is the smallest fence. A state keeps
// only differences of times and fences. searchNow is smaller than every fence, so a new
// fence is the previous fence + 1.
var searchNow = time.UnixMicro(firstFence)

const firstFence = 1_000_000_000

// phase is what a client does.
type phase byte

const (
	idle phase = iota
	acquiring
	waiting // with a place, for its turn
	leaving
	abandoning
	working
	checked // working, and about to write: it has just checked its lease
	releasing
)

// answer is a reply on its way to a client.
type answer byte

const (
	none answer = iota
	yes
	busy
	placed // busy, with a place in the queue
	refused
)

// requests are the requests that may arrive.
type requests byte

const (
	acquire requests = 1 << iota
	renew
	release
	abandon
	leave
	coolDown // a release with a cooldown of a tick

	breakLease // of the operator, which no client sends
)

var requestNames = map[requests]string{acquire: "acquire", renew: "renew", release: "release", abandon: "abandon", leave: "leave", coolDown: "release with a cooldown"}

// owner is one acquisition.
type owner struct {
	sent   requests
	queues bool // its acquires ask for a place
	over   bool // the store has ended the acquisition, or refuses it for good
	broken bool // an operator broke the lease, and nobody was granted the key since
	mark
}

// mark is what the store knows of an owner.
type mark struct {
	has        bool // the store's owner, alive or dead
	remembered How
	place      byte // in the queue, 0 without one
}

// client is the state of one client.
type client struct {
	phase     phase
	ambiguous bool   // acquiring: no answer came to a request
	time      byte   // acquiring: ticks since the first request; working: ticks of trust
	call      byte   // working: a renewal waits for its answer: ticks since then, and one
	answer    answer // on its way to the client
	until     byte   // ticks of trust in the answer
	fence     byte   // checked: of the next write
	credit    byte   // of the healthy client with a place: ticks for which the key may still be free
	dropped   bool   // of the healthy client: a cooldown has ended its place
	now       owner
	earlier   owner
}

func (p client) works() bool { return p.phase == working || p.phase == checked }

// node is one state of the search.
type node struct {
	held    bool // the store's entry has an owner: of a client, or a forgotten one
	kept    bool // Entry.Kept
	left    byte // ticks until the end of the lease or, without an owner, of the cooldown
	free    byte // with places and without a live lease: ticks since the key is free
	places  byte // in the queue; those that no owner has are dead
	healthy bool // the first client is
	fence   byte // of the last grant
	written byte // the largest fence that the resource has accepted
	clients [3]client
}

// owner is the present or the earlier acquisition of a client.
func (n *node) owner(who int, earlier bool) *owner {
	if earlier {
		return &n.clients[who].earlier
	}
	return &n.clients[who].now
}

var ownerNames = [3][2]lockstore.Owner{{"A", "a"}, {"B", "b"}, {"C", "c"}}

const forgotten lockstore.Owner = "x"

// deadPlaces are the names of forgotten owners by their places.
var deadPlaces = func() (names [16]lockstore.Owner) {
	for i := range names {
		names[i] = lockstore.Owner(fmt.Sprint("x", i))
	}
	return names
}()

func ownerName(who int, earlier bool) lockstore.Owner {
	if earlier {
		return ownerNames[who][1]
	}
	return ownerNames[who][0]
}

// each calls f with each owner that the state knows.
func (n *node) each(f func(o *owner, name lockstore.Owner)) {
	for who := range n.clients {
		f(&n.clients[who].now, ownerNames[who][0])
		f(&n.clients[who].earlier, ownerNames[who][1])
	}
}

// entry is the store's entry.
func (n *node) entry() Entry {
	e := Entry{Fence: firstFence + lockstore.Fence(n.fence), Kept: n.kept, Ends: searchNow.Add((time.Duration(n.left) - time.Duration(n.free)) * tick)}
	for i := range n.places {
		e.Queue = append(e.Queue, deadPlaces[i])
	}
	if n.held {
		e.Owner = forgotten
	}
	n.each(func(o *owner, name lockstore.Owner) {
		if o.has {
			e.Owner = name
		}
		if o.place > 0 {
			e.Queue[o.place-1] = name
		}
		if o.remembered != None {
			e.Endings = append(e.Endings, Ending{name, o.remembered})
		}
	})
	return e
}

// setEntry puts the store's entry into the state, without the fence.
func (n *node) setEntry(e Entry) {
	n.held, n.kept = e.Owner != "", e.Kept
	n.left = byte(max(0, e.Ends.Sub(searchNow)) / tick)
	n.places, n.free = byte(len(e.Queue)), 0
	if len(e.Queue) > 0 && n.left == 0 {
		n.free = byte(min(e.free(searchNow)/tick, lockstore.MaxTurns*lockstore.Turn/tick))
	}
	n.each(func(o *owner, name lockstore.Owner) {
		o.mark = mark{has: e.Owner == name, place: byte(e.place(name) + 1)}
		if i := slices.IndexFunc(e.Endings, func(p Ending) bool { return p.Owner == name }); i >= 0 {
			o.remembered = e.Endings[i].How
		}
	})
}

func (e Entry) free(now time.Time) time.Duration { return now.Sub(e.Ends) }

func (e Entry) place(o lockstore.Owner) int { return slices.Index(e.Queue, o) }

// result is the result of a search.
type result struct {
	shards [workers]shard
	depth  int    // steps to the farthest state, or to the bad state
	bad    string // what is wrong in the first bad state
	trace  string // the steps to the bad state
}

const workers = 2

// shard has half of the states, by their hashes, in the order in which they were found.
type shard struct {
	keys  []packed
	from  []uint32 // the state before: index and shard
	slots []uint64 // hash table: index + 1, below the upper half of the hash
}

func (k packed) hash() uint64 {
	h := uint64(0)
	for _, word := range k {
		h ^= word
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>32) * 0x94d049bb133111eb
	}
	return h ^ h>>29
}

// find returns the slot of k, or the empty slot for k.
func (s *shard) find(k packed) (slot uint64, ok bool) {
	mask := uint64(len(s.slots) - 1)
	h := k.hash()
	for slot = h / workers & mask; s.slots[slot] != 0; slot = (slot + 1) & mask {
		if at := s.slots[slot]; at>>32 == h>>32 && s.keys[uint32(at)-1] == k {
			return slot, true
		}
	}
	return slot, false
}

func (s *shard) add(k packed, from uint32) {
	if 3*len(s.keys) >= 2*len(s.slots) {
		s.slots = make([]uint64, max(1<<10, 2*len(s.slots)))
		for i, k := range s.keys {
			slot, _ := s.find(k)
			s.slots[slot] = k.hash()>>32<<32 | uint64(i+1)
		}
	}
	if slot, ok := s.find(k); !ok {
		s.keys, s.from = append(s.keys, k), append(s.from, from)
		s.slots[slot] = k.hash()>>32<<32 | uint64(len(s.keys))
	}
}

func (r *result) states() int {
	n := 0
	for i := range r.shards {
		n += len(r.shards[i].keys)
	}
	return n
}

// search visits all states, the nearest first, until it finds a bad one.
func search(open func() Store, size Size, rules rules) *result {
	type found struct {
		k    packed
		from uint32
	}
	type bad struct {
		what string
		from uint32
	}
	var r result
	var searchers [workers]*searcher
	for w := range searchers {
		searchers[w] = newSearcher(open, size, rules)
	}
	start := node{healthy: size.Healthy}
	var done [workers]int // states whose steps the search has taken
	for i := range r.shards {
		r.shards[i].slots = make([]uint64, 1<<10)
	}
	k := start.pack()
	r.shards[k.hash()%workers].add(k, uint32(k.hash()%workers))
	for more := true; more; r.depth++ {
		var next [workers][workers][]found
		var worst [workers]*bad
		both(func(w int) {
			var from uint32
			s := searchers[w]
			s.visit = func(m node, what string, who int, wrong string) {
				if wrong == "" {
					wrong = m.wrong()
				}
				if wrong != "" && worst[w] == nil {
					worst[w] = &bad{wrong, from}
				}
				k := m.pack()
				if m.dead() > size.Dead {
					return
				}
				to := k.hash() % workers
				if _, ok := r.shards[to].find(k); !ok {
					next[w][to] = append(next[w][to], found{k, from})
				}
			}
			for i := done[w]; i < len(r.shards[w].keys); i++ {
				from = uint32(i*workers + w)
				s.steps(r.shards[w].keys[i].node())
			}
		})
		for _, b := range worst {
			if b != nil {
				r.depth++
				s := searchers[0]
				trace, n := r.path(s, b.from)
				s.visit = func(m node, what string, who int, wrong string) {
					if r.bad == "" && (wrong == b.what || m.wrong() == b.what) {
						r.bad, r.trace = b.what, trace+step(what, who)
					}
				}
				s.steps(n)
				return &r
			}
		}
		more = false
		for w := range workers {
			done[w] = len(r.shards[w].keys)
		}
		both(func(w int) {
			for i := range next {
				for _, f := range next[i][w] {
					r.shards[w].add(f.k, f.from)
				}
			}
		})
		for w := range workers {
			more = more || len(r.shards[w].keys) > done[w]
		}
	}
	r.depth-- // the last round found nothing
	return &r
}

// both runs f for each worker at the same time.
func both(f func(w int)) {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { f(w) })
	}
	wg.Wait()
}

// path is the steps from the start to a state, and that state. In it clients keep their
// numbers; packed states do not keep them.
func (r *result) path(s *searcher, at uint32) (string, node) {
	var keys []packed
	for {
		shard := &r.shards[at%workers]
		from := shard.from[at/workers]
		if from == at {
			break
		}
		keys, at = append(keys, shard.keys[at/workers]), from
	}
	var steps strings.Builder
	n := node{healthy: s.size.Healthy}
	for _, k := range slices.Backward(keys) {
		here := n
		reached := false
		s.visit = func(m node, what string, who int, _ string) {
			if !reached && m.pack() == k {
				reached, here = true, m
				steps.WriteString(step(what, who))
			}
		}
		s.steps(n)
		n = here
	}
	return steps.String(), n
}

func step(what string, who int) string {
	if who < 0 {
		return "  " + what + "\n"
	}
	return fmt.Sprintf("  client %d: %s\n", who, what)
}

// searcher finds the states after one state.
type searcher struct {
	size  Size
	rules rules
	store Store
	known map[question][]outcome
	visit func(m node, what string, who int, bad string)
}

func newSearcher(open func() Store, size Size, r rules) *searcher {
	return &searcher{size: size, rules: r, store: open(), known: map[question][]outcome{}}
}

// steps visits every state that can come next.
func (s *searcher) steps(n node) {
	if bad := s.deadEnd(&n); bad != "" {
		s.visit(n, "nobody moves", -1, bad)
	}
	s.timePasses(n)
	if s.size.Breaks && n.held && n.left > 0 {
		s.operatorBreaks(n)
	}
	for who := range s.size.Clients {
		for _, earlier := range []bool{false, true} {
			sent := n.owner(who, earlier).sent
			for r := acquire; r <= coolDown; r <<= 1 {
				if sent&r != 0 {
					s.arrives(n, who, earlier, r)
				}
			}
		}
		if n.clients[who].answer != none {
			s.receives(n, who)
		}
		s.acts(n, who)
	}
}

// operatorBreaks lets an operator break the lease.
func (s *searcher) operatorBreaks(n node) {
	for _, out := range s.after(&n, forgotten, breakLease, false, 0) {
		m, bad := n, ""
		m.setCell(out.after)
		for who := range n.clients {
			for _, earlier := range []bool{false, true} {
				if o := m.owner(who, earlier); n.owner(who, earlier).has && !o.has {
					o.over, o.broken = true, true
				}
			}
		}
		switch {
		case out.fence != 0 || out.exact && out.answer != yes:
			bad = "the break of a live lease was refused, or changed its fence"
		case s.rules.breakNow || !out.exact:
		case !m.held || m.left != n.left || m.places != n.places || m.free != n.free:
			bad = "a break changed the end of the lease, or the queue"
		}
		s.visit(m, "an operator breaks the lease", -1, bad)
	}
}

func (s *searcher) timePasses(n node) {
	bad := ""
	if n.healthy {
		p := &n.clients[0]
		if p.now.sent != 0 || p.answer != none || p.phase == waiting && n.untilTurn(p.now.place) == 0 {
			return
		}
		if p.now.place > 0 && n.left == 0 {
			if p.credit == 0 {
				bad = "a place has cost more than a turn"
			}
			p.credit = less(p.credit)
		}
	}
	if n.left == 0 && n.places > 0 {
		n.free = min(n.free+1, lockstore.MaxTurns*turn)
	}
	n.left = less(n.left)
	for who := range n.clients {
		p := &n.clients[who]
		switch {
		case p.phase == acquiring:
			p.time = min(p.time+1, searchTTL)
		case p.works():
			p.time = less(p.time)
			if p.call > 0 {
				p.call = min(p.call+1, searchTTL+1)
			}
		}
		if !s.rules.trustFromReply {
			p.until = less(p.until)
		}
	}
	s.visit(n, "time passes", -1, bad)
}

// untilTurn is how many ticks a place waits at most if nobody else moves. Without a place
// nobody waits.
func (n *node) untilTurn(place byte) byte {
	if place == 0 {
		return 1
	}
	return n.left + max(n.free, min(place-1, lockstore.MaxTurns)*turn) - n.free
}

// deadEnd says what is wrong if time passes and nobody moves but one owner.
func (s *searcher) deadEnd(n *node) (bad string) {
	if !s.size.queue() {
		return ""
	}
	granted := func(name lockstore.Owner, after byte) bool {
		return s.after(n, name, acquire, false, after)[0].answer == yes
	}
	if !granted("n", n.left+lockstore.MaxTurns*turn) {
		return "a new owner can never be granted the key"
	}
	for who, p := range n.clients {
		if p.phase == waiting && p.now.place > 0 && !granted(ownerName(who, false), n.untilTurn(p.now.place)) {
			return "a client that waits can never be granted the key"
		}
	}
	return ""
}

// breaks changes the entry before an acquire of the owner, for a control.
func (s *searcher) breaks(e Entry, now time.Time, name lockstore.Owner) Entry {
	place := e.place(name)
	switch {
	case e.free(now) < 0:
	case s.rules.queue == endlessTurns && place != 0 && len(e.Queue) > 0:
		e.Ends = now
	case s.rules.queue == passBy && place < 0:
		e.Ends = e.Ends.Add(-lockstore.MaxTurns * lockstore.Turn)
	}
	return e
}

// broken is the entry after a request, for a control.
func (s *searcher) broken(before, after Entry, r requests, name lockstore.Owner) Entry {
	last := len(after.Queue) - 1
	switch s.rules.queue {
	case lastFirst:
		if last >= len(before.Queue) {
			after.Queue = slices.Concat(after.Queue[last:], after.Queue[:last])
		}
	case grantKeepsPlace:
		if r == acquire && after.Owner == name {
			after.Queue = before.Queue
		}
	case abandonKeepsPlace:
		if r == abandon {
			after.Queue = before.Queue
		}
	case leaveKeepsPlace:
		if r == leave {
			after.Queue = before.Queue
		}
	case leaveKeepsTurn:
		if r == leave {
			after.Ends = before.Ends
		}
	case cooldownKeepsQueue:
		if r == coolDown {
			after.Queue = before.Queue
		}
	}
	return after
}

func less(n byte) byte { return max(n, 1) - 1 }

// acts visits what a client may do without an answer.
func (s *searcher) acts(n node, who int) {
	step := func(what string, change func(p *client)) {
		m := n
		change(&m.clients[who])
		s.visit(m, what, who, "")
	}
	p := n.clients[who]
	healthy := n.healthy && who == 0
	if p.phase != idle && !healthy {
		s.ends(n, who, "vanishes, or goes on without an answer")
	}
	if p.earlier != (owner{}) {
		step("loses its earlier requests", func(p *client) { p.earlier = owner{} })
	}
	switch p.phase {
	case idle:
		step("acquires", func(p *client) { p.phase, p.now.sent = acquiring, acquire })
		if s.size.queue() {
			step("acquires and asks for a place", func(p *client) { p.phase, p.now.sent, p.now.queues = acquiring, acquire, true })
		}
	case acquiring:
		if !p.ambiguous && !healthy {
			step("acquires again", func(p *client) { p.ambiguous = true })
		}
		if !healthy {
			step("abandons", func(p *client) { p.becomes(abandoning, abandon) })
		}
	case waiting:
		step("asks whether it is its turn", func(p *client) { p.waits(acquiring, acquire) })
		if p.ambiguous {
			step("abandons", func(p *client) { p.becomes(abandoning, abandon) })
		} else {
			step("leaves", func(p *client) { p.becomes(leaving, leave) })
		}
	case abandoning:
		if s.rules.askAfterAbandon {
			step("acquires again", func(p *client) { p.becomes(acquiring, 0) })
		}
	case working:
		if p.time > 0 && !s.size.queue() {
			step("checks its lease", func(p *client) { p.phase, p.fence = checked, n.fence })
		}
		step("releases", func(p *client) { p.becomes(releasing, release) })
		if s.size.queue() {
			step("releases with a cooldown", func(p *client) { p.becomes(releasing, coolDown) })
		}
	case checked:
		m := n
		m.clients[who].phase = working
		bad := ""
		if p.fence < n.written && s.rules.unfenced {
			bad = "a stale write was taken"
		}
		m.written = max(n.written, p.fence)
		s.visit(m, "writes", who, bad)
	}
	if p.works() && p.time > 0 && p.call != 1 && !s.size.queue() {
		step("renews", func(p *client) {
			p.call, p.answer, p.until = 1, none, 0
			p.now.sent |= renew
		})
	}
}

// becomes changes what the client does. The client does not wait for an earlier answer.
func (p *client) becomes(next phase, sends requests) {
	o := p.now
	o.sent |= sends
	*p = client{phase: next, now: o, earlier: p.earlier}
}

// waits changes what a client in the queue does. An outcome that is unknown stays unknown.
func (p *client) waits(next phase, sends requests) {
	ambiguous, credit, dropped := p.ambiguous, p.credit, p.dropped
	p.becomes(next, sends)
	p.ambiguous, p.credit, p.dropped = ambiguous, credit, dropped
}

// ends gives a client its next owner. Requests of the old owner may still arrive if the
// size allows an earlier owner. Otherwise they are lost.
func (s *searcher) ends(n node, who int, what string) {
	p := &n.clients[who]
	room := s.size.Earlier
	for _, p := range n.clients {
		if p.earlier != (owner{}) {
			room--
		}
	}
	next := client{earlier: p.earlier}
	if p.earlier == (owner{}) && room > 0 && !(n.healthy && who == 0) {
		next.earlier = p.now
	}
	*p = next
	s.visit(n, what, who, "")
}

// outcome is what the store makes of a request.
type outcome struct {
	after  cell
	fence  lockstore.Fence // 1 if it grew, -1 if it fell
	answer answer
	left   byte // ticks of trust
	exact  bool // by the right clocks
}

// cell is the part of a node that the store keeps, without the fence.
type cell struct {
	held, kept         bool
	left, free, places byte
	marks              [6]mark
}

// question is a request that arrives at a store.
type question struct {
	cell   cell
	name   byte // of the owner: a map is faster without strings
	r      requests
	queues bool
	later  byte // ticks
}

func (n *node) cell() cell {
	c := cell{held: n.held, kept: n.kept, left: n.left, free: n.free, places: n.places}
	for who := range n.clients {
		c.marks[2*who], c.marks[2*who+1] = n.clients[who].now.mark, n.clients[who].earlier.mark
	}
	return c
}

func (n *node) setCell(c cell) {
	n.held, n.kept, n.left, n.free, n.places = c.held, c.kept, c.left, c.free, c.places
	for who := range n.clients {
		n.clients[who].now.mark, n.clients[who].earlier.mark = c.marks[2*who], c.marks[2*who+1]
	}
}

// after returns the different outcomes of a request, the one by the right clocks first. It
// asks the store once: equal cells have equal outcomes.
func (s *searcher) after(n *node, name lockstore.Owner, r requests, queues bool, later byte) []outcome {
	q := question{n.cell(), name[0], r, queues, later}
	if known, ok := s.known[q]; ok {
		return known
	}
	var known []outcome
	for _, c := range append([]Clocks{{}}, s.size.Clocks...) {
		if o := s.call(*n, q, c); !slices.ContainsFunc(known, func(k outcome) bool { o.exact = k.exact; return k == o }) {
			o.exact = len(known) == 0
			known = append(known, o)
		}
	}
	s.known[q] = known
	return known
}

// call delivers a request to the store.
func (s *searcher) call(n node, q question, c Clocks) outcome {
	ctx, e, name := context.Background(), n.entry(), lockstore.Owner(rune(q.name))
	has, now := e.Owner == name, searchNow.Add(time.Duration(q.later)*tick)
	lease := lockstore.Lease{Key: Key, Owner: name, Fence: e.Fence}
	if !has {
		lease.Fence-- // another owner has the key now
	}
	if s.rules.revive && q.r == renew && has {
		e.Ends = searchNow.Add(max(tick/1000, e.Ends.Sub(searchNow)))
	}
	if s.rules.releaseAny && q.r == release {
		lease.Owner, lease.Fence = e.Owner, e.Fence
		if e.Owner == "" {
			lease.Owner = name
		}
	}
	if q.r == acquire {
		e = s.breaks(e, now, name)
	}
	s.store.Put(e, now, c)
	left := time.Duration(0)
	var err error
	switch q.r {
	case acquire:
		lease, err = s.store.Acquire(ctx, lockstore.Request{Key: Key, Owner: name, TTL: TTL, Queue: q.queues})
		left = lease.TTL
	case renew:
		left, err = s.store.Renew(ctx, lease, TTL)
	case release:
		err = s.store.Release(ctx, lease)
	case abandon:
		lease.Fence = 0
		err = s.store.Release(ctx, lease)
	case leave:
		err = s.store.Leave(ctx, Key, name)
	case coolDown:
		err = s.store.Keep(ctx, lease, nil, Cooldown)
	case breakLease:
		_, err = s.store.(lockstore.Breaker).Break(ctx, lockstore.BreakRequest{Key: Key, Fence: e.Fence, Now: s.rules.breakNow})
	}
	after := s.broken(e, s.store.Get(), q.r, name)
	n.setEntry(after)
	// How much a fence grows does not matter.
	o := outcome{after: n.cell(), fence: max(-1, min(1, after.Fence-e.Fence)), answer: refused, left: byte(left / tick)}
	switch {
	case err == nil:
		o.answer = yes
	case errors.Is(err, lockstore.ErrHeld):
		o.answer = busy
		if held, _ := errors.AsType[*lockstore.HeldError](err); held.Place > 0 {
			o.answer = placed
		}
	}
	return o
}

// arrives delivers a request to the store, with each of its outcomes.
func (s *searcher) arrives(n node, who int, earlier bool, r requests) {
	for _, out := range s.after(&n, ownerName(who, earlier), r, n.owner(who, earlier).queues, 0) {
		s.arrived(n, who, earlier, r, out)
	}
}

func (s *searcher) arrived(n node, who int, earlier bool, r requests, out outcome) {
	m := n
	m.setCell(out.after)
	m.fence += byte(out.fence)
	o, was := m.owner(who, earlier), n.owner(who, earlier)
	if n.healthy && who == 0 {
		o.sent &^= r
	}
	granted, bad := o.has && !was.has, ""
	switch {
	case granted && o.over:
		bad = "a late duplicate has the key"
	case out.fence < 0 || granted && out.fence == 0:
		bad = "the fence did not grow"
	case r == leave && out.answer == yes && o.place > 0:
		bad = "an owner that has left has a place"
	case r == renew && out.answer == yes && out.exact && n.left == 0:
		bad = "an expired lease was revived"
	case r == renew && out.answer == refused && was.has && n.left > 0:
		bad = "told that a live lease is lost"
	}
	if out.answer == yes && r&(release|abandon|coolDown) != 0 {
		o.over = true
	}
	if first := &m.clients[0]; m.healthy {
		switch had, has := n.clients[0].now.place, first.now.place; {
		case has == 0:
			first.credit = 0
			first.dropped = first.dropped && who != 0 || r == coolDown && had > 0
		case had == 0 || granted:
			first.credit, first.dropped = min((has-1)*turn, 15), false
		case has > had:
			bad = "somebody got a place before a client that waits"
		}
	}
	for who := range n.clients {
		for _, earlier := range []bool{false, true} {
			o := m.owner(who, earlier)
			o.over = o.over || n.owner(who, earlier).has && !o.has
			o.broken = o.broken && !granted
		}
	}
	if s.rules.forgetful {
		m.each(func(o *owner, _ lockstore.Owner) { o.remembered = None })
	}

	p := &m.clients[who]
	what := requestNames[r]
	waits := !earlier && (r == acquire && p.phase == acquiring || r == renew && p.call > 0 ||
		r&(release|coolDown) != 0 && p.phase == releasing || r == leave && p.phase == leaving || r == abandon && p.phase == abandoning)
	if !waits {
		s.visit(m, what+" arrives", who, bad)
		return
	}
	if p.answer != none {
		s.visit(m, what+" arrives once more", who, bad) // the client gets the first answer
	}
	p.answer, p.until = out.answer, out.left
	if !s.rules.trustFromReply {
		// The TTL that the store names counts from before the request.
		since := p.time
		if r == renew {
			since = p.call - 1
		}
		p.until = max(p.until, since) - since
	}
	if s.rules.longTrust && p.until > 0 {
		p.until++
	}
	s.visit(m, what+" arrives and is answered", who, bad)
}

// receives delivers an answer to its client.
func (s *searcher) receives(n node, who int) {
	p := &n.clients[who]
	a, until := p.answer, p.until
	p.answer, p.until = none, 0
	switch {
	case p.phase == acquiring && a == yes && until > 0:
		p.becomes(working, 0)
		p.time = until
	case p.phase == acquiring && a == placed:
		p.waits(waiting, 0)
	case p.phase == acquiring && (a == yes || a == busy && p.ambiguous), p.phase == leaving && a == refused:
		// The grant came too late, or an earlier request may still arrive or has arrived.
		p.becomes(abandoning, abandon)
	case p.works() && a == yes:
		p.call, p.time = 0, until
	case p.phase == checked:
		p.call, p.time = 0, 0 // the lease is lost, but the client will write
	default:
		if a == yes && p.now.has && p.phase != leaving {
			s.visit(n, "receives the answer", who, "told that it holds nothing, but it has the key")
			return
		}
		s.ends(n, who, "receives a refusal, or the end of its work")
		return
	}
	s.visit(n, "receives the answer", who, "")
}

// wrong says what is wrong in a state.
func (n *node) wrong() (bad string) {
	n.each(func(o *owner, _ lockstore.Owner) {
		switch {
		case o.place > 0 && o.has:
			bad = "the holder has a place"
		case o.place > 0 && o.over:
			bad = "an owner that has ended has a place"
		}
	})
	switch first := n.clients[0]; {
	case bad != "":
		return bad
	case !n.held && n.left > 0 && n.places > 0:
		return "somebody waits in a cooldown"
	case n.healthy && first.phase == waiting && first.now.place == 0 && !first.dropped:
		return "a healthy client lost its place"
	}
	for _, p := range n.clients {
		if p.works() && p.time > 0 && (!p.now.has && !p.now.broken || n.left == 0) {
			return "a client trusts a lease that it does not have"
		}
	}
	return ""
}

// dead is how many places have owners that the state has forgotten.
func (n *node) dead() int {
	dead := int(n.places)
	n.each(func(o *owner, _ lockstore.Owner) {
		if o.place > 0 {
			dead--
		}
	})
	return dead
}

// packed is a node in 32 bytes. Nodes with the same possible steps have the same packed
// node. It is no hash.
type packed [4]uint64

// pack changes n on the way.
func (n *node) pack() packed {
	fences := [5]byte{n.written, n.fence}
	for who := range n.clients {
		p := &n.clients[who]
		p.earlier.broken = false // it trusts no lease
		// The store refuses a remembered owner for ever. Of an earlier owner without the
		// key only an acquire matters, and what ends its place.
		matters := acquire
		if p.earlier.place > 0 {
			matters |= leave | abandon
		}
		if o := &p.earlier; o.remembered != None || !o.has && o.sent&matters == 0 || o.has && o.sent == acquire {
			*o = owner{}
		} else if !o.has {
			o.sent &= acquire | abandon | leave
		}
		switch {
		case p.phase != checked:
			p.fence = 0
		case p.fence < n.written:
			p.fence = 0 // stale
		default:
			fences[2+who] = p.fence
		}
	}
	// Fences by their order. All fences below the last write are the same.
	sorted := fences
	slices.Sort(sorted[:])
	rank := [256]byte{}
	last, r := n.written, byte(1)
	rank[last] = r
	for _, f := range sorted {
		if f > last {
			last, r = f, r+1
			rank[f] = r
		}
	}
	var k packed
	for who := range n.clients {
		p := &n.clients[who]
		fence := byte(0)
		if p.fence > 0 {
			fence = rank[p.fence]
		}
		w := bits{}
		w.put(byte(p.phase), 3)
		w.put(flag(p.ambiguous), 1)
		w.put(p.time, 2)
		w.put(p.call, 2)
		w.put(byte(p.answer), 3)
		w.put(p.until, 2)
		w.put(fence, 3)
		w.put(p.credit, 4)
		w.put(flag(p.dropped), 1)
		for _, o := range []*owner{&p.now, &p.earlier} {
			w.put(byte(o.sent), 6)
			w.put(flag(o.queues), 1)
			w.put(o.place, 4)
			w.put(flag(o.has), 1)
			w.put(flag(o.over), 1)
			w.put(flag(o.broken), 1)
			w.put(byte(o.remembered), 2)
		}
		k[who] = w.word
	}
	// The largest first: an idle client and a client that does not exist are the same.
	// Not so the healthy client.
	same := k[:3]
	if n.healthy {
		same = k[1:3]
	}
	slices.SortFunc(same, func(a, b uint64) int { return cmp.Compare(b, a) })
	w := bits{}
	w.put(flag(n.held), 1)
	w.put(flag(n.kept), 1)
	w.put(n.left, 3)
	w.put(n.free, 4)
	w.put(n.places, 4)
	w.put(flag(n.healthy), 1)
	w.put(rank[n.fence], 3)
	k[3] = w.word
	return k
}

func (k packed) node() node {
	var n node
	w := bits{word: k[3]}
	n.held, n.kept, n.left, n.free, n.places, n.healthy = w.take(1) == 1, w.take(1) == 1, w.take(3), w.take(4), w.take(4), w.take(1) == 1
	n.fence, n.written = w.take(3), 1
	for who := range n.clients {
		w := bits{word: k[who]}
		p := &n.clients[who]
		p.phase, p.ambiguous, p.time, p.call = phase(w.take(3)), w.take(1) == 1, w.take(2), w.take(2)
		p.answer, p.until, p.fence = answer(w.take(3)), w.take(2), w.take(3)
		p.credit, p.dropped = w.take(4), w.take(1) == 1
		for _, o := range []*owner{&p.now, &p.earlier} {
			o.sent, o.queues, o.place = requests(w.take(6)), w.take(1) == 1, w.take(4)
			o.has, o.over, o.broken, o.remembered = w.take(1) == 1, w.take(1) == 1, w.take(1) == 1, How(w.take(2))
		}
	}
	return n
}

// bits are put into a word and taken from it in the same order.
type bits struct {
	word uint64
	n    int
}

func (b *bits) put(v byte, width int) {
	if v>>width != 0 {
		panic("a number has too many bits")
	}
	b.word |= uint64(v) << b.n
	b.n += width
}

func (b *bits) take(width int) byte {
	v := byte(b.word >> b.n & (1<<width - 1))
	b.n += width
	return v
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}
