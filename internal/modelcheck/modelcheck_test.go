package modelcheck

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
)

var (
	two   = []int{1, 1}
	three = []int{1, 1, 1}
)

// The searches without a number of states come to their end.
var searches = []Size{
	{MaxHolders: two, Does: Renew | Write, Earlier: 1},
	{MaxHolders: two, Does: Renew | Write | Revoke, Earlier: 2, States: 200_000},
	{MaxHolders: two, Does: Queue | Renew, States: 250_000},
	{MaxHolders: two, Does: Queue | Renew, Earlier: 2, Dead: 1, States: 300_000},
	{MaxHolders: two, Does: Queue | Renew | Start | Complete | Revoke, Dead: 1, States: 200_000},
	{MaxHolders: two, Does: Queue | Complete, Dead: 3, States: 150_000},
	{MaxHolders: two, Healthy: true, Does: Queue | Complete, Dead: 3, States: 200_000},
	{MaxHolders: two, Healthy: true, Does: Queue | Complete, Earlier: 1, Dead: 2, States: 200_000},
	{MaxHolders: two, Register: true, Does: Renew | Revoke, Earlier: 2, States: 100_000},
	{MaxHolders: two, Register: true, Does: Queue | Renew | Complete, States: 100_000},
	{MaxHolders: three, Register: true, Does: Queue | Renew, States: 100_000},
	{MaxHolders: two, Blurred: true, Does: Queue | Renew, States: 150_000},
	{MaxHolders: two, Blurred: true, Does: Queue | Renew | Start | Complete | Revoke, Dead: 1, States: 100_000},
	{MaxHolders: []int{1, 2, 2}, Blurred: true, Does: Queue | Renew, States: 100_000},
	{MaxHolders: three, Does: Queue | Renew, Dead: 1, States: 200_000},
	{MaxHolders: three, Healthy: true, Does: Queue, States: 200_000},
	{MaxHolders: []int{1, 2, 2}, Does: Queue | Renew, Dead: 1, States: 200_000},
	{MaxHolders: []int{1, 2, 2}, Healthy: true, Does: Queue, States: 150_000},
	{MaxHolders: []int{1, 64, 64}, Does: Queue | Renew, Dead: 1, States: 200_000},
	{MaxHolders: []int{1, 64, 64}, Healthy: true, Does: Queue, States: 200_000},
	{MaxHolders: two, Parked: true, Does: Queue | Renew | Start | Complete | Revoke, Dead: 1, States: 100_000},
	{MaxHolders: two, Parked: true, Healthy: true, Does: Queue | Complete, Dead: 3, States: 150_000},
	{MaxHolders: three, Parked: true, Does: Queue | Renew, Dead: 1, States: 150_000},
	{MaxHolders: []int{1, 2, 2}, Parked: true, Does: Queue | Renew, Dead: 1, States: 100_000},
	{MaxHolders: two, Parked: true, Register: true, Does: Queue | Renew | Complete, States: 100_000},
}

// few is the number of states of each search outside make verify.
const few = 2000

func TestSearch(t *testing.T) {
	verifyrecord.SkipWithRace(t)
	result := verifyrecord.Result{
		Kind: verifyrecord.Search, Name: "every state of a few clients under the rules of the lock", Counts: map[string]int64{},
		Limits: []string{
			"The search has one key, a turn of two ticks and a TTL of four. It is no proof: each search has two or three clients, at most one earlier owner of each whose requests still arrive, and at most 3 places whose owners no client has any more.",
			"Nearly all searches end after the number of states that the record says.",
			"The clients of the search are a model of the guard. The guard itself is simulated, and so are the stores.",
			"In the search of a store over a register nobody writes between the read and the write of a call, and no read is old. Time stamps have a resolution of one tick, and a clock that is not ahead by an hour or behind is a tick off. The simulation of casstore has the rest.",
		},
	}
	began := time.Now()
	for _, size := range searches {
		toTheEnd := size.States == 0
		if !verifyrecord.Full() {
			size.States = few
		}
		r := Search(size, None, Rules())
		t.Logf("%v: %d states, %d steps deep, to the end: %t, %v", size, r.States, r.Depth, r.Closed, time.Since(began))
		if r.Bad != "" {
			t.Fatalf("%v: %s:\n%s", size, r.Bad, r.Trace)
		}
		if toTheEnd && verifyrecord.Full() && !r.Closed {
			t.Errorf("the search of %v did not come to its end", size)
		}
		result.Counts[fmt.Sprintf("states with %v", size)] = int64(r.States)
		result.Counts[fmt.Sprintf("steps with %v", size)] = int64(r.Depth)
	}
	result.Controls = controls(t)
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}

