package rules_test

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

// step is one request, from any state that satisfies the invariant. What is true of every step holds for any number
// of clients and any history: none of it occurs here.
type step struct {
	book          rules.Book
	before, after rules.State
	now           time.Time   // the right time
	clock         rules.Clock // what the request knows of it
	request       driver.Request
	answer        driver.Answer
	guess         bool // the time was guessed, and no stamp was asked for
}

// wrong says what is wrong with the step, or "".
func (s *step) wrong() string {
	if sentence := s.after.Broken(); sentence != "" {
		return sentence
	}
	if s.after.LastFence < s.before.LastFence {
		return "the last fence falls"
	}
	for _, check := range []func() string{s.wrongLease, s.wrongGrant, s.wrongPlace, s.wrongClose, s.wrongMark, s.wrongAnswer, s.wrongNews} {
		if wrong := check(); wrong != "" {
			return wrong
		}
	}
	return ""
}

func leaseOf(s *rules.State, o driver.Owner) *rules.Holder {
	for i := range s.Holders {
		if s.Holders[i].Owner == o {
			return &s.Holders[i]
		}
	}
	return nil
}

func leaseWith(s *rules.State, f driver.Fence) *rules.Holder {
	for i := range s.Holders {
		if s.Holders[i].Fence == f {
			return &s.Holders[i]
		}
	}
	return nil
}

func placeOf(s *rules.State, o driver.Owner) int {
	return slices.IndexFunc(s.Queue, func(w rules.Waiter) bool { return w.Owner == o })
}

func markOf(s *rules.State, o driver.Owner) *rules.Ended {
	for i := range s.Ended {
		if s.Ended[i].Owner == o {
			return &s.Ended[i]
		}
	}
	return nil
}

func (s *step) live(end time.Time) bool { return s.clock.Early.Before(end) }

// trusted is until when somebody may trust what has begun at since: at most to its end, and for its length from now
// on, because it was granted before now. A clock that was set back makes the difference.
func (s *step) trusted(since time.Time, length time.Duration) time.Time {
	if since.After(s.now) {
		since = s.now
	}
	return since.Add(length)
}

// begins reports whether a time that was since before the step is right after it, if nothing but a clock that was set
// back changes it.
func (s *step) begins(before, after time.Time) bool {
	if !s.guess && s.request.Kind != driver.Inspect && before.After(s.clock.Late) {
		before = s.clock.Late
	}
	return after.Equal(before)
}

// owns reports whether the request is by the owner of the lease, with its fence.
func (s *step) owns(h *rules.Holder) bool {
	return s.request.Owner == h.Owner && s.request.Fence == h.Fence
}

