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

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

var rulesCases = []testCase{
	{
		"rules/random requests get the answers of the rule book",
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
}

// Sequences compares a store with the rule book by random sequences of requests, as a case of
// Run does, and by as many as the caller wants: with the seeds from first on. Each sequence has
// a synctest bubble and a store of its own. At the first difference the test fails, and names the
// seed and the shortest sequence found.
func Sequences(t *testing.T, open func(t *testing.T) Harness, first uint64, count int) {
	t.Helper()
	for seed := first; seed < first+uint64(count); seed++ {
		synctest.Test(t, func(t *testing.T) { // a failure ends the whole test
			if d := newCheck(t, t, open(t), true).difference(seed); d != "" {
				t.Fatal(d)
			}
		})
	}
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

// step is a request of a sequence, after some time. Owners and fences are numbers in the
// order in which they appeared.
type step struct {
	lapse  time.Duration
	kind   driver.Kind
	owner  int
	fence  int
	ttl    time.Duration
	join   bool // of Acquire, AtOnce of Revoke, Effect of Resolve
	result bool
}

func (s step) String() string {
	return fmt.Sprintf("%v later: %s owner %d, fence %d, %v, join/now/effect %t, result %t", s.lapse, s.kind, s.owner, s.fence, s.ttl, s.join, s.result)
}

// sequences is how many random sequences Run makes by default, if waiting takes no time.
const sequences = 300

// byDefault is fewer under the race detector: it looks for races, and each sequence of requests has
// the same ones.
func byDefault() int {
	if verifyrecord.WithRaceDetector {
		return sequences / 10
	}
	return sequences
}

// Random sequences have this many requests. On the wall clock they are shorter, and no time
// passes before most of their requests.
const (
	longSequence  = 40
	shortSequence = 12
)

// compare runs the steps, or random ones, on a new key, until the store differs. It
// returns what it ran and the difference.
func (c *check) compare(steps []step, random *rand.Rand) ([]step, string) {
	m := &model{c: c, book: rules.Book{Places: 64, Marks: cmp.Or(c.Marks, 16), FreeOnRelease: c.FreesOnRelease}, began: time.Now(), at: c.elapsed()}
	both := [2]*side{{Store: lockstore.New("rules", m)}, {Store: c.Store}}
	key, prefix := newKey(), rand.Uint64()
	owner := func(n int) lockstore.Owner { return lockstore.Owner(fmt.Sprintf("%016x-%d", prefix, n)) }
	var ran []step
	last := lockstore.Owner("") // to end a lease by a request
	length, crowd := len(steps), false
	if random != nil {
		crowd = random.IntN(2) == 0
		if length = shortSequence; c.virtual {
			length = longSequence
		}
	}
	for n := range length {
		var s step
		if random == nil {
			s = steps[n]
		} else {
			s = c.randomStep(random, crowd, ran, both[0])
		}
		ran = append(ran, s)
		c.lapse(m, s.lapse)
		before := m.state
		m.asked = c.elapsed()
		want := both[0].run(c, key, owner, s)
		both[1].Store = c.client(s.owner)
		got := both[1].run(c, key, owner, s)
		m.slow = max(m.slow, c.elapsed()-m.asked)
		difference := c.differs(want, got, m.slow)
		for _, other := range c.alternatives(before, owner(s.owner), last) {
			if difference == "" {
				break
			}
			m.state = other
			want = both[0].run(c, key, owner, s)
			if c.differs(want, got, m.slow) == "" {
				difference = ""
			}
		}
		if difference != "" && !c.virtual && c.passed(m, before, m.state) {
			return ran, "" // a slow answer may be of before or of after that time
		}
		if difference != "" {
			return ran, difference
		}
		if n := len(m.state.Ended); n > 0 && m.state.Ended[n-1].Fence > 0 && m.state.Ended[n-1].How != rules.Expired {
			last = m.state.Ended[n-1].Owner
		}
		both[0].learn(want)
	}
	return ran, ""
}

// alternatives are the states that a store may have in place of s, because it remembers few
// of the owners that have ended. Without Harness.Marks it remembers the one whose request
// ended a lease last. Of the others it may also believe that they released. And an abandon of
// an owner that it does not know may raise the fence of a free key.
func (c *check) alternatives(s rules.State, owner, last lockstore.Owner) (all []rules.State) {
	if c.Marks > 0 {
		return nil
	}
	if i := slices.IndexFunc(s.Ended, func(e rules.Ended) bool { return e.Owner == owner }); i >= 0 {
		released, forgotten := s, s
		released.Ended, forgotten.Ended = slices.Clone(s.Ended), slices.Delete(slices.Clone(s.Ended), i, i+1)
		released.Ended[i].How = rules.Released
		all = append(all, released)
		if owner != last || s.Ended[i].How == rules.Expired || s.Ended[i].Fence == 0 {
			all = append(all, forgotten)
		}
	}
	if len(s.Holders) == 0 {
		raised := s
		raised.LastFence++
		all = append(all, raised)
	}
	return all
}

// model is the rule book as a driver, with one key.
type model struct {
	c     *check
	book  rules.Book
	state rules.State
	began time.Time
	at    time.Duration // of the case when the sequence began
	asked time.Duration // when the step began: each answer of the step is of then
	slow  time.Duration // how much later than the rule book the store is asked, and answers
}

func (m *model) now() time.Time { return m.began.Add(m.c.elapsed() - m.at) }

func (m *model) Do(_ context.Context, _ string, r driver.Request) (driver.Answer, error) {
	next, _, answer, _ := m.book.Decide(m.state, rules.At(m.began.Add(m.asked-m.at)), r)
	m.state = next
	return answer, nil
}

func (m *model) Await(context.Context, string, driver.Request) (driver.Answer, error) {
	return driver.Answer{Outcome: driver.Ask}, nil
}

// lapse lets time pass, and more if some time of the key would be over by then for one
// clock and not for another.
func (c *check) lapse(m *model, d time.Duration) {
	near := 20*time.Millisecond + 4*m.slow
	before, after := near, near+c.TakeoverDelay+c.TurnDelay
	if !c.virtual {
		before, after = 300*time.Millisecond, after+300*time.Millisecond
	}
	before += c.Margin + c.TurnDelay
	now := m.now()
	until := now.Add(d)
	for again := true; again; {
		again = false
		for _, end := range deadlines(m.state) {
			if until.After(end.Add(-before)) && until.Before(end.Add(after)) {
				until, again = end.Add(after), true
			}
		}
		if freed := m.state.Freed; !until.Before(freed) && until.Before(freed.Add(near)) {
			until, again = freed.Add(near), true
		}
	}
	if until.After(now) {
		c.sleep(until.Sub(now))
	}
}

// passed reports whether a time at which an answer changes came while the store was asked.
func (c *check) passed(m *model, states ...rules.State) bool {
	asked, now := m.began.Add(m.asked-m.at), m.now()
	for _, s := range states {
		for _, end := range deadlines(s) {
			if end.Add(c.TakeoverDelay+c.TurnDelay).After(asked) && end.Add(-c.Margin-c.TurnDelay).Before(now) {
				return true
			}
		}
	}
	return false
}

// deadlines are the times at which the answers of a key change.
func deadlines(s rules.State) []time.Time {
	all := []time.Time{s.Closed.End()}
	for _, h := range s.Holders {
		all = append(all, h.End())
	}
	for _, end := range append(slices.Clone(all), s.Freed) {
		for turn := range min(len(s.Queue), driver.MaxTurns) {
			all = append(all, end.Add(time.Duration(turn+1)*driver.Turn))
		}
	}
	return all
}

// side is a store, and what its caller knows.
type side struct {
	Store  *lockstore.Store
	fences []lockstore.Fence // in the order in which they appeared
	leases map[int]int       // owner -> its fence
	owners int
	doubt  bool // the key is in doubt
}

// seen is what a call returned, in words that two stores share.
type seen struct {
	outcome   string
	owner     int
	fence     lockstore.Fence // of a grant
	fenceNo   int             // the number of the fence
	trust     time.Duration
	refused   lockstore.Refused
	status    lockstore.Status
	inspected lockstore.Status
}

// run calls the store.
func (s *side) run(c *check, key string, owner func(int) lockstore.Owner, st step) seen {
	ctx, cancel := context.WithTimeout(c.t.Context(), callTimeout)
	defer cancel()
	lease := lockstore.Lease{Key: key, Owner: owner(st.owner), Fence: 1}
	if st.fence < len(s.fences) {
		lease.Fence = s.fences[st.fence]
	}
	holder := lockstore.HolderInfo{Name: fmt.Sprint("holder ", st.owner)}
	result := []byte(nil)
	if st.result {
		result = fmt.Appendf(nil, "result of %d", st.owner)
	}
	var got seen
	var err error
	switch st.kind {
	case driver.Acquire:
		var l lockstore.Lease
		l, err = s.Store.Acquire(ctx, lockstore.Request{Key: key, Owner: lease.Owner, TTL: st.ttl, HolderInfo: holder, JoinQueue: st.join})
		got.fence, got.trust = l.Fence, l.TTL
	case driver.Renew:
		got.trust, err = s.Store.Renew(ctx, lease, st.ttl)
	case driver.Release:
		err = s.Store.Release(ctx, lease)
	case driver.Abandon:
		lease.Fence = 0
		err = s.Store.Release(ctx, lease)
	case driver.Leave:
		err = s.Store.Leave(ctx, key, lease.Owner)
	case driver.MarkStarted:
		err = s.Store.MarkStarted(ctx, lease)
	case driver.Complete:
		err = s.Store.Complete(ctx, lease, result, st.ttl)
	case driver.Resolve:
		if st.join {
			err = s.Store.ResolveEffect(ctx, key, lease.Fence, result, st.ttl)
		} else {
			err = s.Store.ResolveNoEffect(ctx, key, lease.Fence)
		}
	case driver.Revoke:
		got.status, err = s.Store.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: lease.Fence, By: holder, OpenAtOnce: st.join})
	}
	got.owner = st.owner
	got.outcome = got.name(err)
	if got.inspected, err = s.Store.Inspect(ctx, key); err != nil {
		got.outcome += ", and Inspect: " + err.Error()
	}
	got.fenceNo = s.number(got.fence)
	for _, status := range []*lockstore.Status{&got.inspected, &got.status} {
		// An abandon may raise the fence of a free key. That of a hand-over is of a grant.
		if status.State == lockstore.Free || status.State == lockstore.Reserved && c.FreesOnRelease {
			status.Fence = 0
		}
		status.Fence = lockstore.Fence(s.number(status.Fence))
	}
	got.inspected.Key, got.status.Key = "", ""
	return got
}

