package dynamostore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// The attributes of a lock row. Some of the names are reserved words, so an expression
// writes each name with a '#'. #key and #ttl are attributes that the table names. No name is
// the beginning of another one, see names.aliases.
const (
	attrKey       = "key"       // S, partition key, see names
	attrOwner     = "owner"     // S, who holds the key, or one of the texts below; a free key has none
	attrFence     = "fence"     // N, of the last grant, as long as there is an owner
	attrLast      = "last"      // N, of the last grant or abandon of a free key
	attrExpires   = "expires"   // N, milliseconds since 1970: the end of the lease, or of the time for which the key is closed
	attrHanded    = "handed"    // N: the lease was handed over and not extended yet. 1, or the milliseconds of a parked place's turn
	attrRevoked   = "revoked"   // N, 1: the lease was revoked
	attrStarted   = "begun"     // N, seconds since 1970: the ttl of a lease under which the work has started
	attrShared    = "shared"    // S, those who share the key, see holders
	attrHolder    = "holder"    // S, for people
	attrReleased  = "released"  // S, the last owner whose lease was ended by a request
	attrEnded     = "ended"     // N, the fence of this lease
	attrHow       = "how"       // N, how it ended, a rules.How; none is 0
	attrAbandoned = "abandoned" // S, the last owner that abandoned an acquire and had no lease
	attrResult    = "kept"      // B, the result of the work, if there is one
	attrSize      = "stored"    // N, the size of the result in bytes: a listing reads it in place of the result
	attrQueue     = "queue"     // L of S: the owner of the lease, if it does not share the key, and those who wait, in the order of arrival
	attrTTL       = "ttl"       // N, seconds since 1970: when DynamoDB may delete an unused row, see names
)

// Which attributes a decision looks at. A write that changes one of leaseAttributes is on all
// of them.
var (
	leaseAttributes = []string{attrOwner, attrFence, attrLast, attrExpires, attrHanded, attrRevoked, attrStarted, attrShared}
	otherAttributes = []string{attrHolder, attrReleased, attrEnded, attrHow, attrAbandoned, attrResult, attrSize}
	// lockAttributes are the attributes whose names no table decides.
	lockAttributes = slices.Concat(leaseAttributes, otherAttributes, []string{attrQueue})
	// lockAliases are what expressions write for them.
	lockAliases = strings.Split("#"+strings.Join(lockAttributes, ",#"), ",")
)

// No request has these owners, because they have spaces.
const (
	closedOwner = "closed to all"     // of a key that is completed, also without a result: that is a cooldown
	sharedOwner = "shared by several" // see attrShared
)

// maxMilli is the end of the year 9999. No clock writes a later time.
const maxMilli = 253_402_300_799_999

// row is a decoded lock row; the zero row is one that does not exist. Only the ends of its
// leases are known: each lease and each closed time has its end as its beginning, but what was handed
// over and is not extended is for a turn.
type row struct {
	rules.State
	item    values   // as it is stored
	queue   []string // as it is stored
	damaged bool     // the queue is, and counts as none
}

// holders is the text of attrShared.
type holders []sharedLease

// sharedLease begins with the fence unless it is revoked, see Store.StillHeld.
type sharedLease struct {
	Revoked    bool         `json:"revoked,omitempty"`
	Fence      driver.Fence `json:"fence"`
	Owner      string       `json:"owner"` // not a driver.Owner, which hides itself
	Seat       int          `json:"seat"`
	MaxHolders int          `json:"max"`
	Expires    int64        `json:"expires"`
	HandedOver bool         `json:"handed,omitempty"`
	Turn       int64        `json:"turn,omitempty"` // milliseconds, of a parked place that was handed over
	Text       string       `json:"text,omitempty"`
}

// sharedBy is a part of attrShared that it has only if the owner is a holder. A quote inside a text is escaped there.
func sharedBy(o driver.Owner) string {
	owner, err := json.Marshal(string(o))
	if err != nil {
		panic(err) // it is a text
	}
	return `"owner":` + string(owner)
}

// alone is the holder of a key that nobody shares, or nil.
func (r row) alone() *rules.Holder {
	if len(r.Holders) == 1 && r.Holders[0].MaxHolders == 1 && r.Holders[0].Fence == r.LastFence {
		return &r.Holders[0]
	}
	return nil
}

// free reports whether the key has neither an owner nor an end.
func (r row) free() bool { return len(r.Holders) == 0 && r.Closed.For == 0 }

// holder is the index of the owner's lease, live or not; -1 without one.
func (r row) holder(o driver.Owner) int {
	return slices.IndexFunc(r.Holders, func(h rules.Holder) bool { return h.Owner == o })
}