// wrongLease is about the leases that were there: each stays as it is, unless its owner or an operator says otherwise.
// One that has ended goes when somebody else is granted the key, if its work has not started.
func (s *step) wrongLease() string {
	r := &s.request
	for i := range s.before.Holders {
		h := &s.before.Holders[i]
		n := leaseWith(&s.after, h.Fence)
		operates := r.Fence == h.Fence && (r.Kind == driver.Revoke || r.Kind == driver.Resolve)
		if n == nil {
			how, ends := rules.Released, false
			switch {
			case r.Kind == driver.Abandon && r.Owner == h.Owner:
				ends = !h.Revoked || !h.Started
			case r.Kind == driver.Release && s.owns(h):
				if ends = !h.Revoked || !h.Started; h.Revoked {
					how = rules.Revoked
				}
			case r.Kind == driver.Complete && s.owns(h):
				how, ends = rules.Completed, !h.Revoked && h.MaxHolders == 1
			case operates && r.Kind == driver.Resolve:
				if ends = h.Started && !s.live(h.End()); !r.Effect {
					how = rules.Resolved
				}
			case operates && r.AtOnce:
				how, ends = rules.Revoked, !h.Started
			case !h.Started && !s.live(h.End()):
				if how = rules.Expired; h.Revoked {
					how = rules.Revoked
				}
				ends = s.after.LastFence > s.before.LastFence
			}
			if !ends {
				return "a lease is gone without a reason"
			}
			lapsed := how == rules.Expired && h.HandedOver
			if m := markOf(&s.after, h.Owner); s.forgets() || lapsed {
				continue
			} else if m == nil || m.Fence != h.Fence || m.How != how {
				return "a lease has ended without its mark"
			}
			continue
		}
		owner := r.Owner == h.Owner && (r.Fence == h.Fence || r.Fence == 0) && !h.Revoked
		extends := owner && (r.Kind == driver.Renew || r.Kind == driver.Acquire && h.HandedOver)
		switch {
		case n.Owner != h.Owner || n.Seat != h.Seat || n.MaxHolders != h.MaxHolders:
			return "a lease has another owner, seat or number"
		case s.trusted(n.Since, n.TTL).Before(s.trusted(h.Since, h.TTL)):
			return "a lease is shorter than its owner trusts it"
		case extends && !n.Since.Equal(s.begin()) && !s.begins(h.Since, n.Since):
			return "a lease that is extended begins at another time"
		case !extends && (n.TTL != h.TTL || !s.begins(h.Since, n.Since)):
			return "the time of a lease changes without its owner"
		case !s.guess && !s.live(h.End()) && !s.begins(h.Since, n.Since):
			return "a lease that has ended is revived"
		case n.Started != h.Started && !(n.Started && owner && r.Kind == driver.MarkStarted && s.live(h.End())):
			return "a start is made, or forgotten, without its owner"
		case n.Revoked != h.Revoked && !(n.Revoked && operates && r.Kind == driver.Revoke):
			return "a lease is revoked, or is not any more, without an operator"
		case n.HandedOver != h.HandedOver && (n.HandedOver || !extends && !n.Revoked):
			return "a lease that was handed over counts as extended, or the other way round"
		case n.Text != h.Text && !extends && !operates:
			return "a lease has another text"
		}
	}
	return ""
}

// wrongGrant is about new leases: who asks gets one if there has been room for long enough, and others one for one turn.
func (s *step) wrongGrant() string {
	r := &s.request
	for i := range s.after.Holders {
		n := &s.after.Holders[i]
		if leaseWith(&s.before, n.Fence) != nil {
			continue
		}
		place := placeOf(&s.before, n.Owner)
		old := leaseOf(&s.before, n.Owner)
		switch {
		case n.Fence <= s.before.LastFence:
			return "a new lease has an old fence"
		case n.Revoked || n.Started:
			return "a new lease is revoked or started"
		case !n.Since.Equal(s.begin()):
			return "a new lease does not begin now"
		case s.closed(&s.before):
			return "a closed key is granted"
		case markOf(&s.before, n.Owner) != nil:
			return "an owner that has ended gets a lease"
		case old != nil && (s.live(old.End()) || !old.HandedOver):
			return "an owner gets a second lease"
		}
		for seat := range n.Seat {
			if !slices.ContainsFunc(s.after.Holders[:i], func(h rules.Holder) bool { return h.Seat == seat }) {
				return "a seat is not the lowest free one"
			}
		}
		if n.Owner == r.Owner && r.Kind == driver.Acquire && !n.HandedOver {
			switch before, at := s.waitsFor(place); {
			case r.Fence != 0:
				return "an extension gets a new lease"
			case n.TTL != r.TTL || n.MaxHolders != r.MaxHolders || n.Text != r.Holder:
				return "a new lease is not what was asked for"
			case !s.fits(&s.before, at, r.MaxHolders, before):
				return "an owner is granted the key before its turn"
			}
			continue
		}
		switch {
		case place < 0 || !n.HandedOver:
			return "somebody is granted the key that did not ask"
		case n.MaxHolders != s.before.Queue[place].MaxHolders || n.TTL != max(driver.TurnTime, s.before.Queue[place].Parked):
			return "a key is handed over for another turn or number"
		case !s.makesRoom():
			return "a request that makes no room hands the key over"
		}
	}
	if first := s.after.Queue; len(first) > 0 && !s.guess && s.makesRoom() && !s.inDoubt(&s.after) && s.fits(&s.after, s.clock.Early, first[0].MaxHolders, nil) {
		return "there is room for the first in the queue, and nobody hands the key over"
	}
	return ""
}

