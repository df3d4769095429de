include "rules.dfy"

// What is true of every step of the model, for any number of holders, places and marks, by induction over the lists. Theorem, below, says it by the
// time before the step; DecideIsRight says the same and more by the readings of the clock, and so also of a guess.
// InTurn is about the queue, and HandedOn about hand-over. What a step may do is said by the predicates from OneNumber to Right.
//
// It is assumed that numbers are above 0, as a store's are (Sane, Asked), and that an owner asks with one number always (OneNumber).
module Proof {
import opened Rules

// What is left of the leases after a time has the order that they had.
lemma AfterKeeps(hs: seq<Holder>, last: int, t: int)
  requires Leases(hs, last)
  ensures Leases(After(hs, t), last)
{
  if hs != [] {
    var n := |hs| - 1;
    AfterKeeps(hs[..n], last, t);
    var a := After(hs[..n], t);
    forall i | 0 <= i < |a| ensures a[i].fence < hs[n].fence && a[i].owner != hs[n].owner && a[i].seat != hs[n].seat {
      assert a[i] in hs[..n];
    }
  }
}

lemma RoomIsRoom(hs: seq<Holder>, most: int, since: Since)
  requires most >= 1
  ensures Room(hs, most, since) == since || Room(hs, most, since).At?
  decreases |hs|
  ensures var r := Room(hs, most, since); (r == since && (hs == [] || Fits(hs, most))) || (r.At? && (After(hs, r.t) == [] || Fits(After(hs, r.t), most)))
{
  if hs == [] || Fits(hs, most) {} else {
    var e := FirstEnd(hs); Shorter(hs, e);
    var a := After(hs, e);
    RoomIsRoom(a, most, At(e));
    var r := Room(a, most, At(e));
    assert r.At?;
    RoomLater(a, most, e);
    if !(r == At(e) && (a == [] || Fits(a, most))) {
      AfterAfter(hs, e, r.t);
    }
  }
}
lemma RoomLater(hs: seq<Holder>, most: int, t: int)
  requires forall h :: h in hs ==> End(h) > t
  ensures Room(hs, most, At(t)).At? && Room(hs, most, At(t)).t >= t
  decreases |hs|
{
  if hs == [] || Fits(hs, most) {} else {
    var e := FirstEnd(hs); Shorter(hs, e);
    RoomLater(After(hs, e), most, e);
  }
}
lemma AfterAfter(hs: seq<Holder>, t: int, u: int)
  requires t <= u
  ensures After(After(hs, t), u) == After(hs, u)
{
  if hs != [] {
    var n := |hs| - 1;
    AfterAfter(hs[..n], t, u);
    if End(hs[n]) > t { assert (After(hs[..n], t) + [hs[n]])[..|After(hs[..n], t)|] == After(hs[..n], t); }
  }
}
lemma AfterAll(hs: seq<Holder>, t: int)
  requires forall h :: h in hs ==> End(h) > t
  ensures After(hs, t) == hs
{
  if hs != [] { AfterAll(hs[..|hs|-1], t); assert hs[..|hs|-1] + [hs[|hs|-1]] == hs; }
}
lemma NoRoomBefore(hs: seq<Holder>, most: int, since: Since, t: int)
  requires Room(hs, most, since).At? && Room(hs, most, since).t > t && (since.At? ==> since.t <= t)
  ensures !Fits(After(hs, t), most)
  decreases |hs|
{
  var e := FirstEnd(hs); Shorter(hs, e);
  if t < e { AfterAll(hs, t); } else { NoRoomBefore(After(hs, e), most, At(e), t); AfterAfter(hs, e, t); }
}
// There is room since a time if those who hold after it leave room.
lemma MayFits(s: State, c: Clock, most: int, delay: int)
  requires most >= 1 && delay >= 0
  ensures MayHave(s, c, most, delay) ==> Fits(After(s.holders, c.early - delay), most) && Fits(After(s.holders, c.early), most)
  ensures s.closed.Open? && Fits(After(s.holders, c.early - delay), most) ==> MayHave(s, c, most, delay)
{
  var t := c.early - delay;
  var r := Room(s.holders, most, Always);
  RoomIsRoom(s.holders, most, Always);
  if MayHave(s, c, most, delay) {
    if r.Always? {
      FitsLess(s.holders, After(s.holders, t), most);
      FitsLess(s.holders, After(s.holders, c.early), most);
    } else {
      AfterAfter(s.holders, r.t, t);
      AfterAfter(s.holders, r.t, c.early);
      FitsLess(After(s.holders, r.t), After(s.holders, t), most);
      FitsLess(After(s.holders, r.t), After(s.holders, c.early), most);
    }
  } else if s.closed.Open? { NoRoomBefore(s.holders, most, Always, t); }
}
lemma FitsLess(hs: seq<Holder>, a: seq<Holder>, most: int)
  requires most >= 1 && (hs == [] || Fits(hs, most)) && |a| <= |hs| && forall h :: h in a ==> h in hs
  ensures Fits(a, most)
{
  forall i | 0 <= i < |a| ensures |a| < a[i].max { assert a[i] in hs; }
}
lemma SmallestFits(hs: seq<Holder>, most: int, q: seq<Waiter>)
  requires Fits(hs, Smallest(most, q))
  ensures Fits(hs, most)
{}
lemma SmallestPositive(most: int, q: seq<Waiter>)
  requires most >= 1 && forall i :: 0 <= i < |q| ==> q[i].max >= 1
  ensures Smallest(most, q) >= 1
  decreases |q|
{ if q != [] { SmallestPositive(Min(most, q[0].max), q[1..]); } }

lemma SeatIsFree(hs: seq<Holder>, k: int)
  ensures forall h :: h in hs ==> h.seat != Seat(hs, k)
  decreases |hs|
{
  var i := FindSeat(hs, k);
  if i >= 0 {
    var rest := hs[..i] + hs[i+1..];
    SeatIsFree(rest, k + 1);
    forall h | h in hs ensures h.seat != Seat(hs, k) {
      var j :| 0 <= j < |hs| && hs[j] == h;
      if j < i { assert rest[j] == h; } else if j > i { assert rest[j-1] == h; }
    }
  }
}

// The marks that a grant leaves: the old ones, and those of leases that have ended and do not lapse.
predicate Sources(m: Mark, e: seq<Mark>, hs: seq<Holder>, c: Clock) {
  m in e || exists h :: h in hs && !Live(c, h) && !Lapses(h) && m.owner == h.owner && m.fence == h.fence
}
lemma SweepKeeps(hs: seq<Holder>, e: seq<Mark>, b: Book, c: Clock, last: int)
  requires Leases(hs, last) && Marks(e, last)
  requires forall i, j :: 0 <= i < |e| && 0 <= j < |hs| ==> e[i].owner != hs[j].owner
  ensures Marks(Sweep(hs, e, b, c), last)
  ensures forall m :: m in Sweep(hs, e, b, c) ==> Sources(m, e, hs, c)
{
  if hs != [] {
    var n := |hs| - 1;
    var h := hs[n];
    var f := if Live(c, h) || Lapses(h) then e else Remember(e, b, Mark(h.owner, h.fence, if h.revoked then Revoked else Expired));
    assert forall m :: m in f ==> m in e || (m.owner == h.owner && m.fence == h.fence && !Live(c, h) && !Lapses(h));
    forall i, j | 0 <= i < |f| && 0 <= j < |hs[..n]| ensures f[i].owner != hs[..n][j].owner {
      assert f[i] in f;
    }
    SweepKeeps(hs[..n], f, b, c, last);
    forall m | m in Sweep(hs, e, b, c) ensures Sources(m, e, hs, c) {
      assert Sources(m, f, hs[..n], c);
      if m in f { assert h in hs; } else {
        var g :| g in hs[..n] && !Live(c, g) && !Lapses(g) && m.owner == g.owner && m.fence == g.fence;
        assert g in hs;
      }
    }
  }
}


// A grant keeps the invariant but for the room of the first in the queue, which handOver then looks at.
lemma GrantKeeps(s: State, b: Book, c: Clock, o: int, most: int, ttl: int, text: int, handed: bool)
  requires Most(s) && most >= 1 && Fits(After(s.holders, c.early), most)
  requires FindMark(s.ended, o) < 0
  requires forall i :: 0 <= i < |s.holders| && s.holders[i].owner == o ==> !Live(c, s.holders[i]) && Lapses(s.holders[i])
  ensures Most(Grant(s, b, c, Lease(s, c, o, most, ttl, text, handed)))
{
  var h := Lease(s, c, o, most, ttl, text, handed);
  var n := Grant(s, b, c, h);
  var a := After(s.holders, c.early);
  AfterKeeps(s.holders, s.last, c.early);
  SeatIsFree(a, 0);
  forall i | 0 <= i < |a| ensures a[i].owner != o && a[i].seat != h.seat && a[i] in s.holders && Live(c, a[i]) { assert a[i] in a; assert a[i] in s.holders; }
  assert Leases(n.holders, n.last);
  assert Allowed(n.holders) by {
    forall i | 0 <= i < |n.holders| ensures |n.holders| <= n.holders[i].max && (n.holders[i].started ==> n.holders[i].max == 1) {
      if i < |a| { assert n.holders[i] == a[i]; assert a[i] in s.holders; }
    }
  }
  var p := Place(s.queue, o);
  assert Places(n.queue);
  forall j | 0 <= j < |n.queue| ensures n.queue[j].owner != o && n.queue[j] in s.queue {
    assert n.queue[j] == s.queue[p+1+j];
  }
  assert Apart(n.holders, n.queue) by {
    forall i, j | 0 <= i < |n.holders| && 0 <= j < |n.queue| && n.holders[i].owner == n.queue[j].owner
      ensures n.holders[i].handed && !n.holders[i].revoked && n.holders[i].max == n.queue[j].max {
      if i < |a| { assert a[i] in s.holders; assert n.queue[j] in s.queue; }
    }
  }
  SweepKeeps(s.holders, s.ended, b, c, s.last);
  forall i | 0 <= i < |n.ended|
    ensures forall j :: 0 <= j < |n.holders| ==> n.ended[i].owner != n.holders[j].owner
    ensures forall j :: 0 <= j < |n.queue| ==> n.ended[i].owner != n.queue[j].owner
  {
    var m := n.ended[i];
    assert Sources(m, s.ended, s.holders, c);
    if m in s.ended {
      forall j | 0 <= j < |n.holders| ensures m.owner != n.holders[j].owner { if j < |a| { assert a[j] in s.holders; } }
      forall j | 0 <= j < |n.queue| ensures m.owner != n.queue[j].owner { assert n.queue[j] in s.queue; }
    } else {
      var g :| g in s.holders && !Live(c, g) && !Lapses(g) && m.owner == g.owner && m.fence == g.fence;
      forall j | 0 <= j < |n.holders| ensures m.owner != n.holders[j].owner { if j < |a| { assert a[j] in s.holders; } }
      forall j | 0 <= j < |n.queue| ensures m.owner != n.queue[j].owner { assert n.queue[j] in s.queue; }
    }
  }
}

// What a grant, and so a hand-over, leaves as it was, and what it adds.
predicate Moves(a: State, z: State, c: Clock) {
  a.last <= z.last &&
  (forall h :: h in a.holders && (Live(c, h) || z.last == a.last) ==> h in z.holders) &&
  (forall w :: w in z.queue ==> w in a.queue) &&
  (z.last == a.last ==> z.closed == a.closed) &&
  Granted1(a, z)
}
// Granted1: the lease of the last grant is there.
predicate Granted1(a: State, z: State) { z.last != a.last ==> exists n :: n in z.holders && n.fence == z.last }
// HandedTo is a new lease of somebody who waited.
predicate HandedTo(a: State, n: Holder, c: Clock) {
  n.fence > a.last && n.since == c.late && !n.revoked && !n.started && n.handed && exists w :: w in a.queue && n.owner == w.owner && n.max == w.max && n.ttl == Turn(w)
}

lemma FirstMayGet(s: State, c: Clock)
  requires Most(s) && s.queue != []
  ensures FindMark(s.ended, s.queue[0].owner) < 0
  ensures var i := Find(s.holders, s.queue[0].owner); i >= 0 && Live(c, s.holders[i]) || forall i :: 0 <= i < |s.holders| && s.holders[i].owner == s.queue[0].owner ==> !Live(c, s.holders[i]) && Lapses(s.holders[i])
{
  var i := Find(s.holders, s.queue[0].owner);
  if i >= 0 && !Live(c, s.holders[i]) {
    forall j | 0 <= j < |s.holders| && s.holders[j].owner == s.queue[0].owner ensures j == i {}
  }
}

// HandsOver is what a hand-over does, to one and to several.
predicate HandsOver(a: State, z: State, c: Clock) {
  Moves(a, z, c) && forall n :: n in z.holders ==> n in a.holders || HandedTo(a, n, c)
}
lemma HandsOverTwice(a: State, m: State, z: State, c: Clock)
  requires HandsOver(a, m, c) && HandsOver(m, z, c)
  ensures HandsOver(a, z, c)
{
  forall n | n in z.holders ensures n in a.holders || HandedTo(a, n, c) {
    if n !in m.holders { assert HandedTo(m, n, c); }
  }
}
lemma PopKeeps(s: State)
  requires Most(s) && Sane(s) && s.queue != []
  ensures Most(s.(queue := s.queue[1..])) && Sane(s.(queue := s.queue[1..]))
{
  var q := s.queue[1..];
  assert forall j :: 0 <= j < |q| ==> q[j] == s.queue[j + 1];
}
lemma HandOverToKeeps(t: Step, b: Book, c: Clock)
  requires Most(t.s) && Sane(t.s) && t.s.queue != [] && MayHave(t.s, c, t.s.queue[0].max, 0)
  ensures var u := HandOverTo(t, b, c).s; Most(u) && Sane(u) && HandsOver(t.s, u, c) && |u.queue| < |t.s.queue|
{
  var s := t.s;
  var w := s.queue[0];
  var i := Find(s.holders, w.owner);
  FirstMayGet(s, c);
  MayFits(s, c, w.max, 0);
  var u := HandOverTo(t, b, c).s;
  if i >= 0 && Live(c, s.holders[i]) {
    PopKeeps(s);
    assert u == s.(queue := s.queue[1..]);
  } else {
    GrantKeeps(s, b, c, w.owner, w.max, Turn(w), 0, true);
    assert u == Grant(s, b, c, Lease(s, c, w.owner, w.max, Turn(w), 0, true));
    assert u.holders[|u.holders|-1].fence == u.last;
  }
}
// NobodyIsForgotten: there is no room for the first in the queue.
predicate NobodyIsForgotten(s: State, c: Clock) {
  s.queue != [] && !InDoubt(s, c) ==> !Fits(After(s.holders, c.early), s.queue[0].max)
}
lemma HandOverKeeps(t: Step, b: Book, c: Clock)
  requires Most(t.s) && Sane(t.s)
  ensures var z := HandOver(t, b, c).s; Inv(z) && Sane(z) && HandsOver(t.s, z, c)
  ensures HandOver(t, b, c).s.last != t.s.last ==> !InDoubt(t.s, c)
  ensures t.s.closed.Closed? ==> HandOver(t, b, c) == t
  ensures NobodyIsForgotten(HandOver(t, b, c).s, c)
  decreases |t.s.queue|
{
  if t.s.queue == [] {
  } else if InDoubt(t.s, c) {
    assert |t.s.holders| == 1;
  } else if MayHave(t.s, c, t.s.queue[0].max, 0) {
    var u := HandOverTo(t, b, c);
    HandOverToKeeps(t, b, c);
    HandOverKeeps(u, b, c);
    HandsOverTwice(t.s, u.s, HandOver(u, b, c).s, c);
  } else {
    MayFits(t.s, c, t.s.queue[0].max, 0);
  }
}

lemma BeginKeeps(s: State, c: Clock)
  requires Inv(s) && Sane(s)
  ensures Inv(BeginNow(s, c)) && Sane(BeginNow(s, c))
{}

lemma EndsKeeps(s: State, b: Book, i: int, how: How)
  requires Most(s) && Sane(s) && 0 <= i < |s.holders|
  ensures Most(Ends(s, b, i, how)) && Sane(Ends(s, b, i, how))
{
  var n := Ends(s, b, i, how);
  assert forall j :: 0 <= j < |n.holders| ==> n.holders[j] == s.holders[if j < i then j else j + 1];
  UnplaceKeeps(s, s.holders[i].owner);
  assert Leases(n.holders, n.last);
  assert Allowed(n.holders);
  assert Apart(n.holders, n.queue);
  assert Marks(n.ended, n.last);
  assert Gone(n.ended, n.holders, n.queue);
}
lemma UnplaceKeeps(s: State, o: int)
  requires Most(s)
  ensures Most(s.(queue := Unplace(s.queue, o)))
  ensures forall w :: w in Unplace(s.queue, o) ==> w in s.queue && w.owner != o
{
  var p := Place(s.queue, o);
  if p >= 0 {
    var q := Unplace(s.queue, o);
    assert forall j :: 0 <= j < |q| ==> q[j] == s.queue[if j < p then j else j + 1];
  }
}
lemma SetLiveKeeps(s: State, i: int, h: Holder)
  requires Inv(s) && Sane(s) && 0 <= i < |s.holders|
  requires var o := s.holders[i]; h.owner == o.owner && h.fence == o.fence && h.seat == o.seat && h.max == o.max && (h.started ==> h.max == 1)
  ensures Inv(SetLive(s, i, h)) && Sane(SetLive(s, i, h))
{
  UnplaceKeeps(s, h.owner);
  var n := SetLive(s, i, h);
  assert Leases(n.holders, n.last);
  assert Allowed(n.holders);
  assert Apart(n.holders, n.queue) by {
    forall j, k | 0 <= j < |n.holders| && 0 <= k < |n.queue| && n.holders[j].owner == n.queue[k].owner
      ensures n.holders[j].handed && !n.holders[j].revoked && n.holders[j].max == n.queue[k].max {
        assert n.queue[k] in s.queue;
        assert j != i;
    }
  }
  assert Gone(n.ended, n.holders, n.queue);
  if n.queue != [] {
    assert n.queue[0] in s.queue;
    var p := Place(s.queue, h.owner);
    if p == 0 { assert s.holders[i].owner == s.queue[0].owner; assert s.holders[i].max == s.queue[0].max; }
    else { assert n.queue[0] == s.queue[0]; }
    if Fits(n.holders, n.queue[0].max) {
      forall j | 0 <= j < |s.holders| ensures |s.holders| < s.holders[j].max { assert n.holders[j].max == s.holders[j].max; }
      assert Fits(s.holders, s.queue[0].max);
    }
  }
}

// An owner asks with one number always.
predicate OneNumber(s: State, r: Request) {
  (forall h :: h in s.holders && h.owner == r.owner ==> h.max == r.max) && (forall w :: w in s.queue && w.owner == r.owner ==> w.max == r.max)
}
predicate Asked(s: State, b: Book, c: Clock, r: Request) {
  c.early <= c.late && b.marks >= 1 && (r.kind.Acquire? ==> r.ttl > 0 && r.max >= 1 && OneNumber(s, r)) &&
  (r.kind.Complete? || (r.kind.Resolve? && r.effect) ==> r.ttl > 0)
}
// Begun: no lease begins after the latest time that it may be now. So it is after BeginNow, and by a guess that says that it is late.
predicate Begun(s: State, c: Clock) { forall h :: h in s.holders ==> h.since <= c.late }
// What one step may do. Stays: a lease is what it was, or its owner or an operator has changed it.
predicate Stays(h: Holder, n: Holder, c: Clock, r: Request) {
  n.fence == h.fence && n.owner == h.owner && n.seat == h.seat && n.max == h.max && End(n) >= End(h) &&
  n.ttl >= h.ttl && n.since <= Max(h.since, c.late) &&
  (n.since != h.since || n.ttl != h.ttl || (h.handed && !n.handed && !n.revoked) ==> Live(c, h) && !h.revoked && r.owner == h.owner && (r.kind.Renew? || r.kind.Acquire?)) &&
  (n.started != h.started ==> n.started && Live(c, h) && r.kind.MarkStarted? && r.owner == h.owner && r.fence == h.fence && !h.revoked) &&
  (n.revoked != h.revoked ==> n.revoked && r.kind.Revoke? && r.fence == h.fence)
}
// Ended: who ends a lease.
predicate EndedBy(h: Holder, c: Clock, r: Request) {
  match r.kind
  case Acquire => false
  case Renew => false
  case Leave => false
  case MarkStarted => false
  case Abandon => r.owner == h.owner && !(h.revoked && h.started)
  case Release => r.owner == h.owner && r.fence == h.fence && !(h.revoked && h.started)
  case Complete => r.owner == h.owner && r.fence == h.fence && !h.revoked && h.max == 1
  case Resolve => r.fence == h.fence && h.started && !Live(c, h)
  case Revoke => r.fence == h.fence && r.atOnce && !h.started
}
predicate Asks(s: State, n: Holder, c: Clock, r: Request) {
  r.kind.Acquire? && r.fence == 0 && n == Holder(r.owner, n.fence, n.seat, r.max, c.late, r.ttl, r.text, false, false, false) && n.fence > s.last && FindMark(s.ended, r.owner) < 0
}
predicate Leases1(s: State, z: State, c: Clock, r: Request) {
  forall h :: h in s.holders ==> (exists n :: n in z.holders && Stays(h, n, c, r)) || EndedBy(h, c, r) || (!Live(c, h) && !h.started && z.last > s.last)
}
predicate Leases2(s: State, z: State, c: Clock, r: Request) {
  forall n :: n in z.holders ==> (exists h :: h in s.holders && Stays(h, n, c, r)) || HandedTo(s, n, c) || Asks(s, n, c, r)
}
predicate NoDoubt(s: State, z: State, c: Clock, r: Request) {
  Granted1(s, z) && (z.last != s.last ==> !IsClosed(s, c) && forall h :: h in s.holders && h.started && !Live(c, h) ==> EndedBy(h, c, r))
}
// An answer with a lease: the owner has it, and trust in the answer ends with it at the latest.
predicate Told(z: State, c: Clock, r: Request, a: Answer) {
  a.outcome.Granted? ==> exists h :: h in z.holders && h.owner == r.owner && h.fence == a.fence && h.seat == a.seat && !h.revoked && c.late + a.ttl <= End(h)
}
predicate Right(s: State, d: Decision, c: Clock, r: Request) {
  var z := d.to.s;
  Inv(z) && Sane(z) && s.last <= z.last && Leases1(s, z, c, r) && Leases2(s, z, c, r) && NoDoubt(s, z, c, r) && Told(z, c, r, d.a)
}

lemma SameIsRight(s: State, d: Decision, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && Inv(d.to.s) && Sane(d.to.s) && s.last == d.to.s.last && s.holders == d.to.s.holders && Told(s, c, r, d.a)
  ensures Right(s, d, c, r)
{
  forall h | h in s.holders ensures Stays(h, h, c, r) {}
}

lemma FreedIsRight(s: State, b: Book, c: Clock, r: Request, i: int, how: How, o: Outcome)
  requires Inv(s) && Sane(s) && 0 <= i < |s.holders| && !o.Granted? && EndedBy(s.holders[i], c, r)
  ensures Right(s, Freed(Ends(s, b, i, how), b, c, o), c, r)
{
  var n := Ends(s, b, i, how);
  var f := s.holders[i].fence;
  EndsKeeps(s, b, i, how);
  HandOverKeeps(Step(n, [], []), b, c);
  var z := HandOver(Step(n, [], []), b, c).s;
  forall h | h in s.holders ensures Stays(h, h, c, r) && (h.fence != f ==> h in n.holders) && (h.fence == f ==> h == s.holders[i]) {
    var j :| 0 <= j < |s.holders| && s.holders[j] == h;
    if j != i { assert n.holders[if j < i then j else j - 1] == h; }
  }
  assert forall h :: h in n.holders ==> h in s.holders;
  UnplaceKeeps(s, s.holders[i].owner);
  forall h | h in z.holders ensures h in s.holders || HandedTo(s, h, c) {
    if h !in n.holders { assert HandedTo(n, h, c); }
  }
  if z.last != s.last {
    assert !InDoubt(n, c);
    forall h | h in s.holders && h.started && !Live(c, h) ensures h.fence == f { }
  }
}

lemma AcquireNewIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && Asked(s, b, c, r) && r.kind.Acquire?
  requires FindMark(s.ended, r.owner) < 0
  requires forall i :: 0 <= i < |s.holders| && s.holders[i].owner == r.owner ==> !Live(c, s.holders[i]) && Lapses(s.holders[i])
  ensures Right(s, AcquireNew(s, b, c, r), c, r)
{
  var d := AcquireNew(s, b, c, r);
  var p := Place(s.queue, r.owner);
  var before := if p >= 0 then s.queue[..p] else s.queue;
  if r.fence != 0 {
    SameIsRight(s, d, c, r);
  } else if IsClosed(s, c) || InDoubt(s, c) {
    SameIsRight(s, d, c, r);
  } else if MayHave(s, c, Smallest(r.max, before), Delay(before)) {
    SmallestPositive(r.max, before);
    MayFits(s, c, Smallest(r.max, before), Delay(before));
    SmallestFits(After(s.holders, c.early), r.max, before);
    GrantKeeps(s, b, c, r.owner, r.max, r.ttl, r.text, false);
    var h := Lease(s, c, r.owner, r.max, r.ttl, r.text, false);
    var g := Grant(s, b, c, h);
    assert Sane(g);
    HandOverKeeps(Step(g, [], []), b, c);
    var z := d.to.s;
    assert z == HandOver(Step(g, [], []), b, c).s;
    assert h in g.holders && Live(c, h);
    assert h in z.holders;
    assert Moves(g, z, c) && Granted1(s, z);
    forall h | h in s.holders ensures Stays(h, h, c, r) {}
    forall n | n in z.holders ensures n in s.holders || HandedTo(s, n, c) || Asks(s, n, c, r) {
      if n in g.holders { if n !in s.holders { assert n == h; } } else { assert HandedTo(g, n, c); }
    }
    forall o | o in s.holders && !(o in z.holders) ensures !Live(c, o) && !o.started {}
  } else {
    var joins := r.join && !IsCovered(s, r) && p < 0 && |s.queue| < b.places && !(r.parked > 0 && ParkedIn(s.queue) >= b.places / 2);
    if joins {
      assert before == s.queue;
      var z := d.to.s;
      assert Places(z.queue);
      if s.queue == [] {
        assert Delay(before) == 0 && Smallest(r.max, before) == r.max;
        assert !s.closed.Closed?;
        assert !Fits(s.holders, r.max);
      } else { assert !s.closed.Closed?; assert z.queue[0] == s.queue[0]; }
      assert Apart(z.holders, z.queue);
      assert Gone(z.ended, z.holders, z.queue);
    }
    SameIsRight(s, d, c, r);
  }
}
lemma Single(s: State, i: int, j: int)
  requires Inv(s) && 0 <= i < |s.holders| && 0 <= j < |s.holders| && s.holders[i].owner == s.holders[j].owner
  ensures i == j
{}
// The lease at i is another one, and everything else is as it was.
lemma SetIsRight(s: State, i: int, n: Holder, d: Decision, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && 0 <= i < |s.holders| && Stays(s.holders[i], n, c, r) && (n.started ==> n.max == 1) && d.to.s == SetLive(s, i, n)
  requires d.a.outcome.Granted? ==> n.owner == r.owner && n.fence == d.a.fence && n.seat == d.a.seat && !n.revoked && c.late + d.a.ttl <= End(n)
  ensures Right(s, d, c, r)
{
  SetLiveKeeps(s, i, n);
  var z := d.to.s;
  assert z.holders[i] == n;
  forall h | h in s.holders ensures exists m :: m in z.holders && Stays(h, m, c, r) {
    var j :| 0 <= j < |s.holders| && s.holders[j] == h;
    assert z.holders[j] in z.holders;
    assert Stays(h, z.holders[j], c, r);
  }
  forall m | m in z.holders ensures exists h :: h in s.holders && Stays(h, m, c, r) {
    var j :| 0 <= j < |z.holders| && z.holders[j] == m;
    assert s.holders[j] in s.holders;
    assert Stays(s.holders[j], m, c, r);
  }
}
lemma AcquireIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && Asked(s, b, c, r) && Begun(s, c) && r.kind.Acquire?
  ensures Right(s, DoAcquire(s, b, c, r), c, r)
{
  var d := DoAcquire(s, b, c, r);
  var i := Find(s.holders, r.owner);
  if FindMark(s.ended, r.owner) >= 0 { SameIsRight(s, d, c, r); }
  else if i < 0 { AcquireNewIsRight(s, b, c, r); }
  else {
    var h := s.holders[i];
    if h.revoked || (r.fence != 0 && r.fence != h.fence) { SameIsRight(s, d, c, r); }
    else if Live(c, h) && h.handed {
      var n := h.(handed := false, since := c.late, ttl := Max(r.ttl, h.ttl), text := r.text);
      SetIsRight(s, i, n, d, c, r);
    } else if Live(c, h) { assert h in s.holders; SameIsRight(s, d, c, r); }
    else if !h.handed { SameIsRight(s, d, c, r); }
    else {
      forall j | 0 <= j < |s.holders| && s.holders[j].owner == r.owner ensures j == i { Single(s, i, j); }
      AcquireNewIsRight(s, b, c, r);
    }
  }
}
lemma ReleaseIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.Release?
  ensures Right(s, DoRelease(s, b, c, r), c, r)
{
  var d := DoRelease(s, b, c, r);
  var i := Find(s.holders, r.owner);
  if d.to.s == s { SameIsRight(s, d, c, r); }
  else if !s.holders[i].revoked { FreedIsRight(s, b, c, r, i, Released, Done); }
  else { FreedIsRight(s, b, c, r, i, Revoked, Lost); }
}
lemma RenewIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && Begun(s, c) && r.kind.Renew?
  ensures Right(s, DoRenew(s, c, r), c, r)
{
  var d := DoRenew(s, c, r);
  var i := Own(s, r);
  if i < 0 || !Live(c, s.holders[i]) { SameIsRight(s, d, c, r); } else {
    var h := s.holders[i];
    SetIsRight(s, i, h.(since := c.late, ttl := Max(h.ttl, r.ttl), handed := false), d, c, r);
  }
}
lemma AbandonIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.Abandon?
  ensures Right(s, DoAbandon(s, b, c, r), c, r)
{
  var d := DoAbandon(s, b, c, r);
  var i := Find(s.holders, r.owner);
  if FindMark(s.ended, r.owner) >= 0 || (i >= 0 && s.holders[i].revoked && s.holders[i].started) { SameIsRight(s, d, c, r); }
  else if i >= 0 { FreedIsRight(s, b, c, r, i, Released, Done); }
  else {
    UnplaceKeeps(s, r.owner);
    var n := s.(ended := Remember(s.ended, b, Mark(r.owner, 0, Released)), queue := Unplace(s.queue, r.owner));
    forall m | m in n.ended ensures m in s.ended || m.owner == r.owner {}
    assert Marks(n.ended, n.last);
    assert Gone(n.ended, n.holders, n.queue) by {
      forall j, k | 0 <= j < |n.ended| && 0 <= k < |n.holders| ensures n.ended[j].owner != n.holders[k].owner { assert n.ended[j] in n.ended; }
      forall j, k | 0 <= j < |n.ended| && 0 <= k < |n.queue| ensures n.ended[j].owner != n.queue[k].owner { assert n.ended[j] in n.ended; assert n.queue[k] in n.queue; }
    }
    QueueIsRight(s, n, b, c, r, d);
  }
}
// Only the queue and the marks are other ones, and if the first place has gone, the key is handed over.
lemma QueueIsRight(s: State, n: State, b: Book, c: Clock, r: Request, d: Decision)
  requires Inv(s) && Sane(s) && Most(n) && n.holders == s.holders && n.last == s.last && n.closed == s.closed && n.queue == Unplace(s.queue, r.owner)
  requires d == if Place(s.queue, r.owner) == 0 then Freed(n, b, c, Done) else Same(n, Done)
  ensures Right(s, d, c, r)
{
  UnplaceKeeps(s, r.owner);
  assert Sane(n);
  if Place(s.queue, r.owner) == 0 {
    HandOverKeeps(Step(n, [], []), b, c);
    var z := d.to.s;
    forall h | h in s.holders ensures Stays(h, h, c, r) {}
    forall h | h in z.holders ensures h in s.holders || HandedTo(s, h, c) {
      if h !in n.holders { assert HandedTo(n, h, c); }
    }
  } else {
    if n.queue != [] { assert n.queue[0] == s.queue[0]; }
    SameIsRight(s, d, c, r);
  }
}
lemma LeaveIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.Leave?
  ensures Right(s, DoLeave(s, b, c, r), c, r)
{
  var d := DoLeave(s, b, c, r);
  if d.to.s == s { SameIsRight(s, d, c, r); } else {
    UnplaceKeeps(s, r.owner);
    QueueIsRight(s, s.(queue := Unplace(s.queue, r.owner)), b, c, r, d);
  }
}
lemma MarkStartedIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.MarkStarted?
  ensures Right(s, DoMarkStarted(s, c, r), c, r)
{
  var d := DoMarkStarted(s, c, r);
  var i := Own(s, r);
  if i < 0 || !Live(c, s.holders[i]) || s.holders[i].max != 1 { SameIsRight(s, d, c, r); }
  else { SetIsRight(s, i, s.holders[i].(started := true), d, c, r); }
}
lemma CloseIsRight(s: State, b: Book, c: Clock, r: Request, i: int, how: How)
  requires Inv(s) && Sane(s) && 0 <= i < |s.holders| && r.ttl > 0 && EndedBy(s.holders[i], c, r) && s.holders[i].max == 1
  ensures Right(s, Close(s, b, c, r, i, how), c, r)
{
  EndsKeeps(s, b, i, how);
  assert |s.holders| == 1 && i == 0;
}
lemma CompleteIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.Complete? && r.ttl > 0
  ensures Right(s, DoComplete(s, b, c, r), c, r)
{
  var d := DoComplete(s, b, c, r);
  var m := FindMark(s.ended, r.owner);
  var i := Own(s, r);
  if (m >= 0 && s.ended[m].how.Completed?) || i < 0 || s.holders[i].max != 1 { SameIsRight(s, d, c, r); }
  else { CloseIsRight(s, b, c, r, i, Completed); }
}
lemma ResolveIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.Resolve? && (r.effect ==> r.ttl > 0)
  ensures Right(s, DoResolve(s, b, c, r), c, r)
{
  var d := DoResolve(s, b, c, r);
  var i := FindFence(s.holders, r.fence);
  var completed := IsClosed(s, c) && s.last == r.fence;
  if (!r.effect && !completed && (MarkOf(s.ended, r.fence, Resolved) || MarkOf(s.ended, r.fence, Released))) || After(s.holders, c.early) != [] ||
    (s.holders == [] && s.last == r.fence && completed == r.effect) || i < 0 || !s.holders[i].started { SameIsRight(s, d, c, r); }
  else {
    assert s.holders[i] in s.holders;
    assert !Live(c, s.holders[i]) by { if Live(c, s.holders[i]) { assert s.holders[i] in After(s.holders, c.early); } }
    if r.effect { CloseIsRight(s, b, c, r, i, Released); } else { FreedIsRight(s, b, c, r, i, Resolved, Done); }
  }
}
lemma RevokeIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.Revoke?
  ensures Right(s, DoRevoke(s, b, c, r), c, r)
{
  var d := DoRevoke(s, b, c, r);
  var i := FindFence(s.holders, r.fence);
  if (r.atOnce && MarkOf(s.ended, r.fence, Revoked)) || i < 0 || !Live(c, s.holders[i]) || (r.atOnce && s.holders[i].started) { SameIsRight(s, d, c, r); }
  else {
    var h := s.holders[i];
    var m := h.(revoked := true, handed := false, text := r.text);
    var n := if h.revoked then s else SetLive(s, i, m);
    if !h.revoked { SetIsRight(s, i, m, Same(n, Done), c, r); } else { SameIsRight(s, Same(n, Done), c, r); }
    if r.atOnce {
      FreedIsRight(n, b, c, r, i, Revoked, Done);
      Then(s, n, d, c, r);
    }
  }
}
lemma StaysStays(h: Holder, g: Holder, m: Holder, c: Clock, r: Request)
  requires r.kind.Revoke? && Stays(h, g, c, r) && Stays(g, m, c, r)
  ensures Stays(h, m, c, r)
{}
// A revocation at once is two steps.
lemma Then(s: State, n: State, d: Decision, c: Clock, r: Request)
  requires Right(s, Same(n, Done), c, r) && Right(n, d, c, r) && n.last == s.last && n.closed == s.closed && r.kind.Revoke?
  requires forall w :: w in n.queue ==> w in s.queue
  requires |n.holders| == |s.holders| && forall i :: 0 <= i < |s.holders| ==> Stays(s.holders[i], n.holders[i], c, r)
  ensures Right(s, d, c, r)
{
  var z := d.to.s;
  forall h | h in s.holders ensures (exists m :: m in z.holders && Stays(h, m, c, r)) || EndedBy(h, c, r) || (!Live(c, h) && !h.started && z.last > s.last) {
    var i :| 0 <= i < |s.holders| && s.holders[i] == h;
    var g := n.holders[i];
    assert g in n.holders;
    if m :| m in z.holders && Stays(g, m, c, r) { StaysStays(h, g, m, c, r); }
  }
  forall m | m in z.holders ensures (exists h :: h in s.holders && Stays(h, m, c, r)) || HandedTo(s, m, c) {
    if g :| g in n.holders && Stays(g, m, c, r) {
      var i :| 0 <= i < |n.holders| && n.holders[i] == g;
      assert s.holders[i] in s.holders;
      StaysStays(s.holders[i], g, m, c, r);
    } else { assert HandedTo(n, m, c); }
  }
  if z.last != s.last {
    forall h | h in s.holders && h.started && !Live(c, h) ensures EndedBy(h, c, r) {
      var i :| 0 <= i < |s.holders| && s.holders[i] == h;
      assert n.holders[i] in n.holders;
    }
  }
}
// Who has places before it is granted the key if, and only if, there has been room for all of them for their turns.
lemma InTurn(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && Asked(s, b, c, r) && r.kind.Acquire? && r.fence == 0 && !InDoubt(s, c) && s.closed.Open?
  ensures var p := Place(s.queue, r.owner); var before := if p >= 0 then s.queue[..p] else s.queue;
    AcquireNew(s, b, c, r).a.outcome.Granted? <==> Fits(After(s.holders, c.early - Delay(before)), Smallest(r.max, before))
{
  var p := Place(s.queue, r.owner);
  var before := if p >= 0 then s.queue[..p] else s.queue;
  SmallestPositive(r.max, before);
  MayFits(s, c, Smallest(r.max, before), Delay(before));
}
// Acquire heals a state without this: it looks whether there is room for the first in the queue, and nothing says since when.
lemma HealDoesNothing(s: State)
  requires Inv(s) && Sane(s) && s.queue != []
  ensures RoomSince(s, s.queue[0].max).At?
{
  assert s.holders != [];
  var e := FirstEnd(s.holders); Shorter(s.holders, e);
  RoomLater(After(s.holders, e), s.queue[0].max, e);
}
// A release leaves no room for the first in the queue.
lemma HandedOn(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && r.kind.Release?
  ensures var z := DoRelease(s, b, c, r).to.s; z == s || NobodyIsForgotten(z, c)
{
  var i := Find(s.holders, r.owner);
  if DoRelease(s, b, c, r).to.s != s {
    EndsKeeps(s, b, i, if s.holders[i].revoked then Revoked else Released);
    HandOverKeeps(Step(Ends(s, b, i, if s.holders[i].revoked then Revoked else Released), [], []), b, c);
  }
}

lemma DecideIsRight(s: State, b: Book, c: Clock, r: Request)
  requires Inv(s) && Sane(s) && Asked(s, b, c, r) && Begun(BeginNow(s, c), c)
  ensures Right(BeginNow(s, c), Decide(s, b, c, r), c, r)
{
  var t := BeginNow(s, c);
  BeginKeeps(s, c);
  match r.kind
  case Acquire => {
    forall h | h in t.holders && h.owner == r.owner ensures h.max == r.max { var i :| 0 <= i < |t.holders| && t.holders[i] == h; assert s.holders[i] in s.holders; }
    AcquireIsRight(t, b, c, r);
  }
  case Renew => RenewIsRight(t, b, c, r);
  case Release => ReleaseIsRight(t, b, c, r);
  case Abandon => AbandonIsRight(t, b, c, r);
  case Leave => LeaveIsRight(t, b, c, r);
  case MarkStarted => MarkStartedIsRight(t, b, c, r);
  case Complete => CompleteIsRight(t, b, c, r);
  case Resolve => ResolveIsRight(t, b, c, r);
  case Revoke => RevokeIsRight(t, b, c, r);
}

// Trusted is until when the owner of a lease may trust it at most, at the right time now.
function Trusted(h: Holder, now: int): int { Min(h.since, now) + h.ttl }

// The rules by any clock that is right, in terms of the state before and the right time.
lemma Theorem(s: State, b: Book, c: Clock, r: Request, now: int)
  requires Inv(s) && Sane(s) && Asked(s, b, c, r) && c.sure && c.early <= now <= c.late
  ensures var d := Decide(s, b, c, r); var z := d.to.s;
    Inv(z) && Sane(z) && s.last <= z.last
    // A lease that may be trusted stays, with its fence and seat, and ends no earlier, if neither its owner nor an operator ends it.
    && (forall h :: h in s.holders && Trusted(h, now) > now ==>
      EndedBy(h, c, r) || exists n :: n in z.holders && n.fence == h.fence && n.owner == h.owner && n.seat == h.seat && Trusted(n, now) >= Trusted(h, now))
    // A lease is one that was there, or it is a new one with a new fence, of who asks or of who waits.
    && (forall n :: n in z.holders ==> (exists h :: h in s.holders && n.fence == h.fence && n.owner == h.owner && n.seat == h.seat) ||
      (n.fence > s.last && n.since == c.late && ((n.owner == r.owner && r.kind.Acquire?) || exists w :: w in s.queue && w.owner == n.owner)))
    // Nobody is granted a closed key, or one with work in doubt, but of the lease that this step ends.
    && (z.last != s.last ==> (s.closed.Closed? ==> Min(s.closed.since, c.late) + s.closed.long <= now) && forall h :: h in BeginNow(s, c).holders && h.started && End(h) <= now ==> EndedBy(h, c, r))
    // Trust in an answer ends with the lease at the latest.
    && (d.a.outcome.Granted? ==> exists h :: h in z.holders && h.owner == r.owner && h.fence == d.a.fence && h.seat == d.a.seat && now + d.a.ttl <= Trusted(h, now))
{
  var t := BeginNow(s, c);
  var d := Decide(s, b, c, r);
  var z := d.to.s;
  forall h | h in t.holders ensures h.since <= c.late { var i :| 0 <= i < |t.holders| && t.holders[i] == h; }
  DecideIsRight(s, b, c, r);
  BeginKeeps(s, c);
  OldLeases(s, t, d, c, r, now);
  NewLeases(s, t, d, c, r);
  assert t.closed.Closed? == s.closed.Closed?;
  if z.last != s.last {
    forall h | h in t.holders && h.started && End(h) <= now ensures EndedBy(h, c, r) { Doubt(s, t, d, c, r, now, h); }
  }
}
lemma OldLeases(s: State, t: State, d: Decision, c: Clock, r: Request, now: int)
  requires c.sure && c.early <= now <= c.late && t == BeginNow(s, c) && Right(t, d, c, r)
  ensures forall h :: h in s.holders && Trusted(h, now) > now ==>
      EndedBy(h, c, r) || exists n :: n in d.to.s.holders && n.fence == h.fence && n.owner == h.owner && n.seat == h.seat && Trusted(n, now) >= Trusted(h, now)
{
  forall h | h in s.holders && Trusted(h, now) > now
    ensures EndedBy(h, c, r) || exists n :: n in d.to.s.holders && n.fence == h.fence && n.owner == h.owner && n.seat == h.seat && Trusted(n, now) >= Trusted(h, now) {
    var i :| 0 <= i < |s.holders| && s.holders[i] == h;
    var g := t.holders[i];
    assert g in t.holders && Live(c, g) && Trusted(g, now) == Trusted(h, now);
    if EndedBy(g, c, r) { assert EndedBy(h, c, r); }
  }
}
lemma NewLeases(s: State, t: State, d: Decision, c: Clock, r: Request)
  requires c.sure && t == BeginNow(s, c) && Right(t, d, c, r)
  ensures forall n :: n in d.to.s.holders ==> (exists h :: h in s.holders && n.fence == h.fence && n.owner == h.owner && n.seat == h.seat) ||
      (n.fence > s.last && n.since == c.late && ((n.owner == r.owner && r.kind.Acquire?) || exists w :: w in s.queue && w.owner == n.owner))
{
  forall n | n in d.to.s.holders ensures (exists h :: h in s.holders && n.fence == h.fence && n.owner == h.owner && n.seat == h.seat) ||
      (n.fence > s.last && n.since == c.late && ((n.owner == r.owner && r.kind.Acquire?) || exists w :: w in s.queue && w.owner == n.owner)) {
    if g :| g in t.holders && Stays(g, n, c, r) {
      var i :| 0 <= i < |t.holders| && t.holders[i] == g;
      assert s.holders[i] in s.holders;
    }
  }
}
lemma Doubt(s: State, t: State, d: Decision, c: Clock, r: Request, now: int, h: Holder)
  requires Inv(s) && Inv(t)
  requires c.sure && c.early <= now <= c.late && t == BeginNow(s, c) && Right(t, d, c, r) && d.to.s.last != s.last && h in t.holders && h.started && End(h) <= now
  ensures EndedBy(h, c, r)
{
  var z := d.to.s;
  if Live(c, h) && !EndedBy(h, c, r) {
    // It stays, and lets nobody in.
    var n :| n in z.holders && Stays(h, n, c, r);
    var k :| 0 <= k < |z.holders| && z.holders[k] == n;
    assert |z.holders| == 1;
    assert n.fence <= s.last;
  }
}
}