func (r row) place(o driver.Owner) int {
	return slices.IndexFunc(r.Queue, func(w rules.Waiter) bool { return w.Owner == o })
}

// decode reads a row from a reply. The error matches lockstore.ErrCorrupt if the row is
// damaged, or if this store did not write it.
func decode(key string, item values) (row, error) {
	r := row{item: item}
	if len(item) == 0 {
		return r, nil
	}
	r.decodeMarks()
	var err error
	if item[attrOwner] == nil {
		var last int64
		if last, err = number(item, attrLast, maxMilli*1000); err == nil && item[attrFence] != nil {
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
		return row{}, corrupt(key, err)
	}
	r.decodeQueue()
	return r, nil
}

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
	end, text := time.UnixMilli(milli), textOf(r.item[attrHolder])
	if r.item[attrHanded] != nil {
		text = "" // of a request that has joined since
	}
	switch owner {
	case "":
		return fmt.Errorf("the attribute %q is not a text", attrOwner)
	case closedOwner:
		r.Closed = rules.Closed{Since: end.Add(-time.Millisecond), For: time.Millisecond, Text: text}
		if result, ok := r.item[attrResult].(*types.AttributeValueMemberB); ok {
			r.Closed.Result = result.Value
		} else if r.item[attrSize] != nil {
			r.Closed.Result = driver.Secret{} // a listing does not read it
		}
	case sharedOwner:
		var all holders
		if err := json.Unmarshal([]byte(textOf(r.item[attrShared])), &all); err != nil || len(all) == 0 {
			return fmt.Errorf("the attribute %q is damaged", attrShared)
		}
		for _, h := range all {
			r.Holders = append(r.Holders, rules.Holder{
				Owner: driver.Owner(h.Owner), Fence: h.Fence, Seat: h.Seat, MaxHolders: h.MaxHolders, Since: time.UnixMilli(h.Expires), Text: h.Text, HandedOver: h.HandedOver, Revoked: h.Revoked,
				TTL: time.Duration(min(h.Turn, driver.MaxParked.Milliseconds())) * time.Millisecond, // of what was handed over
			})
		}
	default:
		turn, _ := number(r.item, attrHanded, driver.MaxParked.Milliseconds())
		r.Holders = []rules.Holder{{
			TTL:   time.Duration(turn) * time.Millisecond, // of what was handed over
			Owner: driver.Owner(owner), Fence: r.LastFence, MaxHolders: 1, Since: end, Text: text,
			HandedOver: r.item[attrHanded] != nil, Revoked: r.item[attrRevoked] != nil, Started: r.item[attrStarted] != nil,
		}}
	}
	for i, h := range r.Holders {
		ttl := time.Duration(0)
		if h.HandedOver {
			ttl = max(driver.Turn, min(h.TTL, driver.MaxParked))
		}
		r.Holders[i].Since, r.Holders[i].TTL = h.Since.Add(-ttl), ttl
	}
	return nil
}

func (r *row) decodeMarks() {
	if o := textOf(r.item[attrAbandoned]); o != "" {
		r.Ended = append(r.Ended, rules.Ended{Owner: driver.Owner(o)})
	}
	if o := textOf(r.item[attrReleased]); o != "" {
		fence, _ := number(r.item, attrEnded, maxMilli*1000) // damaged: no operator finds it
		how, _ := number(r.item, attrHow, int64(rules.Revoked))
		r.Ended = append(r.Ended, rules.Ended{Owner: driver.Owner(o), Fence: driver.Fence(max(1, fence)), How: rules.How(how)})
	}
}

func (r *row) decodeQueue() {
	v := r.item[attrQueue]
	if v == nil {
		return
	}
	l, ok := v.(*types.AttributeValueMemberL)
	if !ok {
		r.damaged = true
		return
	}
	for _, v := range l.Value {
		text := textOf(v)
		if r.damaged = text == ""; r.damaged {
			r.queue, r.Queue = nil, nil
			return
		}
		r.queue = append(r.queue, text)
		if h := r.alone(); h != nil && len(r.queue) == 1 && text == string(h.Owner) {
			continue
		}
		w := waiter(text)
		if r.place(w.Owner) < 0 { // its second place, by a request with another MaxHolders, ends with the next write
			r.Queue = append(r.Queue, w)
		}
	}
}

// waiterText is a place as the row's queue has it. A place of a mutex that is not parked is the owner alone.
func waiterText(w rules.Waiter) string {
	switch {
	case w.Parked > 0:
		return fmt.Sprintf("%s %d %d", string(w.Owner), w.MaxHolders, w.Parked.Milliseconds())
	case w.MaxHolders > 1:
		return fmt.Sprintf("%s %d", string(w.Owner), w.MaxHolders)
	}
	return string(w.Owner)
}