// begin is when what the step makes begins.
func (s *step) begin() time.Time {
	if s.guess {
		return s.now
	}
	return s.clock.Late
}

// makesRoom reports whether the request ends a lease or the first place, or grants the key.
func (s *step) makesRoom() bool {
	r := &s.request
	if (r.Kind == driver.Abandon || r.Kind == driver.Leave) && len(s.before.Queue) > 0 && s.before.Queue[0].Owner == r.Owner && placeOf(&s.after, r.Owner) < 0 {
		return true
	}
	for i := range s.before.Holders {
		if h := &s.before.Holders[i]; leaseWith(&s.after, h.Fence) == nil && (r.Kind != driver.Leave || s.live(h.End())) && r.Kind != driver.Acquire {
			return true
		}
	}
	return s.grants()
}

// grants reports whether who asks gets a new lease.
func (s *step) grants() bool {
	return s.request.Kind == driver.Acquire && s.answer.Outcome == driver.Granted && s.answer.Fence > s.before.LastFence
}

// waitsFor are the places before one, all if it is -1, and the time at which there has to be room for its owner already.
func (s *step) waitsFor(place int) (before []rules.Waiter, at time.Time) {
	if before = s.before.Queue; place >= 0 {
		before = before[:place]
	}
	turns := time.Duration(0)
	for i, w := range before {
		if i < driver.MaxTurnsBefore {
			turns += max(driver.TurnTime, w.Parked)
		}
	}
	return before, s.clock.Early.Add(-min(turns, driver.MaxDelay))
}

// fits reports whether a key has room at a time, for a request and for those before it, who may have become holders by then.
func (s *step) fits(key *rules.State, at time.Time, most int, before []rules.Waiter) bool {
	for _, w := range before {
		most = min(most, w.MaxHolders)
	}
	live := 0
	for i := range key.Holders {
		if h := &key.Holders[i]; at.Before(h.End()) {
			live, most = live+1, min(most, h.MaxHolders)
		}
	}
	return live < most && (key.Closed.For == 0 || !at.Before(key.Closed.End()))
}

// hasPlace reports whether a queue with so many places may have one more, for the request.
func (s *step) hasPlace(places int) bool {
	return places < s.book.Places && (s.request.Parked == 0 || len(rules.Parked(s.before.Queue)) < s.book.Places/2)
}

func (s *step) closed(key *rules.State) bool { return key.Closed.For > 0 && s.live(key.Closed.End()) }

// closes reports whether the step closes the key.
func (s *step) closes() bool { return s.after.Closed.For > 0 && s.before.Closed.For == 0 }

func (s *step) inDoubt(key *rules.State) bool {
	return slices.ContainsFunc(key.Holders, func(h rules.Holder) bool { return h.Started && !s.live(h.End()) })
}