// controls are searches that have to find a state in which something is wrong.
func controls(t *testing.T) (all []verifyrecord.Control) {
	older := Size{MaxHolders: two, Does: Renew | Write, Earlier: 1}
	queue := Size{MaxHolders: two, Healthy: true, Does: Queue | Complete, Dead: 2}
	handOver := Size{MaxHolders: two, Does: Queue}
	blurred := Size{MaxHolders: two, Blurred: true, Does: Queue | Renew}
	register := Size{MaxHolders: two, Register: true, Does: Renew}
	parks := Size{MaxHolders: two, Parked: true, Does: Queue | Complete}
	started := Size{MaxHolders: two, Does: Start | Complete | Revoke}
	const trust, longer = "trusts a lease that it does not have", "trusts its lease for longer than it lasts"
	const ended = "a request of an owner that has ended changed the key"
	for _, c := range []struct {
		size    Size
		mistake Mistake // of a client
		rule    string  // one of wrongrules
		want    string
	}{
		{older, Unfenced, "", "a stale write"},
		{older, LongTrust, "", longer},
		{older, AskAfterAbandon, "", trust},
		{handOver, TrustFromWakeUp, "", longer},
		{handOver, HandOverForTTL, "", longer},
		{handOver, StaleElement, "", trust},
		{handOver, OldFence, "", trust},
		{older, None, "M18 M117 a store that forgets the owners that have ended", ended},
		{older, None, "M113 abandon frees everybody's", ended},
		{older, None, "M08 renew after expiry", "revived"},
		{older, None, "M04 release unchecked", ended},
		{older, None, "takeover keeps the fence", "the fence did not grow"},
		{queue, None, "M31 a dead waiter blocks the queue", "can never be granted"},
		{queue, None, "M32 callers without a place overtake the queue", "lost its place"},
		{queue, None, "queue: last in, first out", "somebody got a place before"},
		{queue, None, "queue: a grant keeps the place", "a holder has a place"},
		{queue, None, "queue: an abandon keeps the place", "has a place"},
		{queue, None, "queue: leave does nothing", "an owner that has left has a place"},
		{queue, None, "queue: stays through a cooldown", "somebody waits for a completed key"},
		{queue, None, "a completed key is granted", "a completed key was granted"},
		{started, None, "M123 started: ignored by a takeover", "a key in doubt was granted"},
		{started, None, "M120 revoke: end shortened", "a revocation changed the end"},
		{started, None, "M154 a revocation opens the key at once", "the revocation of a live lease was refused, or ended it"},
		{handOver, None, "a hand-over keeps the place", "a holder has a place"},
		{handOver, None, "a hand-over that has lapsed lets its owner in beside the next", "one of them allows"},
		{blurred, None, "a renewal keeps the place of a hand-over that another clock saw lapse", "a holder has a place"},
		{handOver, None, "a release hands over to nobody", "waits for whom there is room"},
		{Size{MaxHolders: []int{2, 2, 2}, Does: Queue}, None, "several: one more than may hold the key", "one of them allows"},
		{Size{MaxHolders: []int{1, 64, 64}, Does: Queue}, None, "several: who asks counts alone", "one of them allows"},
		{queue, None, "M82 a lease is live at the instant of its end", "can never be granted"},
		{parks, None, "parked: nobody is woken by a hand-over", "is not woken"},
		{parks, None, "parked: a completion wakes nobody", "is not woken"},
		{parks, None, "parked: who waits is woken, too", "woken for nothing"},
		{register, None, "a lease begins at the earliest time", trust},
		{register, None, "M118 others' leases end by the latest time", trust},
		{register, None, "M110 a takeover by a guess", trust},
		{register, None, "M111 lost, by a guess", "told that a live lease is lost"},
	} {
		what, store := string(c.mistake), Rules()
		if c.rule != "" {
			what, store.Decide = c.rule, wrongrules.Find(c.rule).Decide
		}
		c.size.States = cmp.Or(c.size.States, 200_000)
		r := Search(c.size, c.mistake, store)
		if !strings.Contains(r.Bad, c.want) {
			t.Errorf("%s: found %q after %d states; want %q\n%s", what, r.Bad, r.States, c.want, r.Trace)
		}
		t.Logf("%s: %s after %d steps, %d states:\n%s", what, r.Bad, r.Depth, r.States, r.Trace)
		all = append(all, verifyrecord.Control{What: what, Shown: true, Saw: fmt.Sprintf("%s, after %d steps", r.Bad, r.Depth)})
	}
	return all
}
