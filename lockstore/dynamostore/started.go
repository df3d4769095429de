package dynamostore

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The mark of work that has started is the ttl of its row. So it moves about once a day, with a renewal: it is never less than
// leastMark, lockstore.StartMarkTime after the end of the lease. Each MarkStarted writes a mark of its own, so no call
// removes a mark on which the work of another call rests.

// markAt is the mark of work that starts at a time. leastMark, nextMark and encode call it.
func markAt(at time.Time) int64 { return at.Add(lockstore.StartMarkTime+idleRow).Unix() + 1 }

// leastMark is the smallest mark that a row may have under a lease with this end. nextMark and encode call it.
func leastMark(end time.Time) int64 { return markAt(end.Add(-idleRow)) }

// markOf is the mark of a row as a number, 0 if there is none or if it is damaged. nextMark, note and answerUnchanged compare it; encode asks whether a
// renewal has to move it.
func markOf(item values) int64 {
	n, _ := number(item, attrStarted, maxMilli)
	return n
}

// nextMark is the mark of a MarkStarted. becoming calls it.
func (t *table) nextMark(seen row, owner driver.Owner) value {
	return integer(max(markAt(t.clock.read()), markOf(seen.item)+1, leastMark(seen.leaseEnd(owner))))
}

// marking is what one MarkStarted has written.
type marking struct {
	mark  int64 // of its last write
	other bool  // there was one of another call before
}

// note notes a write that is about to be sent. ambiguous says that an earlier one may have been applied. It sets mark and other; change calls it.
func (m *marking) note(seen row, w write, ambiguous bool) {
	there := markOf(seen.item)
	m.other = m.other || there != 0 && !(ambiguous && there == m.mark)
	m.mark = markOf(w.becomes)
}

// unmark answers a MarkStarted that has written its mark after the end of the lease. It sends a write that removes the mark, because no work begins: the
// key is not in doubt. It moves the end, which is over, by a millisecond: a late copy of the mark finds another row than the one that it expects. It
// sends nothing if another call had marked before, and a row whose mark has changed stays. answerWrite calls it, and answerUnchanged if the reply to the
// mark was lost.
func (t *table) unmark(ctx context.Context, key string, q driver.Request, m marking, seen row, a driver.Answer) (driver.Answer, error) {
	if m.other {
		return a, nil
	}
	end := seen.leaseEnd(q.Owner)
	_, err := t.update(ctx, key, write{
		becomes: values{attrStarted: nil, attrExpires: millis(end.Add(-time.Millisecond)), attrTTL: sweepTime(t.clock.read(), q.Fence)},
		expects: values{attrOwner: text(q.Owner), attrFence: integer(q.Fence), attrExpires: millis(end), attrStarted: integer(m.mark)},
	})
	return a, outcome(err, true)
}

// revokedSince says that the mark in the row came before a revocation of the lease: nobody marks a revoked lease. answerUnchanged calls it.
func (t *table) revokedSince(seen row, r reply, q driver.Request) bool {
	h := seen.alone()
	return h != nil && h.Owner == q.Owner && h.Fence == q.Fence && h.Revoked && t.clockOf(r).Early.Before(h.End())
}
