package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

var rulesCases = []testCase{
	{
		"rules/random requests get the answers of the rule book F07 F09 F10 F11 F13 F24 F62 F63 M14",
		"Package rules says what each request does. The case sends random sequences of requests of some owners, with repeats and late duplicates, and lets time pass. The store and the rule book must give the same answers, and the same state after each request.",
		func(c *check) {
			if c.virtual {
				for seed := range cmp.Or(c.Sequences, byDefault()) {
					if d := c.difference(uint64(seed)); d != "" {
						c.fatalf("%s", d)
					}
				}
				return
			}
			differences := make([]string, cmp.Or(c.Sequences, 16))
			atOnce(len(differences), func(i int) { differences[i] = c.difference(uint64(i)) })
			for _, d := range differences {
				if d != "" {
					c.Errorf("%s", d)
				}
			}
		},
	},
	{
		"rules/each request with another one, from many states F23 F24 F25",
		"Two requests meet, or one comes again after another one. The answers and the state are those of the rule book.",
		func(c *check) { c.pairs() },
	},
}

// Sequences compares a store with the rule book by random sequences of requests, as a case of
// Run does, and by as many as the caller wants: with the seeds from first on. They are in synctest
// bubbles. A few of them share a store, and each has a key of its own. At the first difference the test
// fails, and names the seed and the shortest sequence found. Sequences returns the number of requests.
func Sequences(t *testing.T, open func(t *testing.T) Harness, first uint64, count int) (requests int64) {
	t.Helper()
	const share = 16
	for from := first; from < first+uint64(count); from += share {
		synctest.Test(t, func(t *testing.T) { // a failure ends the whole test
			c := newCheck(t, t, open(t), true)
			for seed := from; seed < min(from+share, first+uint64(count)); seed++ {
				if d := c.difference(seed); d != "" {
					t.Fatal(d)
				}
			}
			requests += c.compared.Load()
		})
	}
	return requests
}

// mostAtOnce is how many sequences, or pairs of requests, are under way at once on the wall clock.
const mostAtOnce = 200

// SequencesAtOnce is Sequences on the wall clock: many at once, because they mostly wait. Then come the pairs of requests that Run has.
func SequencesAtOnce(t *testing.T, h Harness, first uint64, count int) (requests int64) {
	t.Helper()
	c := newCheck(t, t, h, false)
	spread(count, mostAtOnce, func(i int) {
		if t.Failed() {
			return
		}
		if d := c.difference(first + uint64(i)); d != "" {
			t.Error(d)
		}
	})
	c.pairs()
	return c.compared.Load()
}

// difference runs one random sequence. If the store differs from the rule book, it looks for
// a shorter sequence after which it does, and returns this one.
func (c *check) difference(seed uint64) string {
	steps, difference := c.compare(nil, rand.New(rand.NewPCG(seed, 1)))
	if difference == "" {
		return ""
	}
	if c.virtual {
		steps, difference = c.shrink(steps, difference)
	}
	text := strings.Builder{}
	for _, s := range steps {
		text.WriteString("\n  " + s.String())
	}
	return fmt.Sprintf("sequence %d: after%s\n%s", seed, text.String(), difference)
}

// shrink leaves out steps for as long as some difference remains.
func (c *check) shrink(steps []step, difference string) ([]step, string) {
	for size := len(steps) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(steps); {
			fewer := slices.Concat(steps[:from], steps[from+size:])
			if done, still := c.compare(fewer, nil); still != "" {
				steps, difference = done, still
			} else {
				from += size
			}
		}
	}
	return steps, difference
}

// belief is a state that the key may have. There are several after a lost reply, and if the store
// may have forgotten an owner.
type belief struct {
	state  rules.State
	fences fences
}

// fences have their numbers in the order in which they appeared. 0 is the number of no fence.
type fences []driver.Fence

func (f *fences) number(of driver.Fence) driver.Fence {
	i := slices.Index(*f, of)
	if i < 0 {
		i = len(*f)
		*f = append(slices.Clip(*f), of)
	}
	return driver.Fence(i)
}

// like reports whether the fences grow and fall where others do.
func (f fences) like(others fences) bool {
	for i := range min(len(f), len(others)) {
		for j := range i {
			if (f[j] < f[i]) != (others[j] < others[i]) {
				return false
			}
		}
	}
	return true
}

