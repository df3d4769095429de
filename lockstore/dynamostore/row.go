package dynamostore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The attributes of a lock row, called as the fields of rules.State where that is possible. #key and #ttl are attributes
// that the table names.
const (
	attrKey        = "key"        // S, partition key, see names
	attrOwner      = "owner"      // S, who holds the key, or one of the texts below; a free key has none
	attrFence      = "fence"      // N, of the last grant, as long as there is an owner
	attrLastFence  = "lastFence"  // N, of the last grant or abandon of a free key
	attrExpires    = "expires"    // N, milliseconds since 1970: the end of the lease, or of the time for which the key is closed
	attrHandedOver = "handedOver" // N: the lease was handed over and not extended yet. 1, or the milliseconds of a parked place's turn
	attrRevoked    = "revoked"    // N, 1: the lease was revoked
	attrStarted    = "started"    // N, seconds since 1970: the ttl of a lease under which the work has started
	attrHolders    = "holders"    // S, those who share the key: a list of sharedLease
	attrText       = "text"       // S, of the lease or of the closed key, for people
	attrEnded      = "ended"      // S, the last owner whose lease was ended by a request
	attrEndedFence = "endedFence" // N, the fence of this lease
	attrHow        = "how"        // N, how it ended, a rules.How; none is 0
	attrAbandoned  = "abandoned"  // S, the last owner that abandoned an acquire and had no lease
	attrResult     = "result"     // B, the result of the work, if there is one
	attrSize       = "size"       // N, of the result in bytes: a listing reads it in place of the result
	attrQueue      = "queue"      // L, see place
	attrTTL        = "ttl"        // N, seconds since 1970: when DynamoDB may delete an unused row, see names
)

// Which attributes a decision looks at. A write that changes one of leaseAttributes is on all
// of them.
var (
	leaseAttributes = []string{attrOwner, attrFence, attrLastFence, attrExpires, attrHandedOver, attrRevoked, attrStarted, attrHolders}
	otherAttributes = []string{attrText, attrEnded, attrEndedFence, attrHow, attrAbandoned, attrResult, attrSize}
	// lockAttributes are the attributes whose names no table decides.
	lockAttributes = slices.Concat(leaseAttributes, otherAttributes, []string{attrQueue})
)

// No request has these owners, because they have spaces.
const (
	closedOwner = "closed to all"     // of a key that is completed, also without a result: that is a cooldown
	sharedOwner = "shared by several" // see attrHolders
)

// maxMilli is the end of the year 9999. No clock writes a later time.
const maxMilli int64 = 253_402_300_799_999

// row is a decoded lock row; the zero row is one that does not exist. Only the ends of its
// leases are known: each lease and each closed time has its end as its beginning, but what was handed
// over and is not extended is for a turn.
type row struct {
	rules.State
	item    values  // as it is stored
	queue   []place // as it is stored
	damaged bool    // the queue is, and counts as none
}

// place is two elements of the row's queue: an owner, and a map of what else is known. The first place is that of who holds the
// key, if nobody shares it; then come those who wait, in the order of arrival. The map has "since" and, if they are
// not 1 and 0, "maxHolders" and "parked", times in milliseconds; of an owner that coalesces also "work" and "event". What else it has is kept.
type place struct {
	owner driver.Owner
	more  value
}

const (
	placeSince      = "since"
	placeMaxHolders = "maxHolders"
	placeParked     = "parked"
	placeWork       = "work"
	placeEvent      = "event"
)

// sharedLease is one of those in the text of attrHolders. It begins with the fence unless it is revoked, see Store.StillHeld.
type sharedLease struct {
	Revoked    bool         `json:"revoked,omitempty"`
	Fence      driver.Fence `json:"fence"`
	Owner      string       `json:"owner"` // not a driver.Owner, which hides itself
	Seat       int          `json:"seat"`
	MaxHolders int          `json:"max"`
	Expires    int64        `json:"expires"`
	HandedOver bool         `json:"handedOver,omitempty"`
	Turn       int64        `json:"turn,omitempty"` // milliseconds, of a parked place that was handed over
	Text       string       `json:"text,omitempty"`
}

// sharedBy is a part of attrHolders that it has only if the owner is a holder. A quote inside a text is escaped there. becoming calls it.
func sharedBy(o driver.Owner) string {
	owner, _ := json.Marshal(string(o)) // a text has no error
	return `"owner":` + string(owner)
}

// alone is the holder of a key that nobody shares, or nil. It is used all over the package.
func (r row) alone() *rules.Holder {
	if len(r.Holders) == 1 && r.Holders[0].MaxHolders == 1 && r.Holders[0].Fence == r.LastFence {
		return &r.Holders[0]
	}
	return nil
}

