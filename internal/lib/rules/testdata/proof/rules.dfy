// A model of the rule book, for proof.dfy: the invariant of invariant.go, and every request but Inspect, as functions that Dafny proves
// something about and translates into a program. Their names are mostly those of rules.go and state.go. TestModel compares
// the program with the rule book, so this file changes with them.
//
// Times are in ns, and owners, texts and results are numbers, 0 for none. Numbers have no limit. The reason of an answer, the status of the key and the
// basis are left out. So is what Acquire does for a state that breaks the invariant: proof.dfy has HealDoesNothing.
module Rules {
datatype Holder = Holder(owner: int, fence: int, seat: int, max: int, since: int, ttl: int, text: int, handed: bool, revoked: bool, started: bool)
datatype Waiter = Waiter(owner: int, max: int, parked: int, work: int, event: int)
datatype How = Released | Expired | Completed | Resolved | Revoked
datatype Mark = Mark(owner: int, fence: int, how: How)
datatype Closed = Open | Closed(since: int, long: int, result: int, text: int)
datatype State = State(last: int, holders: seq<Holder>, queue: seq<Waiter>, ended: seq<Mark>, closed: Closed)
datatype Clock = Clock(early: int, late: int, sure: bool, fences: int)
datatype Book = Book(places: int, marks: int)
datatype Kind = Acquire | Renew | Release | Abandon | Leave | MarkStarted | Complete | Resolve | Revoke
datatype Request = Request(kind: Kind, owner: int, fence: int, ttl: int, max: int, text: int, join: bool, parked: int, work: int, event: int, atOnce: bool, effect: bool, result: int)
datatype Outcome = Granted | Done | Refused | Lost | Holding | Exclusive
datatype Answer = Answer(outcome: Outcome, fence: int, seat: int, ttl: int, position: int, covered: bool)
datatype Step = Step(s: State, handed: seq<int>, wake: seq<int>) // a state, and who is told of a hand-over
datatype Decision = Decision(to: Step, a: Answer)

function method End(h: Holder): int { h.since + h.ttl }
function method Live(c: Clock, h: Holder): bool { c.early < End(h) }
function method Max(a: int, b: int): int { if a < b then b else a }
function method Min(a: int, b: int): int { if a < b then a else b }

// After are the leases that end after a time.
function method After(hs: seq<Holder>, t: int): seq<Holder>
  ensures |After(hs, t)| <= |hs|
  ensures forall h :: h in After(hs, t) <==> h in hs && End(h) > t
{
  if hs == [] then [] else
    var n := |hs| - 1;
    if End(hs[n]) > t then After(hs[..n], t) + [hs[n]] else After(hs[..n], t)
}

function method Find(hs: seq<Holder>, o: int): int
  ensures -1 <= Find(hs, o) < |hs|
  ensures Find(hs, o) >= 0 ==> hs[Find(hs, o)].owner == o
  ensures Find(hs, o) < 0 ==> forall i :: 0 <= i < |hs| ==> hs[i].owner != o
{
  if hs == [] then -1 else if hs[0].owner == o then 0 else
    var i := Find(hs[1..], o); if i < 0 then -1 else i + 1
}

function method FindFence(hs: seq<Holder>, f: int): int
  ensures -1 <= FindFence(hs, f) < |hs|
  ensures FindFence(hs, f) >= 0 ==> hs[FindFence(hs, f)].fence == f
  ensures FindFence(hs, f) < 0 ==> forall i :: 0 <= i < |hs| ==> hs[i].fence != f
{
  if hs == [] then -1 else if hs[0].fence == f then 0 else
    var i := FindFence(hs[1..], f); if i < 0 then -1 else i + 1
}

function method Place(q: seq<Waiter>, o: int): int
  ensures -1 <= Place(q, o) < |q|
  ensures Place(q, o) >= 0 ==> q[Place(q, o)].owner == o
  ensures Place(q, o) < 0 ==> forall i :: 0 <= i < |q| ==> q[i].owner != o
{
  if q == [] then -1 else if q[0].owner == o then 0 else
    var i := Place(q[1..], o); if i < 0 then -1 else i + 1
}

function method FindMark(e: seq<Mark>, o: int): int
  ensures -1 <= FindMark(e, o) < |e|
  ensures FindMark(e, o) >= 0 ==> e[FindMark(e, o)].owner == o
  ensures FindMark(e, o) < 0 ==> forall i :: 0 <= i < |e| ==> e[i].owner != o
{
  if e == [] then -1 else if e[0].owner == o then 0 else
    var i := FindMark(e[1..], o); if i < 0 then -1 else i + 1
}

// The invariant: the six sentences of State.Broken, but for the bounds of numbers.
predicate method Leases(hs: seq<Holder>, last: int) {
  (forall i :: 0 <= i < |hs| ==> 0 < hs[i].fence <= last) &&
  (forall i, j :: 0 <= i < j < |hs| ==> hs[i].fence < hs[j].fence && hs[i].owner != hs[j].owner && hs[i].seat != hs[j].seat)
}
predicate method Allowed(hs: seq<Holder>) { forall i :: 0 <= i < |hs| ==> |hs| <= hs[i].max && (hs[i].started ==> hs[i].max == 1) }
predicate method Places(q: seq<Waiter>) { forall i, j :: 0 <= i < j < |q| ==> q[i].owner != q[j].owner }
predicate method Apart(hs: seq<Holder>, q: seq<Waiter>) {
  forall i, j :: 0 <= i < |hs| && 0 <= j < |q| && hs[i].owner == q[j].owner ==> hs[i].handed && !hs[i].revoked && hs[i].max == q[j].max
}
predicate method Marks(e: seq<Mark>, last: int) {
  (forall i :: 0 <= i < |e| ==> e[i].fence <= last) && forall i, j :: 0 <= i < j < |e| ==> e[i].owner != e[j].owner
}
predicate method Gone(e: seq<Mark>, hs: seq<Holder>, q: seq<Waiter>) {
  (forall i, j :: 0 <= i < |e| && 0 <= j < |hs| ==> e[i].owner != hs[j].owner) &&
  (forall i, j :: 0 <= i < |e| && 0 <= j < |q| ==> e[i].owner != q[j].owner)
}
predicate method Fits(hs: seq<Holder>, most: int) { |hs| < most && forall i :: 0 <= i < |hs| ==> |hs| < hs[i].max }
predicate method Most(s: State) {
  s.last >= 0 && Leases(s.holders, s.last) && Allowed(s.holders) && (s.closed.Closed? ==> s.holders == [] && s.queue == []) &&
  Places(s.queue) && Apart(s.holders, s.queue) && Marks(s.ended, s.last) && Gone(s.ended, s.holders, s.queue)
}
predicate method Full(s: State) { s.queue != [] ==> !Fits(s.holders, s.queue[0].max) }
predicate method Inv(s: State) { Most(s) && Full(s) }
// Numbers are above 0.
predicate method Sane(s: State) { (forall i :: 0 <= i < |s.queue| ==> s.queue[i].max >= 1) && (s.closed.Closed? ==> s.closed.long > 0) }

// The parts of a decision.
function method Begin(hs: seq<Holder>, late: int): seq<Holder>
  ensures |Begin(hs, late)| == |hs|
  ensures forall i :: 0 <= i < |hs| ==> Begin(hs, late)[i] == hs[i].(since := Min(hs[i].since, late))
{
  if hs == [] then [] else [hs[0].(since := Min(hs[0].since, late))] + Begin(hs[1..], late)
}
function method BeginNow(s: State, c: Clock): State {
  if !c.sure then s else
    s.(holders := Begin(s.holders, c.late), closed := if s.closed.Closed? then s.closed.(since := Min(s.closed.since, c.late)) else Open)
}
function method IsClosed(s: State, c: Clock): bool { s.closed.Closed? && c.early < s.closed.since + s.closed.long }
predicate method InDoubt(s: State, c: Clock) { exists i :: 0 <= i < |s.holders| && s.holders[i].started && !Live(c, s.holders[i]) }
function method Turn(w: Waiter): int { Max(2000000000, w.parked) }
function method Turns(q: seq<Waiter>): int ensures Turns(q) >= 0 { if q == [] then 0 else Turn(q[0]) + Turns(q[1..]) }
function method Delay(q: seq<Waiter>): int ensures Delay(q) >= 0 { Min(Turns(if |q| > 5 then q[..5] else q), 60000000000) }
function method Smallest(most: int, q: seq<Waiter>): int
  decreases |q|
  ensures Smallest(most, q) <= most
{ if q == [] then most else Smallest(Min(most, q[0].max), q[1..]) }

datatype Since = Always | At(t: int) // since when there is room
function method FirstEnd(hs: seq<Holder>): int
  requires hs != []
  ensures exists h :: h in hs && End(h) == FirstEnd(hs)
  ensures forall h :: h in hs ==> End(h) >= FirstEnd(hs)
{
  if |hs| == 1 then End(hs[0]) else Min(End(hs[0]), FirstEnd(hs[1..]))
}
function method Room(hs: seq<Holder>, most: int, since: Since): Since
  decreases |hs|
{
  if hs == [] || Fits(hs, most) then since else
    var e := FirstEnd(hs); Shorter(hs, e); Room(After(hs, e), most, At(e))
}
function method RoomSince(s: State, most: int): Since {
  var r := Room(s.holders, most, Always);
  if s.closed.Closed? && (r.Always? || s.closed.since + s.closed.long > r.t) then At(s.closed.since + s.closed.long) else r
}
function method MayHave(s: State, c: Clock, most: int, delay: int): bool {
  var r := RoomSince(s, most); r.Always? || r.t + delay <= c.early
}

lemma Shorter(hs: seq<Holder>, t: int)
  requires exists h :: h in hs && End(h) <= t
  ensures |After(hs, t)| < |hs|
{
  var n := |hs| - 1;
  if End(hs[n]) > t {
    assert exists h :: h in hs[..n] && End(h) <= t;
    Shorter(hs[..n], t);
  }
}

function method Seat(hs: seq<Holder>, k: int): int
  decreases |hs|
  ensures Seat(hs, k) >= k
{
  var i := FindSeat(hs, k); if i < 0 then k else Seat(hs[..i] + hs[i+1..], k + 1)
}
function method FindSeat(hs: seq<Holder>, k: int): int
  ensures -1 <= FindSeat(hs, k) < |hs|
  ensures FindSeat(hs, k) >= 0 ==> hs[FindSeat(hs, k)].seat == k
  ensures FindSeat(hs, k) < 0 ==> forall i :: 0 <= i < |hs| ==> hs[i].seat != k
{
  if hs == [] then -1 else if hs[0].seat == k then 0 else
    var i := FindSeat(hs[1..], k); if i < 0 then -1 else i + 1
}

function method Remember(e: seq<Mark>, b: Book, m: Mark): seq<Mark> {
  (if b.marks >= 1 && |e| >= b.marks then e[|e|-b.marks+1..] else e) + [m]
}
// Lapses reports whether a lease that has ended leaves no mark.
function method Lapses(h: Holder): bool { h.handed && !h.revoked }
function method Sweep(hs: seq<Holder>, e: seq<Mark>, b: Book, c: Clock): seq<Mark> {
  if hs == [] then e else
    var n := |hs| - 1;
    var h := hs[n];
    Sweep(hs[..n], if Live(c, h) || Lapses(h) then e else Remember(e, b, Mark(h.owner, h.fence, if h.revoked then Revoked else Expired)), b, c)
}

// Lease is what a grant adds.
function method Lease(s: State, c: Clock, o: int, most: int, ttl: int, text: int, handed: bool): Holder {
  Holder(o, Max(s.last + 1, c.fences), Seat(After(s.holders, c.early), 0), most, c.late, ttl, text, handed, false, false)
}
function method Grant(s: State, b: Book, c: Clock, h: Holder): State {
  var p := Place(s.queue, h.owner);
  State(h.fence, After(s.holders, c.early) + [h], if p >= 0 then s.queue[p+1..] else [], Sweep(s.holders, s.ended, b, c), Open)
}
function method HandOverTo(t: Step, b: Book, c: Clock): Step
  requires t.s.queue != []
{
  var w := t.s.queue[0];
  var i := Find(t.s.holders, w.owner);
  var s := if i >= 0 && Live(c, t.s.holders[i]) then t.s.(queue := t.s.queue[1..]) else
    Grant(t.s, b, c, Lease(t.s, c, w.owner, w.max, Turn(w), 0, true));
  if w.parked > 0 then Step(s, t.handed, t.wake + [w.owner]) else Step(s, t.handed + [w.owner], t.wake)
}
function method HandOver(t: Step, b: Book, c: Clock): Step
  decreases |t.s.queue|
{
  if t.s.queue == [] || InDoubt(t.s, c) || !MayHave(t.s, c, t.s.queue[0].max, 0) then t else
    HandOver(HandOverTo(t, b, c), b, c)
}
function method Unplace(q: seq<Waiter>, o: int): seq<Waiter> { var p := Place(q, o); if p < 0 then q else q[..p] + q[p+1..] }
function method SetLive(s: State, i: int, h: Holder): State
  requires 0 <= i < |s.holders|
{
  s.(holders := s.holders[..i] + [h] + s.holders[i+1..], queue := Unplace(s.queue, h.owner))
}
function method Ends(s: State, b: Book, i: int, how: How): State
  requires 0 <= i < |s.holders|
{
  var h := s.holders[i];
  s.(holders := s.holders[..i] + s.holders[i+1..], queue := Unplace(s.queue, h.owner), ended := Remember(s.ended, b, Mark(h.owner, h.fence, how)))
}

// The requests.
function method Says(o: Outcome): Answer { Answer(o, 0, 0, 0, 0, false) }
function method Same(s: State, o: Outcome): Decision { Decision(Step(s, [], []), Says(o)) }
function method GrantedTo(h: Holder, c: Clock, most: int): Answer { Answer(Granted, h.fence, h.seat, Min(most, End(h) - c.late), 0, false) }
function method Freed(s: State, b: Book, c: Clock, o: Outcome): Decision { Decision(HandOver(Step(s, [], []), b, c), Says(o)) }
function method ParkedIn(q: seq<Waiter>): int { if q == [] then 0 else (if q[0].parked > 0 then 1 else 0) + ParkedIn(q[1..]) }

// IsCovered reports whether a run of the same work waits that has not begun, and none for the same event.
predicate method IsCovered(s: State, r: Request) {
  r.work != 0 && Place(s.queue, r.owner) < 0 && !Waits(s.queue, r) &&
  exists i :: 0 <= i < |s.queue| && s.queue[i].work == r.work && s.queue[i].event != r.event && Find(s.holders, s.queue[i].owner) < 0
}
// Waits reports whether the event has a place. It is recursive, because with a second quantifier the prover finds no end in AcquireNewIsRight.
predicate method Waits(q: seq<Waiter>, r: Request) { q != [] && ((q[0].work == r.work && q[0].event == r.event) || Waits(q[1..], r)) }
function method AcquireNew(s: State, b: Book, c: Clock, r: Request): Decision {
  var p := Place(s.queue, r.owner);
  var before := if p >= 0 then s.queue[..p] else s.queue;
  if r.fence != 0 then Same(s, Lost)
  else if IsClosed(s, c) || InDoubt(s, c) then Same(s, Refused)
  else if MayHave(s, c, Smallest(r.max, before), Delay(before)) then
    var h := Lease(s, c, r.owner, r.max, r.ttl, r.text, false);
    Decision(HandOver(Step(Grant(s, b, c, h), [], []), b, c), GrantedTo(h, c, r.ttl))
  else
    var covered := IsCovered(s, r);
    var joins := r.join && !covered && p < 0 && |s.queue| < b.places && !(r.parked > 0 && ParkedIn(s.queue) >= b.places / 2);
    var q := if joins then s.queue + [Waiter(r.owner, r.max, r.parked, r.work, r.event)] else s.queue;
    Decision(Step(s.(queue := q), [], []), Answer(Refused, 0, 0, 0, Place(q, r.owner) + 1, covered))
}
function method DoAcquire(s: State, b: Book, c: Clock, r: Request): Decision {
  var i := Find(s.holders, r.owner);
  if FindMark(s.ended, r.owner) >= 0 then Same(s, Lost)
  else if i < 0 then AcquireNew(s, b, c, r)
  else
    var h := s.holders[i];
    if h.revoked || (r.fence != 0 && r.fence != h.fence) then Same(s, Lost)
    else if Live(c, h) && h.handed then
      var n := h.(handed := false, since := c.late, ttl := Max(r.ttl, h.ttl), text := r.text);
      Decision(Step(SetLive(s, i, n), [], []), GrantedTo(n, c, r.ttl))
    else if Live(c, h) then Decision(Step(s, [], []), GrantedTo(h, c, r.ttl))
    else if !h.handed then Same(s, Lost)
    else AcquireNew(s, b, c, r)
}
function method DoRelease(s: State, b: Book, c: Clock, r: Request): Decision {
  var m := FindMark(s.ended, r.owner);
  var i := Find(s.holders, r.owner);
  if m >= 0 then Same(s, if s.ended[m].how.Expired? || s.ended[m].how.Revoked? then Lost else Done)
  else if i < 0 || s.holders[i].fence != r.fence then Same(s, Lost)
  else if !s.holders[i].revoked then Freed(Ends(s, b, i, Released), b, c, Done)
  else if s.holders[i].started then Same(s, Lost)
  else Freed(Ends(s, b, i, Revoked), b, c, Lost)
}
// Own is the index of the lease that the request names.
function method Own(s: State, r: Request): int {
  var i := Find(s.holders, r.owner);
  if i >= 0 && (s.holders[i].fence != r.fence || s.holders[i].revoked) then -1 else i
}
function method DoRenew(s: State, c: Clock, r: Request): Decision {
  var i := Own(s, r);
  if i < 0 || !Live(c, s.holders[i]) then Same(s, Lost) else
    var h := s.holders[i];
    var n := h.(since := c.late, ttl := Max(h.ttl, r.ttl), handed := false);
    Decision(Step(SetLive(s, i, n), [], []), GrantedTo(n, c, n.ttl))
}
function method DoAbandon(s: State, b: Book, c: Clock, r: Request): Decision {
  var i := Find(s.holders, r.owner);
  var p := Place(s.queue, r.owner);
  if FindMark(s.ended, r.owner) >= 0 || (i >= 0 && s.holders[i].revoked && s.holders[i].started) then Same(s, Done)
  else if i >= 0 then Freed(Ends(s, b, i, Released), b, c, Done)
  else
    var n := s.(ended := Remember(s.ended, b, Mark(r.owner, 0, Released)), queue := Unplace(s.queue, r.owner));
    if p == 0 then Freed(n, b, c, Done) else Same(n, Done)
}
function method DoLeave(s: State, b: Book, c: Clock, r: Request): Decision {
  var i := Find(s.holders, r.owner);
  var p := Place(s.queue, r.owner);
  if i >= 0 && !s.holders[i].revoked && Live(c, s.holders[i]) then Decision(Step(s, [], []), Answer(Holding, s.holders[i].fence, 0, 0, 0, false))
  else if p < 0 then Same(s, Done)
  else
    var n := s.(queue := Unplace(s.queue, r.owner));
    if p == 0 then Freed(n, b, c, Done) else Same(n, Done)
}
function method DoMarkStarted(s: State, c: Clock, r: Request): Decision {
  var i := Own(s, r);
  if i < 0 || !Live(c, s.holders[i]) then Same(s, Lost)
  else if s.holders[i].max != 1 then Same(s, Exclusive)
  else Same(SetLive(s, i, s.holders[i].(started := true)), Done)
}
function method ParkedOwners(q: seq<Waiter>): seq<int> { if q == [] then [] else (if q[0].parked > 0 then [q[0].owner] else []) + ParkedOwners(q[1..]) }
function method Close(s: State, b: Book, c: Clock, r: Request, i: int, how: How): Decision
  requires 0 <= i < |s.holders|
{
  var n := Ends(s, b, i, how);
  Decision(Step(n.(closed := Closed(c.late, r.ttl, r.result, s.holders[i].text), queue := []), [], ParkedOwners(n.queue)), Says(Done))
}
function method DoComplete(s: State, b: Book, c: Clock, r: Request): Decision {
  var m := FindMark(s.ended, r.owner);
  var i := Own(s, r);
  if m >= 0 && s.ended[m].how.Completed? then Same(s, Done)
  else if i < 0 then Same(s, Lost)
  else if s.holders[i].max != 1 then Same(s, Exclusive)
  else Close(s, b, c, r, i, Completed)
}
predicate method MarkOf(e: seq<Mark>, f: int, how: How) { exists i :: 0 <= i < |e| && e[i].fence == f && e[i].how == how }
function method DoResolve(s: State, b: Book, c: Clock, r: Request): Decision {
  var completed := IsClosed(s, c) && s.last == r.fence;
  var i := FindFence(s.holders, r.fence);
  if !r.effect && !completed && (MarkOf(s.ended, r.fence, Resolved) || MarkOf(s.ended, r.fence, Released)) then Same(s, Done)
  else if After(s.holders, c.early) != [] then Same(s, Refused)
  else if s.holders == [] && s.last == r.fence && completed == r.effect then Same(s, Done)
  else if i < 0 || !s.holders[i].started then Same(s, Lost)
  else if r.effect then Close(s, b, c, r, i, Released)
  else Freed(Ends(s, b, i, Resolved), b, c, Done)
}
function method DoRevoke(s: State, b: Book, c: Clock, r: Request): Decision {
  var i := FindFence(s.holders, r.fence);
  if r.atOnce && MarkOf(s.ended, r.fence, Revoked) then Same(s, Done)
  else if i < 0 || !Live(c, s.holders[i]) then Same(s, Lost)
  else if r.atOnce && s.holders[i].started then Same(s, Refused)
  else
    var h := s.holders[i];
    var n := if h.revoked then s else SetLive(s, i, h.(revoked := true, handed := false, text := r.text));
    if r.atOnce then Freed(Ends(n, b, i, Revoked), b, c, Done) else Same(n, Done)
}
function method Decide(before: State, b: Book, c: Clock, r: Request): Decision {
  var s := BeginNow(before, c);
  match r.kind
  case Acquire => DoAcquire(s, b, c, r)
  case Renew => DoRenew(s, c, r)
  case Release => DoRelease(s, b, c, r)
  case Abandon => DoAbandon(s, b, c, r)
  case Leave => DoLeave(s, b, c, r)
  case MarkStarted => DoMarkStarted(s, c, r)
  case Complete => DoComplete(s, b, c, r)
  case Resolve => DoResolve(s, b, c, r)
  case Revoke => DoRevoke(s, b, c, r)
}
}