// wrongPlace is about the queue: nobody moves, and nobody's place ends but by its owner's request, a grant to
// it or to somebody behind it, or the end of the queue.
func (s *step) wrongPlace() string {
	r := &s.request
	closes := s.closes()
	granted, handed := -1, -1 // the last place whose owner was granted the key when it asked, and to whom it was handed over
	if s.grants() {
		if granted = placeOf(&s.before, r.Owner); granted < 0 {
			granted = len(s.before.Queue) - 1
		}
	}
	isNew := func(o driver.Owner) bool {
		h := leaseOf(&s.after, o)
		return h != nil && leaseWith(&s.before, h.Fence) == nil
	}
	for i, w := range s.before.Queue {
		if i > granted && isNew(w.Owner) {
			handed = i
		}
	}
	kept := 0
	for i, w := range s.before.Queue {
		if at := placeOf(&s.after, w.Owner); at >= 0 {
			switch {
			case at != kept || s.after.Queue[at] != w:
				return "a place moves, or is another one"
			case i <= max(granted, handed):
				return "a grant leaves a place before it"
			case closes:
				return "a place outlives the work"
			}
			kept++
			continue
		}
		had := leaseOf(&s.before, w.Owner)
		touched := r.Owner == w.Owner && r.Kind != driver.Inspect || // all that its owner asks for
			had != nil && had.Fence == r.Fence && (r.Kind == driver.Revoke || r.Kind == driver.Resolve) ||
			had != nil && s.live(had.End()) && kept == 0 && s.makesRoom() // it was handed the key already
		if i > granted && !isNew(w.Owner) && !touched && !closes {
			return "a place is gone without a reason"
		}
	}
	if added := len(s.after.Queue) - kept; added > 0 {
		w, had := s.after.Queue[kept], leaseOf(&s.before, r.Owner)
		switch {
		case added > 1 || w != (rules.Waiter{Owner: r.Owner, MaxHolders: r.MaxHolders, Parked: r.Parked, Since: s.clock.Late, Work: r.Work, Event: r.Event}):
			return "a place of somebody else is new"
		case r.Kind != driver.Acquire || !r.Join || s.answer.Outcome != driver.Refused:
			return "somebody joins that did not ask for it, or was not refused"
		case had != nil && s.live(had.End()):
			return "a holder joins"
		case !s.hasPlace(kept):
			return "a queue has more places than it may have"
		case s.closed(&s.before) || s.inDoubt(&s.before) && !s.guess:
			return "somebody joins a key that is closed or in doubt"
		}
	}
	return ""
}

// wrongClose is about a key whose work is done: it stays closed until its time is over.
func (s *step) wrongClose() string {
	r, b, n := &s.request, &s.before.Closed, &s.after.Closed
	switch {
	case n.For == 0 && (len(n.Result) > 0 || n.Text != "" || !n.Since.IsZero()):
		return "something of a closed time is left in a key that is open"
	case b.For == 0 && n.For == 0:
	case b.For == 0: // closed by this step
		var h *rules.Holder
		if r.Kind == driver.Resolve && r.Effect || r.Kind == driver.Complete {
			h = leaseWith(&s.before, r.Fence)
		}
		switch {
		case h == nil || h.MaxHolders != 1,
			r.Kind == driver.Complete && (h.Owner != r.Owner || h.Revoked),
			r.Kind == driver.Resolve && (!h.Started || s.live(h.End())):
			return "somebody closes the key that may not"
		case n.For != r.TTL || !n.Since.Equal(s.begin()) || !bytes.Equal(n.Result, r.Result) || n.Text != h.Text:
			return "a key is closed for another time, or with another result"
		}
	case n.For == 0:
		if s.live(b.End()) || s.after.LastFence == s.before.LastFence {
			return "a closed key opens before its time"
		}
	case n.For != b.For || !s.begins(b.Since, n.Since) || !bytes.Equal(n.Result, b.Result) || n.Text != b.Text:
		return "a closed key changes"
	}
	return ""
}

// forgets reports whether more owners end in this step than the key remembers. One grant may end many leases.
func (s *step) forgets() bool {
	gone := 0
	if s.request.Kind == driver.Abandon && leaseOf(&s.before, s.request.Owner) == nil {
		gone = 1
	}
	for _, h := range s.before.Holders {
		if leaseWith(&s.after, h.Fence) == nil {
			gone++
		}
	}
	return gone > s.book.Marks
}