// number is the number of a fence, and 0 for none.
func (s *side) number(f lockstore.Fence) int {
	if len(s.fences) == 0 {
		s.fences = []lockstore.Fence{0}
	}
	i := slices.Index(s.fences, f)
	if i < 0 {
		s.fences = append(s.fences, f)
		i = len(s.fences) - 1
	}
	return i
}

// learn notes what a caller knows after a step.
func (s *side) learn(want seen) {
	s.owners, s.doubt = max(s.owners, want.owner+1), want.inspected.State == lockstore.InDoubt
	if want.fenceNo > 0 {
		if s.leases == nil {
			s.leases = map[int]int{}
		}
		s.leases[want.owner] = want.fenceNo
	}
}

// name is the kind of an error, and fills in what the error says.
func (s *seen) name(err error) string {
	refused, isRefused := errors.AsType[*lockstore.Refused](err)
	switch {
	case err == nil:
		return "yes"
	case isRefused:
		s.refused = *refused
		s.refused.Key = ""
		return "refused: " + refused.State.String()
	case errors.Is(err, lockstore.ErrLost):
		return "lost"
	case errors.Is(err, lockstore.ErrGranted):
		return "holds it"
	}
	return err.Error()
}

// differs says how the store's answer differs from that of the rule book, which was asked
// earlier by at most slow.
func (c *check) differs(want, got seen, slow time.Duration) string {
	late := rounding + c.TakeoverDelay + c.TurnDelay
	near := func(want, got, less, more time.Duration) bool {
		return got >= want-less-slow && got <= want+more+slow
	}
	status := func(what string, want, got lockstore.Status) string {
		w, g := want, got
		w.Remaining, g.Remaining = 0, 0
		if w != g {
			return fmt.Sprintf("%s: %+v; want %+v", what, got, want)
		}
		if !near(want.Remaining, got.Remaining, late, late) {
			return fmt.Sprintf("%s: %v remain; want %v", what, got.Remaining, want.Remaining)
		}
		return ""
	}
	switch {
	case want.outcome != got.outcome:
		return fmt.Sprintf("the store says %q; want %q", got.outcome, want.outcome)
	case want.fenceNo != got.fenceNo:
		return fmt.Sprintf("the lease has fence %d; want %d", got.fenceNo, want.fenceNo)
	case !near(want.trust, got.trust, c.Margin+late, late):
		return fmt.Sprintf("the lease may be trusted for %v; want %v", got.trust, want.trust)
	case !near(want.refused.Remaining, got.refused.Remaining, late, late):
		return fmt.Sprintf("refused with %v remaining; want %v", got.refused.Remaining, want.refused.Remaining)
	case !bytes.Equal(want.refused.Result, got.refused.Result):
		return fmt.Sprintf("refused with the result %q; want %q", []byte(got.refused.Result), []byte(want.refused.Result))
	}
	w, g := want.refused, got.refused
	w.Remaining, g.Remaining, w.Result, g.Result = 0, 0, nil, nil
	if !reflect.DeepEqual(w, g) {
		return fmt.Sprintf("refused with %+v; want %+v", g, w)
	}
	if d := status("revoked", want.status, got.status); d != "" {
		return d
	}
	return status("inspected", want.inspected, got.inspected)
}

