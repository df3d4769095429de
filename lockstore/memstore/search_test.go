package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestSearch visits every state that a few clients and the store can reach, with every
// order of their steps. The store is the real one. The clients are models of a guard: they
// send an acquire again if no answer comes, abandon in the end, trust a lease from before
// the first request on, renew, write with the fence, release, and start again with a new
// owner, without end. A request may arrive at any time after it was sent, many times or
// never, even if its client does not wait any more. Time may pass between any two steps,
// so a client may stand still at any point. It may also vanish at any point.
//
// What must be true in every state:
//   - A client that trusts its lease has the lease. So no two clients trust.
//   - Each grant has a larger fence than all earlier grants.
//   - An owner that has released or abandoned never has the key again.
//   - A client that was told so holds nothing.
//   - A renewal never revives a lease.
//
// Each control breaks one rule, and the search must find a state that shows it.
//
// The number of states is finite, because a state has only differences: the time that is
// left and not the date, the order of fences and not their numbers, and clients without an
// order. The search forgets an owner when its client has a new owner and no request of the
// old owner can arrive any more. size bounds the number of such owners.
func TestSearch(t *testing.T) {
	sizes := []size{{2, 0}}
	if verifyrecord.Full() {
		sizes = []size{{2, 2}, {3, 1}}
	}
	result := verifyrecord.Result{Kind: verifyrecord.Search, Name: "every state of a few clients of the store in memory", Counts: map[string]int64{}, Limits: []string{
		"The search has one key, a TTL of two ticks, and at most one earlier owner of a client whose requests are under way. Of 3 clients one has such an owner, of 2 clients both.",
		"The clients of the search are a model of the guard. The guard itself and the other stores are simulated.",
	}}
	began := time.Now()
	for _, size := range sizes {
		s := search(size, rules{})
		t.Logf("%v: %d states, %d steps deep, %v", size, s.states(), s.depth, time.Since(began))
		require.Empty(t, s.bad, s.trace)
		result.Counts[fmt.Sprintf("states with %v", size)] = int64(s.states())
		result.Counts[fmt.Sprintf("steps with %v", size)] = int64(s.depth)
	}
	for _, c := range []struct {
		what  string
		rules rules
		want  string
	}{
		{"a resource that compares no fences", rules{unfenced: true}, "a stale write"},
		{"M20: trust that counts from the reply", rules{trustFromReply: true}, "trusts a lease that it does not have"},
		{"trust that ends a tick after the store's lease", rules{longTrust: true}, "trusts a lease that it does not have"},
		{"an acquire again after an abandon without an answer", rules{askAfterAbandon: true}, "trusts a lease that it does not have"},
		{"M18: a store that forgets abandoned owners", rules{forgetful: true}, "a late duplicate"},
		{"M08: a renewal after the end of the lease", rules{revive: true}, "revived"},
		{"M05: a release that does not compare the owner", rules{releaseAny: true}, "trusts a lease that it does not have"},
	} {
		s := search(size{2, 1}, c.rules)
		require.Contains(t, s.bad, c.want, c.what)
		t.Logf("%s: %s after %d steps, %d states:\n%s", c.what, s.bad, s.depth, s.states(), s.trace)
		result.Controls = append(result.Controls, verifyrecord.Control{What: c.what, Shown: true, Saw: fmt.Sprintf("%s, after %d steps", s.bad, s.depth)})
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}

// rules are the rules that a control breaks.
type rules struct{ unfenced, trustFromReply, longTrust, askAfterAbandon, forgetful, revive, releaseAny bool }

// size is the number of clients, and of earlier owners whose requests may still arrive: at
// most one for each client.
type size struct{ clients, earlier int }

func (s size) String() string {
	return fmt.Sprintf("%d clients, %d earlier owners", s.clients, s.earlier)
}

const (
	tick      = time.Second
	searchTTL = 2 // ticks
)

// searchNow is the time in every state. firstFence is the smallest fence. A state keeps
// only differences of times and fences. searchNow is smaller than every fence, so a new
// fence is the previous fence + 1.
var searchNow = time.UnixMicro(firstFence)

const firstFence = 1_000_000

// phase is what a client does.
type phase byte

const (
	idle phase = iota
	acquiring
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
	refused
)

// requests are the requests that may arrive.
type requests byte

const (
	acquire requests = 1 << iota
	renew
	release
	abandon
)

var requestNames = map[requests]string{acquire: "acquire", renew: "renew", release: "release", abandon: "abandon"}

// owner is one acquisition.
type owner struct {
	sent       requests
	has        bool // the store's owner, alive or dead
	over       bool // the store has ended the acquisition, or refuses it for good
	remembered remembered
}

// remembered is what the store remembers of an owner.
type remembered byte

const (
	nothing remembered = iota
	wasReleased
	hasExpired
)

// client is the state of one client.
type client struct {
	phase     phase
	ambiguous bool   // acquiring: no answer came to a request
	time      byte   // acquiring: ticks since the first request; working: ticks of trust
	call      byte   // working: a renewal waits for its answer: ticks since then, and one
	answer    answer // on its way to the client
	until     byte   // ticks of trust in the answer
	fence     byte   // checked: of the next write
	now       owner
	earlier   owner
}

func (p client) works() bool { return p.phase == working || p.phase == checked }

// node is one state of the search.
type node struct {
	held    bool // the store's entry has an owner: of a client, or a forgotten one
	left    byte // ticks until the lease's end
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
func (n *node) entry() entry {
	e := entry{fence: firstFence + lockstore.Fence(n.fence), expires: searchNow.Add(time.Duration(n.left) * tick)}
	if n.held {
		e.owner = forgotten
	}
	n.each(func(o *owner, name lockstore.Owner) {
		if o.has {
			e.owner = name
		}
		switch o.remembered {
		case wasReleased:
			e.endings = append(e.endings, ending{name, released})
		case hasExpired:
			e.endings = append(e.endings, ending{name, expired})
		}
	})
	return e
}

// setEntry puts the store's entry into the state.
func (n *node) setEntry(e entry) {
	n.held, n.fence = e.owner != "", byte(e.fence-firstFence)
	n.left = byte(max(0, e.expires.Sub(searchNow)) / tick)
	n.each(func(o *owner, name lockstore.Owner) {
		o.has, o.remembered = e.owner == name, nothing
		if how, ok := e.ending(name); ok {
			o.remembered = wasReleased
			if how == expired {
				o.remembered = hasExpired
			}
		}
	})
}

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
	slots []uint32 // hash table: index + 1
}

func (k packed) hash() uint64 {
	h := uint64(k[0])<<32 | uint64(k[1])
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	h ^= uint64(k[2])<<32 | uint64(k[3])
	h = (h ^ h>>32) * 0x94d049bb133111eb
	return h ^ h>>29
}

// find returns the slot of k, or the empty slot for k.
func (s *shard) find(k packed) (slot uint64, ok bool) {
	mask := uint64(len(s.slots) - 1)
	for slot = k.hash() / workers & mask; s.slots[slot] != 0; slot = (slot + 1) & mask {
		if s.keys[s.slots[slot]-1] == k {
			return slot, true
		}
	}
	return slot, false
}

func (s *shard) add(k packed, from uint32) {
	if 3*len(s.keys) >= 2*len(s.slots) {
		s.slots = make([]uint32, max(1<<10, 2*len(s.slots)))
		for i, k := range s.keys {
			slot, _ := s.find(k)
			s.slots[slot] = uint32(i + 1)
		}
	}
	if slot, ok := s.find(k); !ok {
		s.keys, s.from = append(s.keys, k), append(s.from, from)
		s.slots[slot] = uint32(len(s.keys))
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
func search(size size, rules rules) *result {
	type found struct {
		k    packed
		from uint32
	}
	type bad struct {
		what string
		from uint32
	}
	var r result
	var start node
	var done [workers]int // states whose steps the search has taken
	for i := range r.shards {
		r.shards[i].slots = make([]uint32, 1<<10)
	}
	k := start.pack()
	r.shards[k.hash()%workers].add(k, uint32(k.hash()%workers))
	for more := true; more; r.depth++ {
		var next [workers][workers][]found
		var worst [workers]*bad
		both(func(w int) {
			var from uint32
			s := newSearcher(size, rules, func(m node, what string, who int, wrong string) {
				if wrong == "" {
					wrong = m.wrong()
				}
				if wrong != "" && worst[w] == nil {
					worst[w] = &bad{wrong, from}
				}
				k := m.pack()
				to := k.hash() % workers
				if _, ok := r.shards[to].find(k); !ok {
					next[w][to] = append(next[w][to], found{k, from})
				}
			})
			for i := done[w]; i < len(r.shards[w].keys); i++ {
				from = uint32(i*workers + w)
				s.steps(r.shards[w].keys[i].node())
			}
		})
		for _, b := range worst {
			if b != nil {
				r.depth++
				trace, n := r.path(size, rules, b.from)
				newSearcher(size, rules, func(m node, what string, who int, wrong string) {
					if r.bad == "" && (wrong == b.what || m.wrong() == b.what) {
						r.bad, r.trace = b.what, trace+step(what, who)
					}
				}).steps(n)
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
func (r *result) path(size size, rules rules, at uint32) (string, node) {
	var keys []packed
	for {
		s := &r.shards[at%workers]
		from := s.from[at/workers]
		if from == at {
			break
		}
		keys, at = append(keys, s.keys[at/workers]), from
	}
	var steps strings.Builder
	var n node
	for _, k := range slices.Backward(keys) {
		here := n
		reached := false
		newSearcher(size, rules, func(m node, what string, who int, _ string) {
			if !reached && m.pack() == k {
				reached, here = true, m
				steps.WriteString(step(what, who))
			}
		}).steps(n)
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
	size  size
	rules rules
	store *Store
	visit func(m node, what string, who int, bad string)
}

func newSearcher(size size, r rules, visit func(m node, what string, who int, bad string)) *searcher {
	return &searcher{size, r, New(func() time.Time { return searchNow }), visit}
}

const key = "k"

// steps visits every state that can come next.
func (s *searcher) steps(n node) {
	s.timePasses(n)
	for who := range s.size.clients {
		for _, earlier := range []bool{false, true} {
			sent := n.owner(who, earlier).sent
			for r := acquire; r <= abandon; r <<= 1 {
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

func (s *searcher) timePasses(n node) {
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
	s.visit(n, "time passes", -1, "")
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
	if p.phase != idle {
		s.ends(n, who, "vanishes, or goes on without an answer")
	}
	if p.earlier != (owner{}) {
		step("loses its earlier requests", func(p *client) { p.earlier = owner{} })
	}
	switch p.phase {
	case idle:
		step("acquires", func(p *client) { p.phase, p.now.sent = acquiring, acquire })
	case acquiring:
		if !p.ambiguous {
			step("acquires again", func(p *client) { p.ambiguous = true })
		}
		step("abandons", func(p *client) { p.becomes(abandoning, abandon) })
	case abandoning:
		if s.rules.askAfterAbandon {
			step("acquires again", func(p *client) { p.becomes(acquiring, 0) })
		}
	case working:
		if p.time > 0 {
			step("checks its lease", func(p *client) { p.phase, p.fence = checked, n.fence })
		}
		step("releases", func(p *client) { p.becomes(releasing, release) })
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
	if p.works() && p.time > 0 && p.call != 1 {
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

// ends gives a client its next owner. Requests of the old owner may still arrive if the
// size allows an earlier owner. Otherwise they are lost.
func (s *searcher) ends(n node, who int, what string) {
	p := &n.clients[who]
	room := s.size.earlier
	for _, p := range n.clients {
		if p.earlier != (owner{}) {
			room--
		}
	}
	next := client{earlier: p.earlier}
	if p.earlier == (owner{}) && room > 0 {
		next.earlier = p.now
	}
	*p = next
	s.visit(n, what, who, "")
}

// arrives delivers a request to the store.
func (s *searcher) arrives(n node, who int, earlier bool, r requests) {
	m := n
	o, name := m.owner(who, earlier), ownerName(who, earlier)
	e := n.entry()
	lease := lockstore.Lease{Key: key, Owner: name, Fence: e.fence}
	if !o.has {
		lease.Fence-- // another owner has the key now
	}
	if s.rules.revive && r == renew && o.has {
		e.expires = searchNow.Add(max(tick/1000, e.expires.Sub(searchNow)))
	}
	if s.rules.releaseAny && r == release {
		lease.Owner, lease.Fence = e.owner, e.fence
		if e.owner == "" {
			lease.Owner = name
		}
	}
	s.store.write(key, e)

	left, bad := time.Duration(0), ""
	var err error
	switch r {
	case acquire:
		lease, err = s.store.Acquire(context.Background(), lockstore.Request{Key: key, Owner: name, TTL: searchTTL * tick})
		left = lease.TTL
	case renew:
		left, err = s.store.Renew(context.Background(), lease, searchTTL*tick)
		if err == nil && n.left == 0 {
			bad = "an expired lease was revived"
		}
	case release:
		err = s.store.Release(context.Background(), lease)
	case abandon:
		lease.Fence = 0
		err = s.store.Release(context.Background(), lease)
	}
	after := s.store.entries[key]
	granted := after.owner == name && !o.has
	m.setEntry(after)
	switch {
	case granted && o.over:
		bad = "a late duplicate has the key"
	case after.fence < e.fence || granted && after.fence == e.fence:
		bad = "the fence did not grow"
	}
	if err == nil && r&(release|abandon) != 0 {
		o.over = true
	}
	for who := range n.clients {
		for _, earlier := range []bool{false, true} {
			o := m.owner(who, earlier)
			o.over = o.over || n.owner(who, earlier).has && !o.has
		}
	}
	if s.rules.forgetful {
		m.each(func(o *owner, _ lockstore.Owner) { o.remembered = nothing })
	}

	p := &m.clients[who]
	what := requestNames[r]
	waits := !earlier && (r == acquire && p.phase == acquiring || r == renew && p.call > 0 ||
		r == release && p.phase == releasing || r == abandon && p.phase == abandoning)
	if !waits {
		s.visit(m, what+" arrives", who, bad)
		return
	}
	if p.answer != none {
		s.visit(m, what+" arrives once more", who, bad) // the client gets the first answer
	}
	switch {
	case err == nil:
		p.answer = yes
	case errors.Is(err, lockstore.ErrHeld):
		p.answer = busy
	default:
		p.answer = refused
	}
	p.until = byte(left / tick)
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
	case p.phase == acquiring && (a == yes || a == busy && p.ambiguous):
		// The grant came too late, or an earlier request may still arrive.
		p.becomes(abandoning, abandon)
	case p.works() && a == yes:
		p.call, p.time = 0, until
	case p.phase == checked:
		p.call, p.time = 0, 0 // the lease is lost, but the client will write
	default:
		if a == yes && p.now.has {
			s.visit(n, "receives the answer", who, "told that it holds nothing, but it has the key")
			return
		}
		s.ends(n, who, "receives a refusal, or the end of its work")
		return
	}
	s.visit(n, "receives the answer", who, "")
}

// wrong says what is wrong in a state.
func (n *node) wrong() string {
	for _, p := range n.clients {
		if p.works() && p.time > 0 && (!p.now.has || n.left == 0) {
			return "a client trusts a lease that it does not have"
		}
	}
	return ""
}

// packed is a node in 16 bytes. Nodes with the same possible steps have the same packed
// node. It is no hash.
type packed [4]uint32

// pack changes n on the way.
func (n *node) pack() packed {
	fences := [5]byte{n.written, n.fence}
	for who := range n.clients {
		p := &n.clients[who]
		// The store refuses a remembered owner for ever. Of an earlier owner without the
		// key only an acquire matters.
		if o := &p.earlier; o.remembered != nothing || !o.has && o.sent&acquire == 0 || o.has && o.sent == acquire {
			*o = owner{}
		} else if !o.has {
			o.sent &= acquire | abandon
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
	someone := false
	for who := range n.clients {
		p := &n.clients[who]
		someone = someone || p.now.has || p.earlier.has
		fence := byte(0)
		if p.fence > 0 {
			fence = rank[p.fence]
		}
		w := bits{}
		w.put(byte(p.phase), 3)
		w.put(flag(p.ambiguous), 1)
		w.put(p.time, 2)
		w.put(p.call, 2)
		w.put(byte(p.answer), 2)
		w.put(p.until, 2)
		w.put(fence, 3)
		for _, o := range []*owner{&p.now, &p.earlier} {
			w.put(byte(o.sent), 4)
			w.put(flag(o.has), 1)
			w.put(flag(o.over), 1)
			w.put(byte(o.remembered), 2)
		}
		k[who] = w.word
	}
	// The largest first: an idle client and a client that does not exist are the same.
	for _, i := range []int{0, 1, 0} {
		k[i], k[i+1] = max(k[i], k[i+1]), min(k[i], k[i+1])
	}
	w := bits{}
	w.put(flag(n.held && (someone || n.left > 0)), 1)
	w.put(n.left, 2)
	w.put(rank[n.fence], 3)
	k[3] = w.word
	return k
}

func (k packed) node() node {
	var n node
	w := bits{word: k[3]}
	n.held, n.left, n.fence, n.written = w.take(1) == 1, w.take(2), w.take(3), 1
	for who := range n.clients {
		w := bits{word: k[who]}
		p := &n.clients[who]
		p.phase, p.ambiguous, p.time, p.call = phase(w.take(3)), w.take(1) == 1, w.take(2), w.take(2)
		p.answer, p.until, p.fence = answer(w.take(2)), w.take(2), w.take(3)
		for _, o := range []*owner{&p.now, &p.earlier} {
			o.sent, o.has, o.over, o.remembered = requests(w.take(4)), w.take(1) == 1, w.take(1) == 1, remembered(w.take(2))
		}
	}
	return n
}

// bits are put into a word and taken from it in the same order.
type bits struct {
	word uint32
	n    int
}

func (b *bits) put(v byte, width int) {
	if v>>width != 0 {
		panic(fmt.Sprintf("%d has more than %d bits", v, width))
	}
	b.word |= uint32(v) << b.n
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