// mostBeliefs ends a sequence: with more of them nearly every answer would do.
const mostBeliefs = 8

// comparison is one sequence.
type comparison struct {
	*check
	book    rules.Book
	key     string
	owners  [people]driver.Owner
	beliefs []belief
	fences  fences                // as the store has them
	notes   map[int]driver.Hint   // of the store, from the last answers to each owner
	refused map[int]time.Duration // when an owner's last Acquire that was refused was sent
	over    map[driver.Owner]bool // the owner awaits no turn any more, or what it was handed was revoked
	began   time.Time
	at      time.Duration // of the case when the sequence began
	asked   time.Duration // when the step began: the answers of the rule book are of then
	slow    time.Duration // how much later than the rule book the store is asked, and answers
}

// comparison is that of a new key.
func (c *check) comparison() *comparison {
	m := &comparison{
		check: c, book: rules.Book{Places: cmp.Or(c.Places, 64), Marks: cmp.Or(c.Marks, 16)},
		key: newKey(), beliefs: []belief{{fences: fences{0}}}, fences: fences{0}, notes: map[int]driver.Hint{}, refused: map[int]time.Duration{}, over: map[driver.Owner]bool{}, began: time.Now(), at: c.elapsed(),
	}
	prefix := fmt.Sprintf("%016x-", rand.Uint64())
	for n := range m.owners { // each differs from another one in its case, or in one more character
		m.owners[n] = driver.Owner(prefix + strings.Repeat(string("aA"[n%2]), 1+n/2))
	}
	return m
}

// compare runs the steps, or random ones, on a new key, until the store differs. It
// returns what it ran and the difference.
func (c *check) compare(steps []step, random *rand.Rand) ([]step, string) {
	m, length := c.comparison(), len(steps)
	var g *generator
	if random != nil {
		g = newGenerator(c, random)
		length = g.length
	}
	ran := make([]step, 0, length)
	for n := range length {
		var s step
		if g == nil {
			s = steps[n]
		} else {
			s = g.next(m, ran)
		}
		ran = append(ran, s)
		difference, goes := m.take(s)
		if difference != "" || !goes {
			return ran, difference
		}
	}
	return ran, m.listed()
}

// listed says how a listing of the key differs from an Inspect. A free key may be listed.
func (m *comparison) listed() string {
	if _, lists := driver.As[driver.Lister](m.Store.Driver()); !lists || !m.virtual {
		return ""
	}
	want, all := m.check.inspect(m.key), m.list(m.key)
	if len(all) == 0 && !want.State.Taken() && want.State != lockstore.InDoubt || len(all) == 1 && alike(all[0], want) {
		return ""
	}
	return fmt.Sprintf("listed as %+v; want %+v, once", all, want)
}

// take sends a request to the store, and asks the rule book.
func (m *comparison) take(s step) (difference string, goes bool) {
	m.lapse(s.lapse)
	m.asked = m.elapsed()
	if s.kind == driver.AwaitTurn {
		return m.await(s), true
	}
	if s.inside != nil {
		return m.takeBoth(s, *s.inside)
	}
	before := m.beliefs
	m.ends(s)
	type wanted struct {
		belief
		seen
	}
	all := make([]wanted, 0, mostBeliefs)
	looks := s.looks || s.unheard
	for _, b := range before {
		want, changed := m.decide(&b, s)
		all = append(all, wanted{b, want})
		looks = looks || changed
	}
	got := m.send(s, looks)
	m.slow = max(m.slow, m.elapsed()-m.asked)
	if s.unheard && m.virtual && m.elapsed() > m.asked {
		return "", false // the store has tried again, and nobody knows when the last try came
	}
	m.beliefs = nil
	believe := func(b belief, want seen) {
		if got.err != nil {
			want.answer = driver.Answer{}
		}
		if looks {
			want.inspected = m.inspect(&b)
		}
		d := m.differs(b, want, got)
		if d == "" {
			m.beliefs = append(m.beliefs, b)
		} else if difference == "" {
			difference = d
		}
	}
	for i, w := range all {
		if !errors.Is(got.err, lockstore.ErrUnavailable) {
			believe(w.belief, w.seen)
		}
		if got.err != nil {
			believe(before[i], seen{})
		}
	}
	none := len(m.beliefs) == 0 && got.err == nil
	for i := 0; i < len(before) && none; i++ {
		for _, b := range m.alternatives(before[i], m.request(s, before[i].fences)) {
			want, _ := m.decide(&b, s)
			believe(b, want)
		}
		if b := before[i]; m.Yields && !m.virtual && s.kind == driver.Acquire && s.join {
			s.join = false
			want, _ := m.decide(&b, s)
			believe(b, want)
		}
	}
	for _, known := range []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt} {
		if errors.Is(got.err, known) { // these are answers, and the reply was lost
			return got.err.Error(), false
		}
	}
	switch {
	case got.err != nil && !s.unheard:
		return got.err.Error(), false
	case len(m.beliefs) == 0 && (!m.virtual || s.kind == driver.Abandon || s.kind == driver.Leave) && m.passed(append(slices.Clone(before), all[0].belief)):
		return "", false // a slow answer may be of before or of after that time, and who gives up a place may make such a time
	case len(m.beliefs) == 0:
		return difference, false
	}
	return "", len(m.beliefs) <= mostBeliefs
}

