package run

import (
	"time"

	"golang.org/x/sys/unix"
)

// moment is one moment on two clocks that all processes of this machine share: the wall
// clock, and a clock that nobody sets and that goes on while the machine sleeps. Both are
// in nanoseconds.
type moment struct{ Wall, Steady int64 }

func now() moment {
	var t unix.Timespec
	if err := unix.ClockGettime(steadyClock, &t); err != nil {
		panic("the system has no steady clock: " + err.Error())
	}
	return moment{time.Now().UnixNano(), t.Nano()}
}

func (m moment) add(d time.Duration) moment { return moment{m.Wall + int64(d), m.Steady + int64(d)} }

// until is the time from m until end. If the clocks differ, the shorter time counts: one of
// them was set, or has stood still.
func (m moment) until(end moment) time.Duration {
	return time.Duration(min(end.Wall-m.Wall, end.Steady-m.Steady))
}
