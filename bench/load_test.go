package bench

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// usage is how much processor time was used up to a moment.
type usage struct {
	at     time.Time
	all    time.Duration // by every process of the machine
	ours   time.Duration // by this process and those that it started, servers included
	stolen time.Duration // that the hypervisor gave to other machines
}

// load is what else had the processors during a contest, in cores. The zero load is
// not known: only Linux tells.
type load struct {
	others, stolen float64
	known          bool
}

// quiet is what a machine without other work stays below, in cores.
const quiet = 0.1

func (l load) disturbs() bool { return !l.known || l.others+l.stolen > quiet }

// busiest returns the largest of the loads. What has none was not disturbed.
func busiest(loads []load) load {
	if len(loads) == 0 {
		return load{known: true}
	}
	return slices.MaxFunc(loads, func(a, b load) int { return cmp.Compare(a.others+a.stolen, b.others+b.stolen) })
}

func (l load) String() string {
	if !l.known {
		return "what else ran is not known on " + runtime.GOOS
	}
	s := fmt.Sprintf("other processes had %.2f of %d cores, other machines %.2f", l.others, runtime.NumCPU(), l.stolen)
	if l.disturbs() {
		s += ": DISTURBED"
	}
	return s
}

func (u usage) until(end usage) load {
	wall := end.at.Sub(u.at)
	share := func(d time.Duration) float64 { return max(0, float64(d)/float64(wall)) }
	return load{
		others: share((end.all - u.all) - (end.ours - u.ours)),
		stolen: share(end.stolen - u.stolen),
		known:  true,
	}
}

// tick is the unit of /proc, the same on every architecture that Go knows.
const tick = 10 * time.Millisecond

// readUsage reads /proc. Interrupts are left out: most of them here are packets
// between this process and its servers.
func readUsage() (usage, error) {
	u := usage{at: time.Now()}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, err
	}
	total, _, _ := strings.Cut(string(stat), "\n")
	if u.all, err = ticks(strings.Fields(total), 1, 2, 3); err != nil { // user, nice, system
		return u, err
	}
	if u.stolen, err = ticks(strings.Fields(total), 8); err != nil {
		return u, err
	}

	parents, times := map[int]int{}, map[int]time.Duration{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return u, err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name stands in parentheses and may have spaces.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return u, err
		}
		if parents[pid], err = strconv.Atoi(fields[1]); err != nil {
			return u, err
		}
		// Its own time and that of its children that have ended.
		if times[pid], err = ticks(fields, 11, 12, 13, 14); err != nil {
			return u, err
		}
	}
	for pid, d := range times {
		for p := pid; p != 0; p = parents[p] {
			if p == os.Getpid() {
				u.ours += d
				break
			}
		}
	}
	return u, nil
}

// ticks adds up some of the fields.
func ticks(fields []string, which ...int) (sum time.Duration, err error) {
	for _, i := range which {
		if i >= len(fields) {
			return 0, fmt.Errorf("/proc: no field %d in %q", i, fields)
		}
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc: %w", err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}