// takeBoth sends a request, and another owner's within the store's call. The answers must be those of the rule
// book to the one after the other, or the other way round. An acquire may be refused without a place, and each
// of the two may end with an unknown outcome.
func (m *comparison) takeBoth(s, inside step) (difference string, goes bool) {
	for _, owner := range []int{s.owner, inside.owner} { // if a first write has a wrong time, only its reply corrects it
		if _, err := m.client(owner).Driver().Do(m.t.Context(), m.key, driver.Request{Kind: driver.Inspect}); err != nil {
			return err.Error(), false
		}
	}
	m.ends(s)
	m.ends(inside)
	s.beside, inside.beside = true, true
	// A repeat finds another state. Of two Revokes of a lease the store may know of one only.
	s.blurred, inside.blurred = s.again || inside.kind == driver.Revoke, s.kind == driver.Revoke
	var other seen
	steps := []step{s}
	m.Inside(s.at, s.again, func() {
		other = m.send(inside, false)
		steps = append(steps, inside)
	})
	got := m.send(s, true)
	m.slow = max(m.slow, m.elapsed()-m.asked)
	if errors.Is(other.err, lockstore.ErrUnavailable) {
		return other.err.Error(), false
	}
	for _, err := range []error{other.err, got.err} {
		if errors.Is(err, lockstore.ErrRefused) || errors.Is(err, lockstore.ErrLost) || errors.Is(err, lockstore.ErrCorrupt) {
			return err.Error(), false
		}
	}
	var orders [][]step
	for _, s := range m.orWithoutPlace(s) {
		if len(steps) == 1 {
			orders = append(orders, []step{s})
			continue
		}
		for _, inside := range m.orWithoutPlace(inside) {
			orders = append(orders, []step{s, inside}, []step{inside, s})
		}
	}
	if s.again && (s.kind == driver.Acquire || s.kind == driver.Renew || s.kind == driver.MarkStarted || s.kind == driver.Revoke) {
		orders = append(orders, []step{steps[0], inside, steps[0]}) // the answer is that of the repeat
	}
	if other.err != nil {
		orders = append(orders, []step{s})
	}
	if got.err != nil {
		orders = append(orders, steps[1:])
	}
	if errors.Is(got.err, lockstore.ErrUnavailable) { // nothing was applied
		orders = orders[len(orders)-1:]
	}
	before := m.beliefs
	reached := slices.Clone(before)
	m.beliefs = nil
	for _, loose := range []bool{false, true} {
		for _, b := range before {
			for _, order := range orders {
				for _, d := range m.inOrder(b, order, loose) {
					reached = append(reached, d.belief)
					var want, wantOther seen
					for i, a := range d.answers {
						if order[i].owner == inside.owner {
							wantOther.answer = a
						} else {
							want.answer = a
						}
					}
					if len(steps) > 1 {
						m.renumber(&d.fences, inside, &wantOther.answer)
					}
					m.renumber(&d.fences, s, &want.answer)
					if got.err != nil {
						want.answer = driver.Answer{}
					}
					if other.err != nil {
						wantOther.answer = driver.Answer{}
					}
					if s.again && len(got.answer.Wake) == 0 {
						want.answer.Wake = nil // the repeat does not know whom the first one was to wake
					}
					want.inspected = m.inspect(&d.belief)
					if text := cmp.Or(m.differs(d.belief, wantOther, other), m.differs(d.belief, want, got)); text != "" {
						difference = cmp.Or(difference, text)
					} else if !slices.ContainsFunc(m.beliefs, func(known belief) bool { return reflect.DeepEqual(known, d.belief) }) {
						m.beliefs = append(m.beliefs, d.belief)
					}
				}
			}
		}
		if len(m.beliefs) > 0 {
			return "", len(m.beliefs) <= mostBeliefs
		}
	}
	if m.passed(reached) { // the first request made a time that the clock of the second does not tell from now, such as a Leave that shortens the queue
		return "", false
	}
	return difference, false
}

