package dynamostore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
)

const (
	// maxPlaces keeps a row with a short key below four write units, if few of the places are parked.
	maxPlaces = 64

	// shortLook is the pause before a waiter's first read, and at least between two of them.
	shortLook = 5 * time.Millisecond
	// longLook is the longest pause: a hand-over lasts for a Turn.
	longLook = driver.TurnTime / 2
	// perPlace is how long a hand-over takes at least, if nothing is known of this queue.
	perPlace = 25 * time.Millisecond
	// early is how long before its turn a waiter begins to read often.
	early = 50 * time.Millisecond
)

// Notes, which are hints, see driver.Request.
const (
	noteRead driver.Hint = `{"Reads":true}` // of a waiter
	noteFull driver.Hint = `{"Full":true}`  // of an owner that found the queue full
)

// note is a decoded note. What is not known is zero.
type note struct {
	Reads  bool          // an Acquire begins with a read
	Full   bool          // with one that shows whether the queue is still full, and it writes only if there is room
	Place  int           // in the queue
	Since  time.Time     // when the owner has learned of it, by the local clock
	Fence  driver.Fence  // of the lease then: the time of the hand-over, in microseconds
	Pace   time.Duration // from one hand-over to the next
	Steady bool          // they take about as long as they did before
}

// hint is the note of a place. placeNote and Await call it.
func (n note) hint() driver.Hint {
	text, _ := json.Marshal(n) // texts, numbers and the time of a clock have no error
	return driver.Hint(text)
}

// placeNote is the note of a place in a row as it was seen. The last two grants say how long a lease
// took. answerWrite and answerUnchanged put it into a refusal with a place, and Await goes on from it with next.
func placeNote(place int, now time.Time, seen row) driver.Hint {
	n := note{Reads: true, Place: place, Since: now, Fence: seen.LastFence}
	for _, e := range seen.Ended {
		if took := time.Duration(seen.LastFence-e.Fence) * time.Microsecond; e.Fence > 0 && took > 0 && took < time.Minute {
			n.Pace = took
		}
	}
	return n.hint()
}

// parseNote decodes a hint. acquire and Await call it.
func parseNote(hint driver.Hint) (n note) {
	_ = json.Unmarshal([]byte(hint), &n) // what is missing is not known
	n.Place, n.Pace = max(0, min(n.Place, maxPlaces)), max(0, min(n.Pace, time.Minute))
	return n
}

// next is the note after a read by which the owner still waits. Only Await calls it; placeNote makes the first one.
func (n note) next(place int, fence driver.Fence, now time.Time) note {
	if moved, took := n.Place-place, time.Duration(fence-n.Fence)*time.Microsecond; moved > 0 && took > 0 && took < time.Hour {
		took /= time.Duration(moved)
		n.Steady = (took - n.Pace).Abs() < n.Pace/4
		n.Pace = took
	}
	if place != n.Place {
		n.Since = now
	}
	n.Reads, n.Full, n.Place, n.Fence = true, false, place, fence
	return n
}

// look is the pause before a read of a waiter. now is the local time, and clock is what it is by the
// clock that writes fences. If the last hand-overs had one pace, the owner reads a little
// before its turn should come. Then it reads at short intervals, and less and less often. If they had none, it
// reads less often the longer it has waited. Who is behind others waits for several leases, and reads less often still. Await calls it.
func (n note) look(now, clock time.Time) time.Duration {
	behind := time.Duration(max(0, n.Place-1))
	waited := max(0, min(now.Sub(n.Since), time.Hour)) // the clock may have been set
	if !n.Steady {
		return min(longLook, shortLook+behind*max(perPlace, waited/4)+waited/20)
	}
	turn := (behind + 1) * n.Pace // after the last hand-over that it saw
	due := turn - min(turn/16, early)
	passed := clock.Sub(time.UnixMicro(int64(n.Fence)))
	if passed < 0 || passed > time.Hour { // the clocks of those who write differ
		passed = waited
	}
	if due > passed {
		return min(longLook, max(shortLook, due-passed))
	}
	return min(longLook, max(shortLook+behind*perPlace+(passed-due)/20, (turn-passed)/3))
}

// Await implements driver.Driver. It sends one read after a pause, which the note of the place tells.
func (t *table) Await(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	began, local := time.Now(), t.clock.local()
	n := parseNote(q.Hint)
	if n.Place == 0 {
		n.Since = local
	}
	look := n.look(local, t.clock.read())
	if err := pause.For(ctx, look*7/8+t.random(look/8)); err != nil {
		return driver.Answer{}, err
	}
	// The monotonic clock does not see a freeze, and the wall clock may be set: the smaller one is
	// passed for certain.
	passed := max(0, min(time.Since(began), t.clock.local().Sub(local)))
	seen, r, err := t.read(ctx, key, true)
	switch {
	case err != nil && ctx.Err() != nil:
		return driver.Answer{}, err
	case err != nil: // the caller asks, and is told why the store cannot be read; but not more often than in a wait
		if err := pause.For(ctx, longLook-passed); err != nil {
			return driver.Answer{}, err
		}
		return driver.Answer{Outcome: driver.Ask}, nil
	}
	i := seen.holder(q.Owner)
	place := seen.place(q.Owner) + 1
	switch {
	case place > 0 && book.Wait(seen.State, t.clockOf(r), q.Owner) > 0:
		return driver.Answer{Outcome: driver.NotYet, Hint: n.next(place, seen.LastFence, t.clock.local()).hint()}, nil
	case i >= 0 && seen.Holders[i].HandedOver && !r.date.IsZero():
		h := seen.Holders[i]
		trust := passed + min(driver.TurnTime, h.End().Sub(r.date)) - margin
		if trust-passed >= driver.LeastTrust {
			t.memory.remember(key, seen, q.Owner)
			return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: min(driver.TurnTime, trust)}, nil
		}
	}
	return driver.Answer{Outcome: driver.Ask, Hint: noteRead}, nil
}
