// Package clocktest makes the times of a process whose monotonic clock and wall clock have gone apart: Lambda may stop
// the monotonic clock while it freezes a process, and a wall clock can be set. The clocks of a test always go
// together, and in a bubble of testing/synctest there is no monotonic clock.
package clocktest

import (
	"fmt"
	"reflect"
	"time"
)

// Ago returns a time that was mono ago by the monotonic clock and wall ago by the wall clock. A negative time is to come.
// It panics in a bubble, and if package time keeps times in another way than it did.
func Ago(mono, wall time.Duration) time.Time {
	now := time.Now()
	t := now.Add(-wall)
	*(*int64)(reflect.ValueOf(&t).Elem().FieldByName("ext").Addr().UnsafePointer()) += int64(wall - mono)
	if now.Sub(t) != mono || now.Round(0).Sub(t.Round(0)) != wall {
		panic(fmt.Sprintf("clocktest: %v has no monotonic clock that this package knows", now))
	}
	return t
}