// orWithoutPlace are the requests that a store may make of one that meets another: if it yields, an Acquire may be refused without a place.
func (m *comparison) orWithoutPlace(s step) []step {
	without := s
	if without.join = false; s.kind != driver.Acquire || !s.join || !m.Yields {
		return []step{s}
	}
	return []step{s, without}
}

// decided is a state after some requests, with the answers.
type decided struct {
	belief
	answers []driver.Answer
}

// inOrder asks the rule book, one request after the other; loose is with the alternatives to each state.
func (m *comparison) inOrder(b belief, order []step, loose bool) []decided {
	all := []decided{{belief: b}}
	for _, s := range order {
		r := m.request(s, b.fences)
		var next []decided
		for _, d := range all {
			from := []belief{d.belief}
			if loose {
				from = append(from, m.alternatives(d.belief, r)...)
			}
			for _, of := range from {
				state, _, a, _ := m.book.Decide(of.state, m.clock(), r)
				next = append(next, decided{belief{state, of.fences}, append(slices.Clip(d.answers), a)})
			}
		}
		all = next
	}
	return all
}

// awaits bounds an Await.
const awaits = 100 * time.Millisecond

// ends notes who awaits no turn after a step. A revocation does not take back what an owner may have heard, also if it has renewed the lease
// since.
func (m *comparison) ends(s step) {
	switch s.kind {
	case driver.Release, driver.Abandon, driver.Leave, driver.Complete:
		m.over[m.owners[s.owner]] = true
	case driver.Revoke:
		for _, b := range m.beliefs {
			for _, h := range b.state.Holders {
				m.over[h.Owner] = true
			}
		}
	}
}

// await calls the store's Await. It may say nothing, but what it says of a hand-over is true, also if the owner
// has extended the lease meanwhile.
func (m *comparison) await(s step) string {
	ctx, cancel := context.WithTimeout(m.t.Context(), awaits)
	defer cancel()
	m.compared.Add(1)
	a, err := m.client(s.owner).Driver().Await(ctx, m.key, driver.Request{
		Kind: driver.AwaitTurn, Owner: m.owners[s.owner], Elapsed: m.asked - m.refused[s.owner], Hint: m.note(s),
	})
	if a.Hint != "" && err == nil {
		m.notes[s.owner] = a.Hint
	}
	if err != nil && ctx.Err() == nil {
		return err.Error()
	}
	if err != nil || a.Outcome != driver.Granted || m.over[m.owners[s.owner]] {
		return ""
	}
	for _, b := range m.beliefs {
		for _, h := range b.state.Holders {
			if h.Owner == m.owners[s.owner] && slices.Index(b.fences, h.Fence) == slices.Index(m.fences, a.Fence) && h.Seat == a.Seat &&
				a.TTL <= h.End().Sub(m.clock().Early)+rounding+m.slow {
				return ""
			}
		}
	}
	return fmt.Sprintf("Await says that owner %d was handed the key with fence %d, for %v; want what is true", s.owner, slices.Index(m.fences, a.Fence), a.TTL)
}

// note is that of the step's owner, if its caller has kept it.
func (m *comparison) note(s step) driver.Hint {
	if s.noNote {
		return ""
	}
	return m.notes[s.owner]
}

// seen is what a store has answered, in words that two stores share: fences are numbers.
type seen struct {
	answer    driver.Answer
	inspected driver.Status
	err       error
}

// decide asks the rule book.
func (m *comparison) decide(b *belief, s step) (want seen, changed bool) {
	b.state, changed, want.answer, _ = m.book.Decide(b.state, m.clock(), m.request(s, b.fences))
	m.renumber(&b.fences, s, &want.answer)
	return want, changed
}

// inspect looks at the state of the rule book.
func (m *comparison) inspect(b *belief) driver.Status {
	_, _, a, _ := m.book.Decide(b.state, m.clock(), driver.Request{Kind: driver.Inspect})
	m.number(&b.fences, &a.Status)
	return a.Status
}