// holder is the index of the owner's lease, live or not; -1 without one. It is used all over the package.
func (r row) holder(o driver.Owner) int {
	return slices.IndexFunc(r.Holders, func(h rules.Holder) bool { return h.Owner == o })
}

// leaseEnd is when the owner's lease ends by the row, zero without one. It has the tolerance of clocks, but for a hand-over that nobody has extended.
// answerWrite, answerUnchanged, nextMark and unmark call it.
func (r row) leaseEnd(o driver.Owner) time.Time {
	if i := r.holder(o); i >= 0 {
		return r.Holders[i].End()
	}
	return time.Time{}
}

// place is the owner's index in the queue, -1 without a place. It is used all over the package.
func (r row) place(o driver.Owner) int {
	return slices.IndexFunc(r.Queue, func(w rules.Waiter) bool { return w.Owner == o })
}

// decode reads a row from an item: of a reply, or of a refused transaction of the program (see ended). The error matches lockstore.ErrCorrupt if the row is
// damaged, or if this store did not write it. A damaged queue is no error, see row.damaged. Whatever needs the row of a reply calls it, and
// so does names.ended.
func (n names) decode(key string, item values) (row, error) {
	r := row{item: item}
	if len(item) == 0 {
		return r, nil
	}
	r.decodeMarks()
	var err error
	if item[attrOwner] == nil {
		var last int64
		if last, err = number(item, attrLastFence, maxMilli*1000); err == nil && item[attrFence] != nil {
			err = fmt.Errorf("the attribute %q has no owner", attrFence)
		}
		r.LastFence = driver.Fence(last)
	} else {
		err = r.decodeOwner()
	}
	if err == nil {
		err = r.Corrupt()
	}
	if err != nil {
		return row{}, &failure{fmt.Sprintf("dynamostore: the row of key %q is not a lock row of this store, or it is damaged", key), lockstore.ErrCorrupt, err}
	}
	if item[n.ttl] == nil {
		return row{}, n.wrongTTL(key, item)
	}
	r.decodeQueue()
	return r, nil
}

// decodeOwner reads the leases, or for how long the key is closed. decode calls it only for an item with an owner: the row of a free key has none.
func (r *row) decodeOwner() error {
	owner := textOf(r.item[attrOwner])
	fence, err := number(r.item, attrFence, maxMilli*1000)
	if err != nil {
		return err
	}
	milli, err := number(r.item, attrExpires, maxMilli)
	if err != nil {
		return err
	}
	r.LastFence = driver.Fence(fence)
	end, text := time.UnixMilli(milli), textOf(r.item[attrText])
	switch owner {
	case "":
		return fmt.Errorf("the attribute %q is not a text", attrOwner)
	case closedOwner:
		r.Closed = rules.Closed{Since: end.Add(-time.Millisecond), For: time.Millisecond, Text: text}
		if result, ok := r.item[attrResult].(*types.AttributeValueMemberB); ok {
			r.Closed.Result = result.Value
		} else if r.item[attrSize] != nil {
			r.Closed.Result = driver.HiddenBytes{} // a listing does not read it
		}
	case sharedOwner:
		var all []sharedLease
		if err := json.Unmarshal([]byte(textOf(r.item[attrHolders])), &all); err != nil || len(all) == 0 {
			return fmt.Errorf("the attribute %q is damaged", attrHolders)
		}
		for _, h := range all {
			r.Holders = append(r.Holders, endingAt(time.UnixMilli(h.Expires), h.Turn, rules.Holder{
				Owner: driver.Owner(h.Owner), Fence: h.Fence, Seat: h.Seat, MaxHolders: h.MaxHolders, Text: h.Text, HandedOver: h.HandedOver, Revoked: h.Revoked,
			}))
		}
	default:
		h := rules.Holder{
			Owner: driver.Owner(owner), Fence: r.LastFence, MaxHolders: 1, Text: text,
			HandedOver: r.item[attrHandedOver] != nil, Revoked: r.item[attrRevoked] != nil, Started: r.item[attrStarted] != nil,
		}
		if h.HandedOver {
			h.Text = "" // it is that of a request that has joined since
		}
		turn, _ := number(r.item, attrHandedOver, driver.MaxParkedTurn.Milliseconds())
		r.Holders = []rules.Holder{endingAt(end, turn, h)}
	}
	return nil
}

// endingAt is a holder whose lease ends then. turn is for how many milliseconds it was handed over, if its place was parked. decodeOwner calls it.
func endingAt(end time.Time, turn int64, h rules.Holder) rules.Holder {
	if h.HandedOver {
		turn = min(turn, driver.MaxParkedTurn.Milliseconds())
		h.TTL = max(driver.TurnTime, time.Duration(turn)*time.Millisecond)
	}
	h.Since = end.Add(-h.TTL)
	return h
}