func waiter(text string) rules.Waiter {
	owner, rest, _ := strings.Cut(text, " ")
	most, turn, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(most)
	parked, _ := strconv.Atoi(turn)
	parked = max(0, min(parked, int(driver.MaxParked.Milliseconds())))
	return rules.Waiter{Owner: driver.Owner(owner), MaxHolders: max(1, n), Parked: time.Duration(parked) * time.Millisecond}
}

// encode returns the attributes of a state besides its queue, and the queue. seen is the row
// that the state comes from.
func (t *table) encode(seen row, next rules.State) (item values, queue []string) {
	item = values{}
	r := row{State: next}
	last := fenceNumber(next.LastFence)
	switch h := r.alone(); {
	case h != nil:
		queue = append(queue, string(h.Owner))
		item[attrOwner], item[attrFence], item[attrExpires], item[attrHolder] = ownerText(h.Owner), last, millis(t.end(seen, *h)), text(h.Text) // also "": who joins sets it if it is not there
		if h.HandedOver {
			item[attrHanded] = integer(max(1, parkedTurn(*h).Milliseconds()))
		}
		if h.Revoked {
			item[attrRevoked] = integer(1)
		}
		if h.Started {
			item[attrStarted] = seen.item[attrStarted]
			if begunOf(seen.item) < leastBegun(h.End()) {
				item[attrStarted] = integer(begun(h.End()))
			}
		}
	case len(next.Holders) > 0:
		var all holders
		end := time.Time{}
		for _, h := range next.Holders {
			e := t.end(seen, h)
			all = append(all, sharedLease{h.Revoked, h.Fence, string(h.Owner), h.Seat, h.MaxHolders, e.UnixMilli(), h.HandedOver, parkedTurn(h).Milliseconds(), h.Text})
			end = later(end, e)
		}
		list, err := json.Marshal(all)
		if err != nil {
			panic(err) // it has texts and numbers only
		}
		item[attrOwner], item[attrFence], item[attrExpires], item[attrShared] = text(sharedOwner), last, millis(end), text(string(list))
	case next.Closed.For > 0:
		item[attrOwner], item[attrFence], item[attrExpires], item[attrHolder] = text(closedOwner), last, millis(next.Closed.End()), textOrNone(next.Closed.Text)
		if size := len(next.Closed.Result); size > 0 {
			item[attrResult], item[attrSize] = &types.AttributeValueMemberB{Value: next.Closed.Result}, integer(int64(size))
		}
	default:
		item[attrLast] = last
	}
	for _, m := range next.Ended {
		switch {
		case m.Fence == 0:
			item[attrAbandoned] = ownerText(m.Owner)
		case m.How != rules.Expired:
			item[attrReleased], item[attrEnded], item[attrHow] = ownerText(m.Owner), fenceNumber(m.Fence), nil
			if m.How != rules.Released {
				item[attrHow] = integer(int64(m.How))
			}
		}
	}
	for _, w := range next.Queue {
		queue = append(queue, waiterText(w))
	}
	return item, queue
}

// parkedTurn is the turn of a hand-over to a parked place, and otherwise 0.
func parkedTurn(h rules.Holder) time.Duration {
	if h.HandedOver && h.TTL > driver.Turn {
		return h.TTL
	}
	return 0
}

// end is the end of a lease as the row keeps it. What is handed over now has no skew: nobody
// waits longer for a dead waiter than for a turn, and a live one trusts what its own read says.
func (t *table) end(seen row, h rules.Holder) time.Time {
	old := slices.ContainsFunc(seen.Holders, func(o rules.Holder) bool { return o.Fence == h.Fence })
	if h.HandedOver && !old {
		return h.End().Add(-t.skew)
	}
	return h.End()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

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

func corrupt(key string, cause error) error {
	return &failure{fmt.Sprintf("dynamostore: the row of key %q is not a lock row of this store, or it is damaged", key), lockstore.ErrCorrupt, cause}
}

// textOf is "" for a value that is no text.
func textOf(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func textOrNone(s string) types.AttributeValue {
	if s == "" {
		return nil
	}
	return text(s)
}

func integer(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func millis(t time.Time) types.AttributeValue { return integer(t.UnixMilli()) }

func ownerText(o driver.Owner) types.AttributeValue { return text(string(o)) }

func fenceNumber(f driver.Fence) types.AttributeValue { return integer(int64(f)) }

// sweepTime is the ttl attribute of a row that is used until t. A fence from a clock far ahead has to grow, so the
// row stays until that time, too.
func sweepTime(t time.Time, f driver.Fence) types.AttributeValue {
	return integer(later(t, time.UnixMicro(int64(f))).Add(idleRow).Unix() + 1)
}