// wrongMark is about the owners that have ended: the key remembers the last ones, and they change nothing.
func (s *step) wrongMark() string {
	r := &s.request
	kept := 0 // how many of the old marks are left
	for kept < len(s.after.Ended) && slices.Contains(s.before.Ended, s.after.Ended[kept]) {
		kept++
	}
	added := s.after.Ended[kept:]
	if len(s.after.Ended) > s.book.Marks || kept < min(len(s.before.Ended), s.book.Marks-len(added)) {
		return "an owner that has ended is forgotten"
	}
	if !slices.Equal(s.after.Ended[:kept], s.before.Ended[len(s.before.Ended)-kept:]) {
		return "marks change their order"
	}
	for _, m := range added {
		had := leaseOf(&s.before, m.Owner)
		abandoned := m == rules.Ended{Owner: r.Owner} && r.Kind == driver.Abandon && had == nil
		if !abandoned && (had == nil || had.Fence != m.Fence) {
			return "a mark is of no lease"
		}
	}
	if r.Kind == driver.Abandon && markOf(&s.after, r.Owner) == nil && !s.forgets() {
		if h := leaseOf(&s.before, r.Owner); h == nil || !h.Revoked || !h.Started {
			return "who has abandoned is forgotten"
		}
	}
	operates := r.Kind == driver.Revoke || r.Kind == driver.Resolve || r.Kind == driver.Inspect
	if markOf(&s.before, r.Owner) != nil && !operates && (len(added) > 0 || s.after.LastFence != s.before.LastFence || len(s.after.Holders) != len(s.before.Holders) || len(s.after.Queue) != len(s.before.Queue)) {
		return "a request of an owner that has ended changes the key"
	}
	return ""
}

// wrongAnswer is about what the answer says.
func (s *step) wrongAnswer() string {
	r, a := &s.request, &s.answer
	had, has := leaseOf(&s.before, r.Owner), leaseOf(&s.after, r.Owner)
	fenced := had != nil && had.Fence == r.Fence && !had.Revoked // the request is by the owner of a lease
	mark := markOf(&s.before, r.Owner)
	if r.Kind == driver.Inspect || a.Outcome == driver.Refused {
		switch {
		case a.Status.Fence != s.after.LastFence || a.Status.Waiting != len(s.after.Queue):
			return "the state has another fence or queue than is told"
		case !s.guess && (a.Status.State == driver.Completed) != (s.closed(&s.after) && s.after.Closed.Result != nil):
			return "the key is told to be completed, and is not, or the other way round"
		}
	}
	if wrong := s.wrongCover(); wrong != "" {
		return wrong
	}
	switch a.Outcome {
	case driver.Granted:
		switch {
		case r.Kind != driver.Acquire && r.Kind != driver.Renew:
			return "a lease is the answer to another request"
		case has == nil || has.Fence != a.Fence || has.Seat != a.Seat || r.Fence != 0 && r.Fence != a.Fence:
			return "granted, and it has no such lease"
		case has.Revoked:
			return "granted, and the lease is revoked"
		case s.now.Add(a.TTL).After(s.trusted(has.Since, has.TTL)):
			return "a lease is trusted beyond its end"
		}
		want := has.End().Sub(s.begin())
		if r.Kind == driver.Acquire {
			want = min(want, r.TTL)
		}
		if a.TTL != want {
			return "a lease is trusted for another time than was asked for"
		}
		if r.Kind == driver.Renew && (has.TTL < r.TTL || !has.Since.Equal(s.begin()) || has.HandedOver) {
			return "a renewal does not make the lease last for its TTL"
		}
	case driver.Lost:
		switch r.Kind {
		case driver.Acquire:
			if mark == nil && !(had != nil && (had.Revoked || !had.HandedOver && !s.live(had.End()))) && (r.Fence == 0 || fenced && s.live(had.End())) {
				return "an acquire is lost whose owner has not ended"
			}
		case driver.Renew, driver.MarkStarted:
			if fenced && s.live(had.End()) {
				return "a live lease is lost"
			}
		case driver.Release:
			if fenced || mark != nil && mark.How != rules.Expired && mark.How != rules.Revoked {
				return "a release is lost that nobody came before"
			}
		case driver.Complete:
			if fenced || mark != nil && mark.How == rules.Completed {
				return "a completion is lost that nobody came before"
			}
		case driver.Resolve:
			if s.resolves() {
				return "a resolve is lost of work that is in doubt, or that was resolved before"
			}
		case driver.Revoke:
			if h := leaseWith(&s.before, r.Fence); h != nil && s.live(h.End()) {
				return "a live lease cannot be revoked"
			}
		default:
			return "lost is no answer to the request"
		}
	case driver.Refused:
		return s.wrongRefusal(had)
	case driver.Holding:
		if r.Kind != driver.Leave || had == nil || had.Fence != a.Fence || had.Revoked || !s.guess && !s.live(had.End()) {
			return "holding, and it does not hold the key"
		}
	case driver.Exclusive:
		if !fenced || had.MaxHolders == 1 || r.Kind != driver.MarkStarted && r.Kind != driver.Complete {
			return "exclusive, and it may have the key alone"
		}
	case driver.Done:
		return s.wrongDone(had, has)
	default:
		return "no outcome"
	}
	return ""
}

