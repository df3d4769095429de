package lockstore

import (
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Fence is a fencing token: a number that grows with every grant of its key. A resource
// keeps the largest fence that it has seen and refuses a write with a smaller one. Then
// the write of a holder that stalled past its lease does no harm. The idea is from
// Kleppmann, "How to do distributed locking" (2016), and from Chubby's sequencers
// (Burrows, OSDI 2006).
type Fence = driver.Fence

// NextFence is the fence of the next grant: max(previous+1, now in microseconds since
// 1970). The clock's part makes the fence grow also when the previous value is gone. A
// previous value of 0 means none.
func NextFence(previous Fence, now time.Time) Fence {
	return max(previous+1, Fence(now.UnixMicro()))
}
