package modelcheck

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Result is what a search found.
type Result struct {
	States, Depth int
	Closed        bool   // every state was visited
	Bad           string // what is wrong in a state, "" for nothing
	Trace         string // the steps to it
}

// hash stands for a state. Two states of one search have the same one with a probability of
// 10^-24.
type hash [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

const workers = 2

// shard has the states with some of the hashes.
type shard struct {
	seen   map[hash]bool
	hashes []hash
	from   []uint32 // the number of the state before
}

// found is a state that may be new.
type found struct {
	node node
	hash hash
	from uint32
}

// Search visits the states.
func Search(size Size, mistake Mistake, store Store) Result {
	var r Result
	var shards [workers]shard
	for i := range shards {
		shards[i].seen = map[hash]bool{}
	}
	m := newModel(size, mistake, store)
	start := node{}
	level := [workers][]found{{{node: start, hash: m.normalize(&start)}}}
	level[0][0].from = 1<<32 - 1
	for ; ; r.Depth++ {
		// Each worker keeps what is new among the states of its shard.
		var fresh [workers][]found
		for _, f := range level {
			for _, one := range f {
				w := one.hash[0] % workers
				if s := &shards[w]; !s.seen[one.hash] {
					s.seen[one.hash] = true
					s.hashes, s.from = append(s.hashes, one.hash), append(s.from, one.from)
					one.from = uint32((len(s.hashes)-1)*workers) + uint32(w) // its own number
					fresh[w] = append(fresh[w], one)
				}
			}
		}
		r.States = 0
		for i := range shards {
			r.States += len(shards[i].hashes)
		}
		if r.Closed = len(fresh[0])+len(fresh[1]) == 0; r.Closed {
			r.Depth--
			return r
		}
		if size.States > 0 && r.States >= size.States {
			return r
		}
		var bad [workers]*wrong
		var all sync.WaitGroup
		for w := range workers {
			level[w] = nil
			all.Go(func() {
				for _, one := range fresh[w] {
					m.follow(&one.node, func(next node, what step, is string) {
						if is == "" {
							is = m.wrong(&next)
						}
						if is != "" && bad[w] == nil {
							bad[w] = &wrong{is, one.from}
						}
						if bad[w] != nil || next.dead(size) {
							return
						}
						h := m.normalize(&next)
						if !shards[h[0]%workers].seen[h] {
							level[w] = append(level[w], found{next, h, one.from})
						}
					})
				}
			})
		}
		all.Wait()
		for _, b := range bad {
			if b != nil {
				r.Depth++
				r.Bad, r.Trace = b.what, m.trace(&shards, *b)
				return r
			}
		}
	}
}

// wrong is what is wrong in a state, and the number of the state before.
type wrong struct {
	what string
	from uint32
}

// trace is the steps to a state.
func (m *model) trace(shards *[workers]shard, b wrong) string {
	var path []hash
	for at := b.from; at != 1<<32-1; {
		s := &shards[at%workers]
		path, at = append(path, s.hashes[at/workers]), s.from[at/workers]
	}
	slices.Reverse(path)
	var steps []string
	here := node{}
	m.normalize(&here)
	take := func(is func(next node, bad string) bool) {
		taken := false
		from := here
		m.follow(&from, func(next node, what step, bad string) {
			if !taken && is(next, bad) {
				taken, here = true, next
				steps = append(steps, "  "+what.String())
			}
		})
	}
	for _, h := range path[1:] {
		take(func(next node, _ string) bool { return m.normalize(&next) == h })
		m.normalize(&here)
	}
	take(func(next node, bad string) bool { return bad == b.what || bad == "" && m.wrong(&next) == b.what })
	return strings.Join(steps, "\n")
}

// rename gives an owner another name.
func (n *node) rename(from, to driver.Owner) {
	n.key.Holders, n.key.Queue, n.key.Ended = slices.Clone(n.key.Holders), slices.Clone(n.key.Queue), slices.Clone(n.key.Ended)
	for i := range n.key.Holders {
		if n.key.Holders[i].Owner == from {
			n.key.Holders[i].Owner = to
		}
	}
	for i := range n.key.Queue {
		if n.key.Queue[i].Owner == from {
			n.key.Queue[i].Owner = to
		}
	}
	for i := range n.key.Ended {
		if n.key.Ended[i].Owner == from {
			n.key.Ended[i].Owner = to
		}
	}
}

// forget makes an owner one that nobody is.
func (n *node) forget(o driver.Owner) {
	n.rename(o, gone)
	n.key.Ended = slices.DeleteFunc(n.key.Ended, func(e rules.Ended) bool { return e.Owner == gone })
}

// dead reports whether there are too many places and leases of owners that nobody will name again.
func (n *node) dead(size Size) bool {
	places, leases := 0, 0
	for _, w := range n.key.Queue {
		if w.Owner == gone {
			places++
		}
	}
	for _, h := range n.key.Holders {
		if h.Owner == gone {
			leases++
		}
	}
	return places > size.Dead || leases > max(1, size.Dead)
}

// normalize makes equal what differs in nothing that matters, and returns the hash.
func (m *model) normalize(n *node) hash {
	n.key.Ended = slices.DeleteFunc(slices.Clone(n.key.Ended), func(e rules.Ended) bool { return e.Owner == gone })
	for who := range m.size.MaxHolders {
		m.forgetOld(n, who)
	}
	n.key.Holders = slices.Clone(n.key.Holders)
	oldest := longAgo
	if len(n.key.Queue) == 0 {
		oldest = 0 // without a queue it does not matter since when there is room
	}
	for i := range n.key.Holders {
		h := &n.key.Holders[i]
		if left := int(h.End().Sub(now) / tick); left < oldest {
			h.Since = now.Add(time.Duration(oldest)*tick - h.TTL)
		}
		h.Text = ""
		if h.Owner == gone {
			h.TTL, h.Since = ttl, h.Since.Add(h.TTL-ttl)
		}
	}
	if c := &n.key.Closed; c.For > 0 {
		if left := int(c.End().Sub(now) / tick); left < oldest {
			c.Since = now.Add(time.Duration(oldest)*tick - c.For)
		}
		c.Text = ""
	}
	n.rankFences()
	best := hash{}
	for i, order := range m.orders {
		if h := n.hash(order); i == 0 || h[0] < best[0] || h[0] == best[0] && h[1] < best[1] {
			best = h
		}
	}
	return best
}

// forgetOld forgets what a client and its owners have sent and what changes nothing any more.
func (m *model) forgetOld(n *node, who int) {
	c := &n.clients[who]
	for _, earlier := range []bool{false, true} {
		o, me := n.owner(who, earlier), name(who, earlier)
		if !o.asked {
			continue
		}
		has, waits := holder(n.key, me) != nil, place(n.key, me) >= 0
		marked := slices.ContainsFunc(n.key.Ended, func(e rules.Ended) bool { return e.Owner == me })
		switch {
		case marked && !has && !waits && earlier, marked && !has && !waits && c.ended && !m.healthy(who):
			// Nothing of it changes anything, see lateDuplicates.
			n.key.Ended = slices.DeleteFunc(n.key.Ended, func(e rules.Ended) bool { return e.Owner == me })
			if *o = (owner{}); !earlier {
				*c = client{before: c.before, writes: c.writes}
			}
		case earlier && !has && !o.acquire && !waits:
			*o = owner{}
			n.key.Ended = slices.DeleteFunc(n.key.Ended, func(e rules.Ended) bool { return e.Owner == me })
		}
		for _, f := range []*int8{&o.extend, &o.renew, &o.start, &o.release, &o.complete} {
			if *f != 0 && !slices.ContainsFunc(n.key.Holders, func(h rules.Holder) bool { return int8(h.Fence) == *f }) {
				if *f = stale; earlier {
					*f = 0
				}
			}
		}
		if earlier || c.ended || !o.acquire && o.extend|o.renew == 0 {
			o.age = 0
		}
	}
	if !c.trusts {
		c.left, c.fence = 0, 0
	}
	if !c.waits {
		c.moment, c.refused, c.now.pushed, c.dropped = 0, 0, [2]int8{}, false
	}
	c.before.pushed = [2]int8{}
}

// stale is a fence that no lease has and none will have.
const stale = 127

// rankFences makes the fences 1, 2, 3 in their order.
func (n *node) rankFences() {
	var used []int8
	each := func(f func(*int8)) {
		last := int8(n.key.LastFence)
		f(&last)
		n.key.LastFence = driver.Fence(last)
		for i := range n.key.Holders {
			fence := int8(n.key.Holders[i].Fence)
			f(&fence)
			n.key.Holders[i].Fence = driver.Fence(fence)
		}
		f(&n.written)
		for i := range n.clients {
			c := &n.clients[i]
			if c.writes > 0 && c.writes < n.written {
				c.writes = n.written - 1 // as stale as any other
			}
			f(&c.fence)
			f(&c.refused)
			f(&c.writes)
			for _, o := range []*owner{&c.now, &c.before} {
				f(&o.extend)
				f(&o.renew)
				f(&o.start)
				f(&o.release)
				f(&o.complete)
				f(&o.pushed[0])
				f(&o.pushed[1])
			}
		}
	}
	each(func(f *int8) {
		if *f > 0 && *f != stale && !slices.Contains(used, *f) {
			used = append(used, *f)
		}
	})
	slices.Sort(used)
	each(func(f *int8) {
		if *f > 0 && *f != stale {
			*f = int8(slices.Index(used, *f)) + 1
		}
	})
	for i := range n.key.Ended {
		n.key.Ended[i].Fence = 0 // nothing is resolved or revoked twice
	}
}

// hash is the same for equal states. order says where each client is put.
func (n *node) hash(order [most]int) hash {
	var buffer [256]byte
	b := append(buffer[:0], byte(n.key.LastFence), byte(n.written))
	flags := func(fs ...bool) {
		v := byte(0)
		for i, f := range fs {
			if f {
				v |= 1 << i
			}
		}
		b = append(b, v)
	}
	letter := func(o driver.Owner) byte {
		switch {
		case o == "":
			return 0
		case o[0] >= 'a':
			return byte('a' + order[o[0]-'a'])
		case o[0] >= 'A':
			return byte('A' + order[o[0]-'A'])
		}
		return o[0]
	}
	ticks := func(t time.Time) byte { return byte(int8(t.Sub(now) / tick)) }
	for _, h := range n.key.Holders {
		b = append(b, letter(h.Owner), byte(h.Fence), byte(h.Seat), byte(h.MaxHolders), ticks(h.End()), byte(h.TTL/tick))
		flags(h.HandedOver, h.Revoked, h.Started)
	}
	b = append(b, '|')
	for _, w := range n.key.Queue {
		b = append(b, letter(w.Owner), byte(w.MaxHolders), byte(w.Parked/tick))
	}
	b = append(b, '|')
	if n.key.Closed.For > 0 {
		b = append(b, ticks(n.key.Closed.End()))
	}
	var marks [2 * most]byte
	for _, e := range n.key.Ended {
		if l := letter(e.Owner); l >= 'a' {
			marks[most+l-'a'] = byte(e.How) + 1
		} else {
			marks[l-'A'] = byte(e.How) + 1
		}
	}
	b = append(append(b, '|'), marks[:]...)
	var at [most]int
	for who, to := range order {
		at[to] = who
	}
	for _, who := range at {
		c := &n.clients[who]
		for _, o := range []*owner{&c.now, &c.before} {
			flags(o.asked, o.acquire, o.abandon, o.leave, o.over)
			b = append(b, byte(o.age), byte(o.extend), byte(o.renew), byte(o.start), byte(o.release), byte(o.complete), byte(o.pushed[0]), byte(o.pushed[1]))
		}
		flags(c.trusts, c.waits, c.ended, c.dropped)
		b = append(b, byte(c.left), byte(c.fence), byte(c.moment), byte(c.refused), byte(c.writes), byte(c.credit))
	}
	return hash{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}