func (m *comparison) clock() rules.Clock { return rules.At(m.began.Add(m.asked - m.at)) }

// send sends the step's request to the store, and inspects the key if the comparison looks at it.
func (m *comparison) send(s step, looks bool) (got seen) {
	d := m.client(s.owner).Driver()
	ctx := m.t.Context()
	if !m.virtual {
		within, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		ctx = within
	}
	restore := func() {}
	if s.unheard {
		restore = m.LoseReplies(m.t)
	}
	r := m.request(s, m.fences)
	r.Hint = m.note(s)
	m.compared.Add(1)
	got.answer, got.err = d.Do(ctx, m.key, r)
	restore()
	if s.inside != nil {
		m.Inside(0, false, nil)
	}
	if got.err != nil {
		got.answer = driver.Answer{}
	}
	if got.answer.Hint != "" {
		m.notes[s.owner] = got.answer.Hint
	}
	if s.kind == driver.Acquire && got.answer.Outcome == driver.Refused {
		m.refused[s.owner] = m.asked
		delete(m.over, m.owners[s.owner])
	} else if s.kind == driver.Acquire {
		m.over[m.owners[s.owner]] = true
	}
	m.renumber(&m.fences, s, &got.answer)
	if looks {
		m.compared.Add(1)
		a, err := d.Do(ctx, m.key, driver.Request{Kind: driver.Inspect})
		if err != nil {
			got.err = fmt.Errorf("inspect: %w", err)
		}
		got.inspected = a.Status
		m.number(&m.fences, &got.inspected)
	}
	return got
}

// request is the request of a step, with what its kind reads.
func (m *comparison) request(s step, f fences) driver.Request {
	r := driver.Request{Kind: s.kind, Owner: m.owners[s.owner], Fence: 1}
	if s.fence > 0 && s.fence < len(f) {
		r.Fence = f[s.fence]
	}
	if s.far > 0 {
		r.Fence = farFences(r.Fence)[s.far-1]
	}
	var result driver.HiddenBytes
	if s.result {
		result = driver.HiddenBytes(results[s.owner%len(results)])
	}
	switch s.kind {
	case driver.Acquire:
		if !s.extends {
			r.Fence = 0
		}
		r.TTL, r.MaxHolders, r.Holder, r.Join, r.Parked = s.ttl, s.most, holders[s.owner], s.join, s.parked
		r.Work, r.Event = works[s.event].work, works[s.event].event
		if s.result {
			r.Holder = holders[(s.owner+1)%people] // the text is for people, and never compared
		}
	case driver.Renew:
		r.TTL = s.ttl
	case driver.Abandon, driver.Leave:
		r.Fence = 0
	case driver.Complete:
		r.TTL, r.Result = s.ttl, result
	case driver.Resolve:
		if r.Owner, r.Effect = "", s.join; s.join {
			r.TTL, r.Result = s.ttl, result
		}
	case driver.Revoke:
		r.Owner, r.AtOnce, r.Holder = "", s.join, holders[s.owner]
	}
	return r
}

// farFences are fences that no grant has. One that has 63 bits must not overflow into one that has.
func farFences(f driver.Fence) []driver.Fence {
	return []driver.Fence{f + 1<<32, max(1, f%(1<<32)), f + 1<<53, 1<<63 - 1, 1<<53 + 1}
}

// results are bytes of users.
var results = func() []string {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return []string{"a\x00b\xff\n", "\xff\x00\none two ", string(all) + "\n", "\xfe", `{"status":201,"body":"é"}`}
}()

// holders are the texts of the owners.
var holders = func() (all [people]string) {
	for n := range all {
		all[n] = lockstore.HolderInfo{Name: fmt.Sprint("holder ", n)}.Encode()
	}
	return all
}()