// randomStep is the next step of a sequence. In a crowd most requests are about the queue. known
// is what the callers know.
func (c *check) randomStep(random *rand.Rand, crowd bool, ran []step, known *side) step {
	var s step
	if n := len(ran); n > 0 && random.IntN(8) == 0 {
		s = ran[n-1-random.IntN(min(n, 6))] // a repeat, or a late duplicate
		s.lapse = 0
		return s
	}
	switch n := random.IntN(24); {
	case n < 2 && c.virtual:
		s.lapse = time.Duration(random.Int64N(int64(15 * time.Second)))
	case n < 2 || n < 8 && c.virtual:
		s.lapse = time.Duration(random.Int64N(int64(4 * time.Second)))
	}
	s.owner = max(0, known.owners-random.IntN(7)) // a new one, or one of the last
	s.fence = known.leases[s.owner]
	if random.IntN(10) == 0 && len(known.fences) > 0 {
		s.fence = random.IntN(len(known.fences))
	}
	s.ttl = time.Second + time.Duration(random.IntN(9000))*time.Millisecond
	s.result = random.IntN(2) == 0
	s.join = random.IntN(4) > 0
	kinds := []driver.Kind{
		driver.Acquire, driver.Acquire, driver.Acquire, driver.Acquire, driver.Acquire, driver.Renew, driver.Renew,
		driver.Release, driver.Release, driver.Release, driver.Abandon, driver.Leave, driver.MarkStarted,
	}
	if random.IntN(2) == 0 {
		kinds = append(kinds, driver.Complete)
	}
	kinds = append(kinds, driver.Resolve)
	if crowd && random.IntN(2) == 0 {
		kinds = []driver.Kind{driver.Acquire, driver.Acquire, driver.Acquire, driver.Acquire, driver.Leave, driver.Leave, driver.MarkStarted}
		s.owner, s.join = max(0, known.owners-random.IntN(8)), true
	}
	if random.IntN(2) == 0 {
		kinds = append(kinds, driver.Revoke)
	}
	if s.kind = kinds[random.IntN(len(kinds))]; s.kind == driver.Renew {
		// Renew for less than the TTL may make the lease end earlier or later, see lockstore.Store.
		s.ttl = 10 * time.Second
	}
	if known.doubt && random.IntN(3) == 0 {
		s.kind = driver.Resolve
	}
	if f := len(known.fences) - 1; (s.kind == driver.Resolve || s.kind == driver.Revoke) && f > 0 && random.IntN(5) > 0 {
		s.fence = f // an operator names the last grant
	}
	switch s.kind { // most requests come from those who hold the key
	case driver.Renew, driver.Release, driver.MarkStarted, driver.Complete:
		for o := range known.owners {
			f := known.leases[o]
			if f == len(known.fences)-1 && random.IntN(4) > 0 {
				s.owner, s.fence = o, f
			}
		}
	}
	return s
}