// resolves reports whether the operator who asks is right: the work is in doubt, or it was resolved so before. Without effect also if its owner
// has released it, and if nobody has had the key since and it is not closed.
func (s *step) resolves() bool {
	r, b := &s.request, &s.before
	last := r.Fence == b.LastFence
	closed := last && s.closed(b)
	if h := leaseWith(b, r.Fence); h != nil {
		return h.Started && !s.live(h.End())
	}
	marked := slices.ContainsFunc(b.Ended, func(m rules.Ended) bool {
		return m.Fence == r.Fence && (m.How == rules.Resolved || m.How == rules.Released)
	})
	return closed == r.Effect && (last && len(b.Holders) == 0 || marked && !r.Effect)
}

func (s *step) wrongRefusal(had *rules.Holder) string {
	r, a := &s.request, &s.answer
	if r.Kind == driver.Acquire && a.Position != placeOf(&s.after, r.Owner)+1 && !s.inDoubt(&s.before) {
		return "an owner is told another place than it has"
	}
	switch {
	case s.guess: // a refusal only delays
	case r.Kind == driver.Acquire:
		place := placeOf(&s.before, r.Owner)
		before, at := s.waitsFor(place)
		waits := !s.closed(&s.before) && !s.inDoubt(&s.before) // one may wait for it
		switch {
		case markOf(&s.before, r.Owner) != nil:
			return "an owner that has ended is refused"
		case had != nil && s.live(had.End()):
			return "a holder is refused"
		case waits && s.fits(&s.before, at, r.MaxHolders, before):
			return "an owner is refused whose turn has come"
		case waits && r.Join && a.Position == 0 && !a.Covered && s.hasPlace(len(s.before.Queue)):
			return "there is a place, and who was refused does not get it"
		}
	case r.Kind == driver.Resolve:
		if !slices.ContainsFunc(s.before.Holders, func(h rules.Holder) bool { return s.live(h.End()) }) {
			return "a resolve is refused, and nobody holds the key"
		}
	case r.Kind == driver.Revoke:
		if h := leaseWith(&s.before, r.Fence); h == nil || !h.Started || !r.AtOnce {
			return "a revocation is refused"
		}
	default:
		return "refused is no answer to the request"
	}
	return ""
}

