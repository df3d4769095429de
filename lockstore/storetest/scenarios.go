package storetest

import (
	"cmp"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// scenarios are short sequences of requests for one key. Each answer of the store, and the state
// after it, must be that of the rule book; and the rule book must give the answer that stands here, if the clock
// is exact.
//
// A request is its kind, its owner (a letter) and what differs from the usual:
//
//	acquire a            for a minute; "2s" is another time, "join" asks for a place, and "text" has another HolderInfo
//	release b of a       by owner b with the fence of owner a; else each owner has the fence of its last grant
//	revoke o of a        by the operator o; "open" is OpenAtOnce
//	resolve o of a       without effect; "result 30s" is an effect with this result
//	complete a result    without "result" it is a cooldown
//	wait 1s              more, if a time ends about then
//	look                 Inspect alone, as after each request
//
// A colon and an answer mean that the request does not succeed: a State is a refusal. "is" and a State
// is what Inspect has to see then.
var scenarios = [][3]string{
	{
		"acquire/a held key is refused F64",
		"A free key is granted. Then a second event for the same resource does not get the lease, and learns who has it. Its request changes nothing: neither the fence, nor the end of the lease.",
		`look is free; acquire a 30s is held; acquire b: held; acquire b: held; acquire a 30s; renew a; release a is free; acquire b; acquire c: held`,
	},
	{
		"acquire/again returns the same lease F13 F23",
		"If the reply to an acquire is lost, the caller sends the acquire again. It must get its own lease, and not be told that the key is held. A duplicate that arrives after a renewal must not bring the old end back.",
		`acquire a 30s; acquire a 30s; acquire a 30s text; renew a; acquire a 30s; acquire b: held; renew a; release a`,
	},
	{
		"acquire/again returns the time that is left F23 F29",
		"A repeated acquire is no renewal: it must not promise the whole TTL again, and it must not make the lease longer. Otherwise the retries of a dead caller would hold the key for ever.",
		`acquire a 30s; wait 6s; acquire a 30s; acquire a; acquire b: held`,
	},
	{
		"acquire/an expired lease is lost F07 F09 F10 F11",
		"A caller may stand still until its lease is over. Other owners may have had the key meanwhile, so it gets ErrLost for everything, and the next holder keeps its lease. No late request revives the lease.",
		`acquire a 1s; wait 1s; look is free; renew a: lost; renew a: lost is free; acquire a: lost; acquire b; renew a: lost; release a: lost; complete a: lost; mark a: lost; acquire a: lost; abandon a; renew b; acquire b; acquire c: held; release b; acquire a: lost; release a: lost; abandon a is free`,
	},
	{
		"takeover/time after time F63",
		"A function that dies in each run blocks the key for one TTL at most, and each run has a larger fence.",
		`acquire a 1s; wait 1s; acquire b 1s; wait 1s; acquire c 1s; wait 1s; acquire d`,
	},
	{
		"renew/the trusted time, and again F24",
		"The caller works for the time that a renewal returns. If the reply to a renewal is lost, the same renewal again must succeed, or the holder stops good work. A renewal keeps the fence and the holder.",
		`acquire a 30s; renew a; renew a; wait 5s; renew a; acquire b: held; acquire a; release a is free; renew a: lost`,
	},
	{
		"renew/a released lease is lost F09",
		"A renewal may arrive after the release. It must not take the key again. Nor does one make a lease of a key that was never acquired.",
		`renew a: lost is free; acquire a; release a; renew a: lost is free; acquire b; renew a: lost; release b`,
	},
	{
		"release/frees the key at once, and again is nil F25 F62",
		"The next caller does not wait for the TTL. If the reply to a release is lost, the same release again is no failure. A late duplicate does not free the next holder's lease.",
		`release a: lost; acquire a; release a is free; release a; release a; acquire b; release a; renew b; acquire c: held; release b is free`,
	},
	{
		"release/an expired lease leaves the key free",
		"Nobody had the key since, so its owner may still say that the work is done. The key is free after it.",
		`acquire a 1s; wait 1s; release a is free; renew a: lost; acquire a: lost; acquire b`,
	},
	{
		"release/a late duplicate of the acquire takes no lock F26",
		"A duplicate of the acquire may arrive after the release. It would lock the key for nobody.",
		`acquire a; release a; acquire a: lost; acquire a: lost is free; acquire b; acquire a: lost; renew b; release b`,
	},
	{
		"abandon/before a late acquire, on a new key and on a used one F26",
		"A caller that stops trying abandons its acquire. If the acquire arrives later, it must not lock the key for nobody. The fence still grows.",
		`abandon a is free; acquire a: lost; acquire a: lost is free; acquire b; release b; abandon c; acquire c: lost is free; acquire d; release d`,
	},
	{
		"abandon/after the acquire was applied frees it F23",
		"If the lost reply was a grant, the abandon ends the lease at once, for each of its requests. The reply to an abandon may be lost too.",
		`acquire a; abandon a is free; abandon a; renew a: lost; acquire a: lost; release a; acquire b; abandon a; abandon c; acquire a: lost; acquire c: lost; renew b; acquire d: held; release b; abandon b; acquire e 1s; wait 1s; abandon e is free; acquire e: lost; acquire f`,
	},
	{
		"cooldown/for everybody, then the key is free",
		"Complete ends the lease at once. Nobody gets the key during the cooldown, not even the owner that released. A repeat does not make the cooldown longer, and other releases do not end it.",
		`acquire a; complete a 5s is cooldown; acquire b: cooldown; renew a: lost; acquire a: lost; wait 1s; complete a 5s; release a; abandon b; abandon a; acquire c: cooldown; wait 5s; complete a 5s is free; acquire d; acquire e: held`,
	},
	{
		"complete/again is nil and changes neither the result nor the time F25",
		"If the reply is lost, the caller sends the same call again. Each other request of the run that is over may arrive once more, too, and so may those of others.",
		`acquire a; mark a; complete a result 30s is completed; acquire b: completed; wait 5s; complete a 1m; acquire b: completed; acquire a: lost; renew a: lost; mark a: lost; release a; abandon a; abandon b; mark d of a: lost; release d of a: lost; acquire c: completed`,
	},
	{
		"complete/after the end of the lease, if nobody was granted the key",
		"The work is done, and its caller was slow to say so. No other work has run, so the result still counts.",
		`acquire a 1s; wait 1s; complete a result is completed; acquire b: completed`,
	},
	{
		"complete/after a release or an abandon is lost",
		"Released is not completed: the next caller runs the work again, and this caller must know that.",
		`complete a: lost; acquire a; release a; complete a result: lost is free; acquire b; abandon b; complete b result: lost is free; acquire c; complete a: lost; acquire d: held`,
	},
	{
		"complete/again after others does not change what is theirs F10 F62",
		"Another run has the key, or has completed its own work. A late caller or a late duplicate must not replace it.",
		`acquire a 1s; wait 1s; acquire b; complete a result: lost; acquire c: held; complete b result 5s; complete a result: lost; acquire c: completed; wait 5s; acquire d; complete b result; acquire e: held; acquire e: held; complete d result; complete b result; acquire f: completed`,
	},
	{
		"started/the lease goes on, and whoever knows how the work ended says so F10",
		"MarkStarted changes only what happens when the lease ends without a result. A release, an abandon or a result end it, also after the end of the lease. A run that has lost its lease must not start.",
		`mark a: lost; acquire a; mark a is held; mark a; renew a; acquire b: held; release a is free; mark a: lost; acquire b 1s; mark b; wait 1s; release b is free; acquire c 1s; mark c; wait 1s; abandon c is free;
		acquire d 1s; mark d; wait 1s; complete d result 1s; wait 1s; acquire e 1s; wait 1s; mark e: lost; acquire f; mark e: lost; acquire g: held`,
	},
	{
		"started/an expired one is refused to all",
		"The work may have had its effect. Nobody runs it again until somebody has found out.",
		`acquire a 5s; mark a; renew a 5s; wait 5s; look is in doubt; acquire b: in doubt; acquire a: lost; renew a: lost; mark a: lost; abandon b; release d of a: lost; complete d of a: lost; acquire c join: in doubt; wait 719h; acquire a: lost; renew a: lost; acquire d: in doubt`,
	},
	{
		"resolve/a key in doubt is completed",
		"The operator has found the effect, and says what the result was.",
		`acquire a 1s; mark a; wait 1s; resolve o of a result is completed; resolve o of a result; acquire b: completed; complete a result: lost; release a; acquire a: lost; resolve o of a: lost; acquire b: completed`,
	},
	{
		"resolve/a key in doubt is free",
		"The operator has found no effect: the work may run again.",
		`acquire a 1s; mark a; wait 1s; resolve o of a is free; resolve o of a; complete a result: lost; resolve o of a result: lost; acquire a: lost; acquire b 1s; wait 1s; acquire c`,
	},
	{
		"resolve/only what is in doubt F10",
		"An operator who is late, or who has the wrong key, changes nothing.",
		`resolve o: lost; acquire a; resolve o of a: held; mark a; resolve o of a result: held; renew a; release a; acquire b 1s; wait 1s; resolve o of b result: lost; acquire c 1s; mark c; wait 1s; resolve o of b: lost; resolve o of b result: lost is in doubt; resolve o of c is free; acquire d; complete d result; resolve o of b: lost; acquire e: completed`,
	},
	{
		"revoke/the holder is over, and the key opens at the end of its lease",
		"The old holder still trusts its lease. If the key opened earlier, two would be at work. The next operator sees who did it.",
		`acquire a 6s; revoke o of a is revoked; acquire b: revoked; renew a: lost; acquire a: lost; wait 1s; acquire b: revoked; wait 5s; look is free; acquire b; renew a: lost; acquire a: lost is held; renew b`,
	},
	{
		"revoke/a renewed lease, and again",
		"A holder that hangs renews for ever: this is what Revoke is for. Two operators may do it, or one whose first answer was lost: the second one changes nothing and learns of the first.",
		`acquire a 1s; renew a; acquire b join: held; revoke o of a is revoked; revoke o of a; revoke p of a is revoked; renew a: lost; acquire c join: revoked; acquire b: revoked`,
	},
	{
		"revoke/only the lease with this fence",
		"Between the look and the revocation another may have got the key. Nobody holds a key in its cooldown or with a result: whoever ends it makes the work run again.",
		`revoke o: lost; acquire a; release a; revoke o of a: lost; acquire b 1s; wait 1s; revoke o of b: lost; acquire c; revoke o of b open: lost; renew c; complete c 5s; revoke o of c: lost; revoke o of c open: lost is cooldown; wait 5s;
		acquire d; complete d result; revoke o of d: lost; revoke o of d open: lost is completed; acquire e: completed`,
	},
	{
		"revoke/a started lease is in doubt at its end",
		"The work may have had its effect before the revocation. The key is no more free than after a holder that died, and only who resolves the key says whether the work may run again.",
		`acquire a 5s; mark a; revoke o of a open: held; revoke o of a is revoked; revoke p of a is revoked; revoke p of a open: revoked; release a: lost; mark a: lost; complete a result: lost; acquire b: revoked; resolve o of a: revoked; wait 5s;
		look is in doubt; release a: lost; acquire a: lost; complete a result: lost; revoke o of a: lost; acquire b: in doubt; resolve o of a is free; acquire a: lost; acquire c 5s; complete a result: lost; mark c; revoke o of c; wait 5s; resolve o of c result is completed; complete c result: lost; acquire d: completed`,
	},
	{
		"revoke/at once frees the key at once",
		"For a holder that certainly is dead, and a lease that lasts for hours.",
		`acquire a; revoke o of a open is free; renew a: lost; acquire a: lost; acquire b; renew a: lost; release a: lost; acquire a: lost; revoke o of b; revoke o of b open is free; acquire c; renew c; acquire d: held`,
	},
	{
		"queue/in the order of arrival F57",
		"Whoever waits longest is served first, and nobody passes by. A caller that does not wait has no place, and one that asks again keeps its own.",
		`acquire a join; acquire b join: held; acquire c join: held; acquire c: held; acquire d join: held; acquire c join: held; acquire e: held; release a; acquire e: reserved; acquire d join: reserved; acquire c join: reserved; acquire b is held; acquire b; release b; acquire b: lost;
		acquire e: reserved; acquire c; acquire e: held; release c; acquire d; release d is free; acquire e join`,
	},
	{
		"queue/leave takes one place out",
		"Whoever stops waiting must not delay the others, and must not be served. Leaving is no abandon: the owner may come again.",
		`leave a; acquire a; acquire b join: held; acquire c join: held; acquire d join: held; leave c; leave c; leave e; acquire d join: held; acquire b join: held; leave b; leave a: holds it; release a; acquire d; acquire e join: held; abandon e is held; release d is free; acquire b; leave b: holds it; renew b; acquire e: lost`,
	},
	{
		"hand-over/a lapsed one goes to the next, and its owner is last F02",
		"A process that died while it waited must not stop those behind it. One that was only slow has lost its place and no more; alone, it gets a new lease.",
		`acquire a; acquire b join: held; acquire c join: held; acquire d join: held; release a is reserved; wait 2s; acquire b join: reserved; acquire c; acquire d join: held; acquire b join: held; release c; acquire d; release d; acquire b; acquire b; release b;
		acquire e; acquire f join: held; release e; wait 2s; acquire f; renew f`,
	},
	{
		"queue/many that died delay by five turns F02",
		"A queue of the dead must not keep the key for longer than lockstore.MaxTurns turns, and one more if the first of them was handed the key. A grant ends the places before it.",
		`acquire a; acquire b join: held; acquire c join: held; acquire d join: held; acquire e join: held; acquire f join: held; acquire g join: held; acquire h join: held; acquire i join: held; release a; wait 9s; acquire i: reserved; acquire x: reserved; wait 3s; acquire i; acquire b join: held`,
	},
	{
		"queue/many that died delay who does not wait by five turns F02",
		"Callers without a place get a key for which nobody living waits.",
		`acquire a; acquire b join: held; acquire c join: held; acquire d join: held; acquire e join: held; acquire f join: held; acquire g join: held; acquire h join: held; release a; wait 12s; acquire x is held`,
	},
	{
		"queue/who leaves moves the turns of none but the next",
		"The first that gives a free key up gives the next a whole turn, or a healthy waiter would lose its turn. One that leaves later, or an abandon by others, moves nobody's turn, or two would have theirs at once.",
		`acquire a; acquire b join: held; acquire c join: held; acquire d join: held; acquire e join: held; release a; wait 1s; abandon x; abandon b; wait 1s; acquire d: reserved; acquire c; release c; wait 2s; leave e; acquire d join is held`,
	},
	{
		"queue/who leaves after its turn moves nobody's turn",
		"Or two would have their turn at once, and the first of them could lose it.",
		`acquire a; acquire b join: held; acquire c join: held; acquire d join: held; acquire e join: held; release a; wait 4400ms; leave c; acquire e: reserved; acquire d is held; acquire e: held`,
	},
	{
		"queue/behind a holder that died F01",
		"When a lease ends the queue goes on, in its order. So it does after a revocation.",
		`acquire a 5s; acquire b join: held; acquire c join: held; wait 5s; renew a: lost; acquire c join: reserved; acquire x: reserved; acquire b 5s; acquire c join: held; revoke o of b; acquire d join: revoked; wait 5s; acquire c; acquire d: held`,
	},
	{
		"queue/a cooldown, a result and a doubt end it",
		"Nobody waits for the end of a cooldown: it is there so that others do not run. A result is for all who wait.",
		`acquire a; acquire b join: held; complete a 4s is cooldown; acquire b join: cooldown; acquire c join: cooldown; wait 4s; acquire c; acquire d join: held; complete c result 4s is completed; acquire d join: completed; wait 4s; acquire e 5s; mark e; acquire f join: held; acquire g join: held; leave g; wait 5s; acquire f join: in doubt; resolve o of e; acquire g: reserved`,
	},
	{
		"hand-over/the release makes the first in the queue the holder",
		"Nobody else can come between, and the first in the queue works at once, for as long as it asked.",
		`acquire a; acquire b join: held; acquire c join: held; release a is reserved; acquire c join: reserved; leave b: holds it; acquire b is held; acquire c join: held; wait 2s; acquire b; renew b; release b is reserved`,
	},
	{
		"hand-over/of a revoked lease, by its release",
		"Its owner has ended its work, so nobody has to wait. It learns that its lease was lost.",
		`acquire a; acquire b join: held; revoke o of a is revoked; acquire b join: revoked; release a: lost is reserved; release a: lost; acquire c: reserved; acquire a: lost; acquire b; release a: lost; renew b; release b; acquire a: lost`,
	},
	{
		"hand-over/by an operator, and again F25",
		"Who waits gets the key at once. An operator who asks again, because no reply came, must not hear that nothing was done.",
		`acquire a; acquire b join: held; acquire c join: held; revoke o of a open is reserved; revoke o of a open is reserved; acquire c join: reserved; acquire b; release b; acquire c; release c;
		acquire d 5s; mark d; acquire e join: held; acquire f join: held; wait 5s; acquire e join: in doubt; resolve o of d is reserved; resolve o of d is reserved; acquire f join: reserved; acquire e; renew e`,
	},
}

// scenarioCases makes a case of each scenario.
func scenarioCases() (all []testCase) {
	for _, s := range scenarios {
		all = append(all, testCase{s[0], s[1], func(c *check) {
			var steps []step
			lapse := time.Duration(0)
			for _, text := range strings.Split(s[2], ";") {
				if d, ok := strings.CutPrefix(strings.TrimSpace(text), "wait "); ok {
					lapse += mustParse(d)
					continue
				}
				if lapse > time.Hour && !c.virtual {
					break
				}
				st := parseStep(text)
				st.lapse, lapse = lapse, 0
				steps = append(steps, st)
			}
			if ran, d := c.compare(steps, nil); d != "" {
				c.fatalf("after %d of the requests %q:\n%s", len(ran), s[2], d)
			}
		}})
	}
	return all
}

// parseStep reads one request of a scenario.
func parseStep(text string) step {
	text, state, _ := strings.Cut(text, " is ")
	request, answer, _ := strings.Cut(text, ":")
	st := step{ttl: time.Minute, most: 1, says: cmp.Or(strings.TrimSpace(answer), "yes"), state: strings.TrimSpace(state)}
	words := strings.Fields(request)
	for k := driver.Inspect; k < driver.AwaitTurn; k++ {
		if strings.HasPrefix(k.String(), words[0]) {
			st.kind = k
		}
	}
	for i, w := range words[1:] {
		switch owner := int(w[0]) - 'a'; {
		case w == "join" || w == "open":
			st.join = true
		case w == "result":
			st.result, st.join = true, st.kind == driver.Resolve
		case w == "text":
			st.result = true
		case w == "of":
		case len(w) == 1 && i == 0:
			st.owner, st.of = owner, owner
		case len(w) == 1:
			st.of = owner
		default:
			st.ttl = mustParse(w)
		}
	}
	return st
}

func mustParse(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}