// renumber leaves of an answer what two stores share. What it leaves out gets no number: the other answer may not
// have it.
func (m *comparison) renumber(f *fences, s step, a *driver.Answer) {
	status := a.Status
	*a = driver.Answer{Outcome: a.Outcome, Fence: a.Fence, Seat: a.Seat, TTL: a.TTL, Position: a.Position, Covered: a.Covered, Wake: a.Wake}
	if a.Outcome == driver.Granted && s.kind == driver.Acquire || a.Outcome == driver.Holding {
		a.Fence = f.number(a.Fence)
	} else {
		a.Fence, a.Seat = 0, 0
	}
	switch {
	case a.Outcome == driver.Refused: // the rest is seen by Inspect
		a.Status = driver.Status{State: status.State, Holder: status.Holder, Remaining: status.Remaining, Result: status.Result}
		if s.beside {
			a.Status.Holder, a.Status.Remaining = "", 0
		}
	case s.kind == driver.Revoke && a.Outcome == driver.Done && !s.blurred:
		a.Status = driver.Status{State: status.State, Holder: status.Holder, Remaining: status.Remaining, Holders: slices.Clone(status.Holders)}
		for i := range a.Status.Holders {
			a.Status.Holders[i].Fence = f.number(a.Status.Holders[i].Fence)
		}
		if !s.join {
			forget(&a.Status)
		}
	}
}

// number is about the status of an Inspect.
func (m *comparison) number(f *fences, s *driver.Status) {
	forget(s)
	s.Holders = slices.Clone(s.Holders)
	for i := range s.Holders {
		s.Holders[i].Fence = f.number(s.Holders[i].Fence)
	}
	// An abandon may raise the fence of a free key.
	if s.State == driver.Free {
		s.Fence = 0
	}
	s.Fence, s.Result = f.number(s.Fence), nil
}

// forget drops what says nothing if nobody has the key.
func forget(s *driver.Status) {
	if !s.State.Taken() {
		s.Holder, s.Remaining = "", 0
	}
}

// alternatives are the states that a store may have in place of b, because it remembers few
// of the owners that have ended. Without Harness.Marks it remembers the one whose request
// ended a lease last. Of the others it may also believe that they released. And an abandon of
// an owner that it does not know may raise the fence of a free key. An operator's request that names
// the fence of an owner that is forgotten finds nothing.
func (m *comparison) alternatives(b belief, r driver.Request) (all []belief) {
	if m.Marks > 0 {
		return nil
	}
	s, last := b.state, driver.Owner("") // to end a lease by a request
	for _, e := range s.Ended {
		if e.Fence > 0 && e.How != rules.Expired {
			last = e.Owner
		}
	}
	if r.Kind == driver.Resolve || r.Kind == driver.Revoke {
		b.state.Ended = slices.Clone(s.Ended)
		for i, e := range s.Ended {
			if e.Fence == r.Fence && e.Owner != last {
				b.state.Ended[i].Fence = 0
			}
		}
		all = append(all, b)
	} else if i := slices.IndexFunc(s.Ended, func(e rules.Ended) bool { return e.Owner == r.Owner }); i >= 0 {
		released, forgotten := b, b
		released.state.Ended, forgotten.state.Ended = slices.Clone(s.Ended), slices.Delete(slices.Clone(s.Ended), i, i+1)
		if e := &released.state.Ended[i]; e.How == rules.Expired {
			e.Fence = 0 // an abandon has left the mark
		}
		released.state.Ended[i].How = rules.Released
		all = append(all, released)
		if r.Owner != last || s.Ended[i].How == rules.Expired || s.Ended[i].Fence == 0 {
			all = append(all, forgotten)
		}
	}
	if len(s.Holders) == 0 {
		b.state.LastFence++
		all = append(all, b)
	}
	return all
}

// lapse lets time pass, and more if some time of the key would be over by then for one
// clock and not for another.
func (m *comparison) lapse(d time.Duration) {
	near := 20*time.Millisecond + 4*m.slow
	before, after := near, near+m.TakeoverDelay+m.TurnDelay
	if !m.virtual {
		before, after = 300*time.Millisecond, after+300*time.Millisecond
	}
	before += m.Margin + m.TurnDelay
	now := m.began.Add(m.elapsed() - m.at)
	until := now.Add(d)
	for again := true; again; {
		again = false
		for _, b := range m.beliefs {
			deadlines(b.state, func(end time.Time) bool {
				if until.After(end.Add(-before)) && until.Before(end.Add(after)) {
					until, again = end.Add(after), true
				}
				return true
			})
		}
	}
	if until.After(now) {
		m.Sleep(until.Sub(now))
	}
}

