package dynamostore

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

// write is one conditional update of a key's row.
type write struct {
	row      string // its name if it is not the key
	becomes  values // what attributes become; nil removes one
	expects  values // what attributes must be; nil: not there
	makesRow bool   // also if there is no row

	// Texts of expressions for what the maps cannot say, and the values in them.
	set, remove, conditions []string
	values                  values

	yields  bool              // to the requests of holders: it is not sent again if it is throttled
	returns types.ReturnValue // which row the reply to an applied write brings; a refusal always brings the row
}

// assign makes an attribute what the expression says, which has the value under the name of the attribute. It moves the attribute from
// becomes to set and values. arrivalWrite and join call it.
func (w *write) assign(name, expression string, v value) {
	delete(w.becomes, name)
	w.set, w.values[":"+name] = append(w.set, "#"+name+" = "+expression), v
}

// require adds a condition. CompleteItem calls it, and so do becoming and its helpers.
func (w *write) require(condition string) { w.conditions = append(w.conditions, condition) }

// was requires that attributes are as they were seen. It sets expects; becoming and changeQueue call it.
func (w *write) was(seen row, names ...string) {
	for _, name := range names {
		w.expects[name] = seen.item[name]
	}
}

// encodeWrite is a write as update sends it alone, and StillHeld and CompleteItem in a transaction of the program. It adds what is the same in each. The
// row must have a time to live of this name: otherwise another program writes it under another name, and would not move this one, so DynamoDB could
// delete the row under a live lease. DynamoDB refuses a name or a value that no expression has.
func (t *table) encodeWrite(key string, w write) types.Update {
	set, remove, conditions, given := w.set, w.remove, w.conditions, values{}
	maps.Copy(given, w.values)
	for _, name := range slices.Sorted(maps.Keys(w.becomes)) {
		if v := w.becomes[name]; v == nil {
			remove = append(remove, "#"+name)
		} else {
			set, given[":"+name] = append(set, "#"+name+" = :"+name), v
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.expects)) {
		if v := w.expects[name]; v == nil {
			conditions = append(conditions, "attribute_not_exists(#"+name+")")
		} else {
			conditions, given[":was"+name] = append(conditions, "#"+name+" = :was"+name), v
		}
	}
	update, condition := "", strings.Join(append(conditions, "attribute_exists(#ttl)"), " AND ")
	if len(set) > 0 {
		update = "SET " + strings.Join(set, ", ")
	}
	if len(remove) > 0 {
		update = strings.TrimPrefix(update+" REMOVE "+strings.Join(remove, ", "), " ")
	}
	if w.makesRow {
		condition = "attribute_not_exists(#key) OR " + condition
	}
	return types.Update{
		TableName: &t.name, Key: t.names.row(key), UpdateExpression: &update, ConditionExpression: &condition,
		ExpressionAttributeNames: t.names.aliases(update + " " + condition), ExpressionAttributeValues: given,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

// becoming makes the write for the next state of a row as a reply has brought it, and sends nothing; change calls it. It adds what the rules do not
// know: a mark of started work (MarkStarted's, or one that a renewal moves), a larger fence for an Abandon (raiseFence), and the row's end. The write
// depends on as little of the row as the decision does.
func (t *table) becoming(q driver.Request, seen row, r reply, next rules.State) write {
	w := write{becomes: values{}, expects: values{}, values: values{}}
	if q.Kind == driver.Abandon {
		t.raiseFence(r, &next)
	}
	item, queue := t.encode(seen, next), t.encodeQueue(seen, next)
	if q.Kind == driver.MarkStarted {
		item[attrStarted] = t.nextMark(seen, q.Owner)
	}
	leases := false
	for i, name := range slices.Concat(leaseAttributes, otherAttributes) {
		if !reflect.DeepEqual(item[name], seen.item[name]) {
			w.becomes[name] = item[name]
			leases = leases || i < len(leaseAttributes)
		}
	}
	holds, place := seen.holder(q.Owner) >= 0, seen.place(q.Owner)
	comes, goes := q.Kind == driver.Acquire, (q.Kind == driver.Leave || q.Kind == driver.Abandon) && place > 0
	switch {
	case !leases && item[attrHolders] != nil && len(seen.Queue) > 0 && (comes || goes) && !holds:
		// Who comes or goes behind others depends on them, and not on who shares the key meanwhile, unless it is a holder itself. If
		// nobody waits any more, there may be room, and nobody would hand the key over.
		w.values[":asks"] = text(sharedBy(q.Owner))
		w.was(seen, attrOwner)
		w.require("attribute_exists(#queue[0])")
		w.require("NOT contains(#holders, :asks)")
	case len(seen.item) == 0:
		w.makesRow, w.expects[attrKey] = true, nil
	case leases || holds || item[attrHolders] != nil:
		w.was(seen, leaseAttributes...)
	default:
		w.was(seen, attrOwner, attrFence, attrLastFence)
	}
	if leases || len(seen.item) == 0 {
		w.becomes[attrTTL] = t.sweeps(item, next)
	}
	switch {
	case q.Kind == driver.Acquire:
		w.require(notEnded)
		w.values[":me"] = text(q.Owner)
	case q.Kind == driver.Abandon && len(seen.item) > 0 && !holds && place < 0:
		w.was(seen, attrQueue) // its acquire may join meanwhile, with any MaxHolders
	}
	t.changeQueue(&w, seen, r, next, queue)
	if len(w.becomes)+len(w.set)+len(w.remove) == 0 { // a renewal of what lasts longer: the answer rests on a write, and DynamoDB wants one that sets something
		w.becomes[attrOwner] = seen.item[attrOwner]
	}
	return w
}

// raiseFence makes the last fence of a key that is free after an Abandon, also if it was free before, larger than that of each arrival of this process,
// so that a late copy of one is refused; becoming calls it for each Abandon. It changes next alone, and nothing if somebody has the key or it is closed.
// A process that sent one while its clock was set does not raise the fences of others for long: each of them would take a second request.
func (t *table) raiseFence(r reply, next *rules.State) {
	if len(next.Holders) == 0 && next.Closed.For == 0 {
		c := t.clockOf(r)
		now := cmp.Or(c.Fences, c.Early)
		sent := min(driver.Fence(t.sent.Load()), driver.Fence(now.Add(clocksDiffer).UnixMicro()))
		next.LastFence = max(driver.NextFence(next.LastFence, now), sent+1)
	}
}

// noteSent notes the fence of an arrival that is about to be sent. It raises sent; arrivalWrite calls it.
func (t *table) noteSent(f driver.Fence) {
	for old := t.sent.Load(); old < int64(f) && !t.sent.CompareAndSwap(old, int64(f)); {
		old = t.sent.Load()
	}
}

// sweeps is when DynamoDB may delete the row that becoming writes. becoming calls it.
func (t *table) sweeps(item values, next rules.State) value {
	if started := item[attrStarted]; started != nil {
		return started
	}
	used := t.clock.read()
	for _, h := range next.Holders {
		used = later(used, h.End())
	}
	if next.Closed.For > 0 {
		used = next.Closed.End().Add(idleRow) // a day more: the clock of the writer may be off
	}
	return sweepTime(used, next.LastFence)
}

// changeQueue makes the queue of a row what it has to be. An owner that joins meanwhile stays. A
// queue that only lost places is as it was up to a place if this one is where it was. So the write requires the
// last place that it removes. Whoever makes room hands the key over until the first that stays finds none: so
// the write requires this one, too. It is the holder now, or there is no room for it. It changes w alone; only becoming calls it, last.
func (t *table) changeQueue(w *write, seen row, r reply, next rules.State, queue []place) {
	if next.Closed.For > 0 { // the places of those who join meanwhile end, too
		w.becomes[attrQueue] = nil
		return
	}
	var removed []int
	kept := 0
	for i, p := range seen.queue {
		if kept < len(queue) && queue[kept].owner == p.owner {
			kept++
		} else {
			removed = append(removed, i)
		}
	}
	if makesRoom(seen.State, next) && len(queue) > 0 {
		if i := slices.IndexFunc(seen.queue, func(p place) bool { return p.owner == queue[0].owner }); i >= 0 {
			w.requirePlace(seen, i)
		}
	}
	switch {
	case kept == len(queue)-1 && len(removed) == 0 && len(seen.queue) > 0:
		w.join(seen, next, queue[kept])
	case kept < len(queue) || seen.damaged || seen.item[attrQueue] == nil && len(seen.item) > 0 && len(queue) > 0:
		w.becomes[attrQueue] = list(queue...)
		switch {
		case len(seen.queue) > 0:
			w.was(seen, attrQueue)
		case !seen.damaged && len(seen.item) > 0:
			w.require("attribute_not_exists(#queue[0])")
		}
	case len(removed) > 0:
		for _, i := range removed {
			w.remove = append(w.remove, element(i), fmt.Sprintf("#queue[%d]", 2*i+1))
		}
		w.requirePlace(seen, removed[len(removed)-1])
	}
	if len(next.Queue) == 0 && len(seen.item) > 0 && !seen.damaged {
		if next.Queue = []rules.Waiter{{MaxHolders: math.MaxInt}}; book.Wait(next, t.clockOf(r), "") <= 0 {
			w.require("attribute_not_exists(" + element(len(seen.queue)) + ")") // who has joined since would have been handed the key
		}
	}
}

// element is the owner of a place in the queue of a row, for changeQueue, requirePlace and join. The first writes have such texts themselves.
func element(place int) string { return fmt.Sprintf("#queue[%d]", 2*place) }

// requirePlace requires that a place is where it was. changeQueue and join call it.
func (w *write) requirePlace(seen row, i int) {
	value := fmt.Sprintf(":at%d", i)
	w.require(element(i) + " = " + value)
	w.values[value] = text(seen.queue[i].owner)
}

// join adds a place, if the queue has room for it also after others have joined. changeQueue calls it.
func (w *write) join(seen row, next rules.State, p place) {
	most, joins := maxPlaces-1+len(seen.queue)-len(seen.Queue), next.Queue[len(next.Queue)-1] // the first place may be that of who has the key
	if joins.Parked > 0 {                                                                     // at most half of the places
		most = min(most, len(seen.queue)+maxPlaces/2-len(rules.Parked(next.Queue)))
	}
	if joins.Work != "" { // who has joined since may cover it
		most = len(seen.queue)
	}
	if slices.ContainsFunc(seen.queue, func(s place) bool { return s.owner == p.owner }) { // the owner of a hand-over that has lapsed
		most = len(seen.queue)
	} else {
		w.require("NOT contains(#queue, :joins)")
		w.values[":joins"] = text(p.owner)
	}
	if joins.Parked > 0 || most == len(seen.queue) { // it depends on who waits, and as many may be others
		w.requirePlace(seen, len(seen.queue)-1)
	}
	w.require("attribute_not_exists(" + element(most) + ")")
	w.assign(attrQueue, "list_append(#queue, :queue)", list(p))
}

// makesRoom says that a lease or the first place has ended. changeQueue calls it.
func makesRoom(seen, next rules.State) bool {
	return len(seen.Queue) > 0 && (len(next.Queue) == 0 || next.Queue[0].Owner != seen.Queue[0].Owner) ||
		slices.ContainsFunc(seen.Holders, func(h rules.Holder) bool {
			return !slices.ContainsFunc(next.Holders, func(n rules.Holder) bool { return n.Fence == h.Fence })
		})
}