// decodeMarks sets Ended, by the two marks of the row. decode calls it.
func (r *row) decodeMarks() {
	if o := textOf(r.item[attrAbandoned]); o != "" {
		r.Ended = append(r.Ended, rules.Ended{Owner: driver.Owner(o)})
	}
	if o := textOf(r.item[attrEnded]); o != "" {
		fence, _ := number(r.item, attrEndedFence, maxMilli*1000) // damaged: no operator finds it
		how, _ := number(r.item, attrHow, int64(rules.Revoked))
		r.Ended = append(r.Ended, rules.Ended{Owner: driver.Owner(o), Fence: driver.Fence(max(1, fence)), How: rules.How(how)})
	}
}

// decodeQueue sets queue, Queue and damaged. decode calls it last, because the first place may be that of the holder.
func (r *row) decodeQueue() {
	if r.item[attrQueue] == nil {
		return
	}
	l, ok := r.item[attrQueue].(*types.AttributeValueMemberL)
	if r.damaged = !ok || len(l.Value)%2 != 0; r.damaged {
		return
	}
	for i := 0; i < len(l.Value); i += 2 {
		p := place{driver.Owner(textOf(l.Value[i])), l.Value[i+1]}
		more, ok := p.more.(*types.AttributeValueMemberM)
		if r.damaged = p.owner == "" || !ok; r.damaged {
			r.queue, r.Queue = nil, nil
			return
		}
		r.queue = append(r.queue, p)
		w := waiter(p.owner, more.Value)
		if h := r.alone(); h != nil && i == 0 && w.Owner == h.Owner {
			continue
		}
		if r.place(w.Owner) < 0 { // a second place of an owner ends with the next write
			r.Queue = append(r.Queue, w)
		}
	}
}

// waiter is a place as the rules need it. decodeQueue calls it.
func waiter(owner driver.Owner, more values) rules.Waiter {
	most, _ := number(more, placeMaxHolders, lockstore.MaxHolders)
	parked, _ := number(more, placeParked, driver.MaxParkedTurn.Milliseconds())
	since, _ := number(more, placeSince, maxMilli)
	return rules.Waiter{
		Owner: owner, MaxHolders: max(1, int(most)), Parked: time.Duration(parked) * time.Millisecond, Since: time.UnixMilli(since),
		Work: textOf(more[placeWork]), Event: textOf(more[placeEvent]),
	}
}

// placeOf is a place as it is stored. arrivalWrite and encodeQueue call it.
func placeOf(w rules.Waiter) place {
	more := values{placeSince: millis(w.Since)}
	if w.MaxHolders > 1 {
		more[placeMaxHolders] = integer(w.MaxHolders)
	}
	if w.Parked > 0 {
		more[placeParked] = integer(w.Parked.Milliseconds())
	}
	if w.Work != "" {
		more[placeWork], more[placeEvent] = text(w.Work), text(w.Event)
	}
	return place{w.Owner, &types.AttributeValueMemberM{Value: more}}
}

// list is a queue as it is stored. arrivalWrite, releaseWrite, changeQueue and join call it.
func list(places ...place) value {
	l := &types.AttributeValueMemberL{Value: []types.AttributeValue{}}
	for _, p := range places {
		l.Value = append(l.Value, text(p.owner), p.more)
	}
	return l
}