// passed reports whether a time at which an answer changes may have come while the store was asked.
func (m *comparison) passed(beliefs []belief) (passed bool) {
	asked, now := m.began.Add(m.asked-m.at), m.began.Add(m.elapsed()-m.at)
	for _, b := range beliefs {
		b.state.Holders = slices.DeleteFunc(slices.Clone(b.state.Holders), func(h rules.Holder) bool {
			return h.HandedOver && !h.Since.Before(now) // no clock is past its end
		})
		deadlines(b.state, func(end time.Time) bool {
			passed = passed || end.Add(m.TakeoverDelay+m.TurnDelay).After(asked) && end.Add(-m.Margin-m.TurnDelay).Before(now)
			return !passed
		})
	}
	return passed
}

// deadlines are the times at which the answers of a key change.
func deadlines(s rules.State, yield func(time.Time) bool) {
	each := func(end time.Time) {
		for _, w := range s.Queue[:min(len(s.Queue), driver.MaxTurnsBefore)] {
			end = end.Add(max(driver.TurnTime, w.Parked))
			yield(end)
		}
	}
	if s.Closed.For > 0 {
		yield(s.Closed.End())
		each(s.Closed.End())
	}
	for _, h := range s.Holders {
		yield(h.End())
		each(h.End())
	}
}

// differs says how the store's answer differs from that of the rule book, which was asked
// earlier by at most slow, and believes b since.
func (m *comparison) differs(b belief, want, got seen) string {
	const inspected = "inspected"
	late := rounding + m.TakeoverDelay + m.TurnDelay
	near := func(want, got, less, more time.Duration) bool {
		return got >= want-less-m.slow && got <= want+more+m.slow
	}
	status := func(what string, w, g driver.Status) string {
		same := w.State == g.State && w.Fence == g.Fence && w.Holder == g.Holder && w.Waiting == g.Waiting && w.Parked == g.Parked && w.Started == g.Started && bytes.Equal(w.Result, g.Result) && len(w.Holders) == len(g.Holders)
		for i := 0; same && i < len(w.Holders); i++ {
			wh, gh := w.Holders[i], g.Holders[i]
			same = near(wh.Remaining, gh.Remaining, late, late)
			wh.Remaining, gh.Remaining = 0, 0
			same = same && wh == gh
		}
		for i := 0; same && what == inspected && i < len(w.Queue); i++ {
			const off = 2 * time.Second // clocks with whole seconds
			same = len(g.Queue) == len(w.Queue) && w.Queue[i].Parked == g.Queue[i].Parked && near(w.Queue[i].Waited, g.Queue[i].Waited, late+off, late+off)
		}
		if !same {
			return fmt.Sprintf("%s: %+v; want %+v", what, g, w)
		}
		if !near(w.Remaining, g.Remaining, late, late) {
			return fmt.Sprintf("%s: %v remain; want %v", what, g.Remaining, w.Remaining)
		}
		return ""
	}
	w, g := want.answer, got.answer
	switch {
	case w.Outcome != g.Outcome:
		return fmt.Sprintf("the store says %q; want %q", outcome(g), outcome(w))
	case w.Fence != g.Fence:
		return fmt.Sprintf("the lease has fence %d; want %d", g.Fence, w.Fence)
	case !m.fences.like(b.fences):
		return fmt.Sprintf("the fences are %d; want some that grow as %d", m.fences, b.fences)
	case w.Seat != g.Seat:
		return fmt.Sprintf("the lease has seat %d; want %d", g.Seat, w.Seat)
	case !near(w.TTL, g.TTL, m.Margin+late, late):
		return fmt.Sprintf("the lease may be trusted for %v; want %v", g.TTL, w.TTL)
	case w.Position != g.Position:
		return fmt.Sprintf("refused with place %d; want %d", g.Position, w.Position)
	case w.Covered != g.Covered:
		return fmt.Sprintf("covered %t; want %t", g.Covered, w.Covered)
	case !slices.Equal(w.Wake, g.Wake):
		return fmt.Sprintf("%d parked owners are to be woken; want %d", len(g.Wake), len(w.Wake))
	}
	return cmp.Or(status(outcome(g)+" with", w.Status, g.Status), status(inspected, want.inspected, got.inspected))
}

// outcome is the outcome of an answer in words.
func outcome(a driver.Answer) string {
	text := [...]string{"no answer", "granted", "done", "refused", "lost", "it holds the key", "it is not alone"}[a.Outcome]
	if a.Outcome == driver.Refused {
		text += ", for the key is " + a.Status.State.String()
	}
	return text
}