// wrongCover is about an event that another event's run does, too: exactly then if that run waits and has not begun, and none waits for
// the event itself. Then nothing changes.
func (s *step) wrongCover() string {
	r, a := &s.request, &s.answer
	waits := r.Work != "" && placeOf(&s.before, r.Owner) < 0 && slices.ContainsFunc(s.before.Queue, func(w rules.Waiter) bool {
		return w.Work == r.Work && leaseOf(&s.before, w.Owner) == nil
	}) && !slices.ContainsFunc(s.before.Queue, func(w rules.Waiter) bool { return w.Work == r.Work && w.Event == r.Event })
	open := r.Kind == driver.Acquire && a.Outcome == driver.Refused && !s.closed(&s.before) && !s.inDoubt(&s.before)
	switch {
	case a.Covered && (r.Kind != driver.Acquire || a.Outcome != driver.Refused || !waits):
		return "an event is covered, and no run of its work waits that has not begun, or one of its own does"
	case a.Covered && (a.Position != 0 || !slices.Equal(s.before.Queue, s.after.Queue)):
		return "a covered owner has a place"
	case !a.Covered && waits && open && !s.guess:
		return "an event is not covered, and a run of its work waits that has not begun"
	}
	return ""
}

func (s *step) wrongDone(had, has *rules.Holder) string {
	r := &s.request
	switch of := leaseWith(&s.after, r.Fence); r.Kind {
	case driver.Inspect:
		return ""
	case driver.Release:
		mark := markOf(&s.before, r.Owner)
		if has != nil || had == nil && (mark == nil || mark.How == rules.Expired || mark.How == rules.Revoked) {
			return "a release is done, and its lease is there, or others ended it, or it never was"
		}
	case driver.Abandon:
		if has != nil && !(has.Revoked && has.Started) || placeOf(&s.after, r.Owner) >= 0 {
			return "who has abandoned has a lease or a place"
		}
	case driver.Leave:
		if placeOf(&s.after, r.Owner) >= 0 {
			return "who has left has a place"
		}
		if has != nil && !has.Revoked && s.live(has.End()) {
			return "who has left holds the key, and is not told"
		}
	case driver.MarkStarted:
		if has == nil || !has.Started || has.Fence != r.Fence {
			return "a start is done, and is not there"
		}
	case driver.Complete:
		if m := markOf(&s.after, r.Owner); m == nil || m.How != rules.Completed {
			return "a completion is done without its mark"
		}
	case driver.Resolve:
		if of != nil && of.Started || r.Effect && !s.closed(&s.after) || !s.resolves() {
			return "work is resolved, and it is in doubt, or the key is open, or it never was in doubt"
		}
	case driver.Revoke:
		if of != nil && (!of.Revoked || r.AtOnce) {
			return "a lease is revoked, and its owner may use it"
		}
	default:
		return "done is no answer to the request"
	}
	return ""
}

// wrongNews is about whom the answer names: all to whom the step has handed the key over, and of the parked owners those, too,
// whose place ends because the key is closed.
func (s *step) wrongNews() string {
	closes := s.closes()
	told := 0
	for _, w := range s.before.Queue {
		h := leaseOf(&s.after, w.Owner)
		handed := h != nil && h.HandedOver && placeOf(&s.after, w.Owner) < 0
		if had := leaseOf(&s.before, w.Owner); had != nil && h != nil && had.Fence == h.Fence {
			handed = handed && slices.Contains(slices.Concat(s.answer.HandedOver, s.answer.Wake), w.Owner) // it was told before, and may be told again
		}
		among := s.answer.HandedOver
		if w.Parked > 0 {
			among = s.answer.Wake
			handed = handed || closes && w.Owner != s.request.Owner && h == nil && leaseOf(&s.before, w.Owner) == nil
		}
		if is := slices.Contains(among, w.Owner); is != handed {
			return fmt.Sprintf("an owner is told of a hand-over: %t; want %t", is, handed)
		} else if is {
			told++
		}
	}
	if told != len(s.answer.HandedOver)+len(s.answer.Wake) {
		return "somebody is told of a hand-over for nothing"
	}
	return ""
}