// encode returns the attributes of a state besides its queue and the time to live; becoming calls it, and adds these and a new mark. seen is the row that the
// state comes from. The ends of the leases in next have the tolerance of clocks already, see clockOf and end.
func (t *table) encode(seen row, next rules.State) values {
	item, owner, end := values{}, driver.Owner(""), time.Time{}
	switch h := (row{State: next}).alone(); {
	case h != nil:
		owner, end = h.Owner, t.end(seen, *h)
		item[attrText] = text(h.Text) // also "": who joins sets it if it is not there
		if h.HandedOver {
			item[attrHandedOver] = integer(max(1, parkedTurn(*h).Milliseconds()))
		}
		if h.Revoked {
			item[attrRevoked] = integer(1)
		}
		if h.Started {
			item[attrStarted] = seen.item[attrStarted]
			if markOf(seen.item) < leastMark(h.End()) {
				item[attrStarted] = integer(markAt(h.End()))
			}
		}
	case len(next.Holders) > 0:
		var all []sharedLease
		for _, h := range next.Holders {
			e := t.end(seen, h)
			all = append(all, sharedLease{h.Revoked, h.Fence, string(h.Owner), h.Seat, h.MaxHolders, e.UnixMilli(), h.HandedOver, parkedTurn(h).Milliseconds(), h.Text})
			end = later(end, e)
		}
		list, _ := json.Marshal(all) // texts and numbers have no error
		owner, item[attrHolders] = sharedOwner, text(string(list))
	case next.Closed.For > 0:
		owner, end = closedOwner, next.Closed.End()
		if next.Closed.Text != "" {
			item[attrText] = text(next.Closed.Text)
		}
		if size := len(next.Closed.Result); size > 0 {
			item[attrResult], item[attrSize] = &types.AttributeValueMemberB{Value: next.Closed.Result}, integer(size)
		}
	}
	if len(next.Holders) > 0 || next.Closed.For > 0 {
		item[attrOwner], item[attrFence], item[attrExpires] = text(owner), integer(next.LastFence), millis(end)
	} else {
		item[attrLastFence] = integer(next.LastFence)
	}
	for _, m := range next.Ended {
		switch {
		case m.Fence == 0:
			item[attrAbandoned] = text(m.Owner)
		case m.How != rules.Expired:
			item[attrEnded], item[attrEndedFence], item[attrHow] = text(m.Owner), integer(m.Fence), nil
			if m.How != rules.Released {
				item[attrHow] = integer(m.How)
			}
		}
	}
	return item
}

// encodeQueue returns the queue of a state as it is stored. A place of the row stays as it is. becoming calls it.
func (t *table) encodeQueue(seen row, next rules.State) (queue []place) {
	if h := (row{State: next}).alone(); h != nil {
		p := placeOf(rules.Waiter{Owner: h.Owner, Since: h.Since.Add(-t.skew)})
		if i := slices.IndexFunc(seen.queue, func(p place) bool { return p.owner == h.Owner }); i >= 0 {
			p = seen.queue[i]
		}
		queue = append(queue, p)
	}
	for _, w := range next.Queue {
		if seen.place(w.Owner) < 0 {
			w.Since = w.Since.Add(-t.skew) // it joins now, see clockOf
			queue = append(queue, placeOf(w))
			continue
		}
		for _, p := range slices.Backward(seen.queue) { // the holder may have a place, too
			if p.owner == w.Owner {
				queue = append(queue, p)
				break
			}
		}
	}
	return queue
}

// parkedTurn is the turn of a hand-over to a parked place, and otherwise 0. encode calls it.
func parkedTurn(h rules.Holder) time.Duration {
	if h.HandedOver && h.TTL > driver.TurnTime {
		return h.TTL
	}
	return 0
}

// end is the end of a lease as the row keeps it. What is handed over now has no skew: nobody
// waits longer for a dead waiter than for a turn, and a live one trusts what its own read says. encode and correctTurn call it.
func (t *table) end(seen row, h rules.Holder) time.Time {
	old := slices.ContainsFunc(seen.Holders, func(o rules.Holder) bool { return o.Fence == h.Fence })
	if h.HandedOver && !old {
		return h.End().Add(-t.skew)
	}
	return h.End()
}

// later is the later one of two times. encode, sweepTime and sweeps call it.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// number is an attribute that has to be a whole number from 0 to most. The functions that decode a row call it, and so do markOf and newer.
func number(item values, name string, most int64) (int64, error) {
	n, ok := item[name].(*types.AttributeValueMemberN)
	if !ok {
		return 0, fmt.Errorf("the attribute %q is missing or not a number", name)
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil || v < 0 || v > most {
		return 0, fmt.Errorf("the attribute %q is %.40s; want a whole number from 0 to %d", name, n.Value, most)
	}
	return v, nil
}

// textOf is "" for a value that is no text. The functions that decode a row call it, and so do names.is and List.
func textOf(v value) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// text and integer are the values of attributes and of conditions. An owner is not hidden there. They are used all over the package.
func text[S ~string](s S) value { return &types.AttributeValueMemberS{Value: string(s)} }

func integer[N ~int | ~int64](n N) value {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(int64(n), 10)}
}

// millis is a time in milliseconds. The functions that write the end of a lease or of a closed time call it, and so does placeOf.
func millis(t time.Time) value { return integer(t.UnixMilli()) }

// sweepTime is the ttl attribute of a row that is used until t. A fence from a clock far ahead has to grow, so the
// row stays until that time, too. A mark of started work and the row of an address have a ttl of their own. The functions that make a write
// of a lock's row call it; becoming does so by sweeps.
func sweepTime(t time.Time, f driver.Fence) value {
	return integer(later(t, time.UnixMicro(int64(f))).Add(idleRow).Unix() + 1)
}
