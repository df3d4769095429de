// Package watchdog ends the tests of a package when one of them waits for more than a minute for one thing, such as a channel, a
// WaitGroup or an answer over the network. Without it a mistake that makes a test hang shows up at the end of go test's -timeout. A busy machine
// makes tests slow, and hardly ever a single wait.
package watchdog

import (
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// Start begins to watch, until the end of the process. TestMain calls it. In make verify a test may wait for minutes for all
// its seeds, and make verify bounds it itself.
func Start() {
	if verifyrecord.Full() {
		return
	}
	go func() {
		for before := ""; ; {
			time.Sleep(5 * time.Second)
			waits := stuck()
			if waits != "" && waits == before { // a wait that a context of a minute ends has ended by now
				panic("a test has waited for more than a minute:\n\n" + waits)
			}
			before = waits
		}
	}()
}

// waiting is the head of a goroutine that has waited for minutes, and the function that waits.
var waiting = regexp.MustCompile(`^goroutine \d+ [^\n]*\[[^\n]*, (\d+) minutes[^\n]*\]:\n(\S+)`)

// inBubble bounds a test in virtual time, in minutes. It computes, and finds out itself when all its goroutines wait; but time may
// pass in it without an end.
const inBubble = 5

func minutes(text string) int {
	n, _ := strconv.Atoi(text) // digits
	return n
}

// stuck is the stacks of the tests that wait.
func stuck() string {
	runtime.GC() // it notes which goroutines wait
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var found []string
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		head := waiting.FindStringSubmatch(stack)
		switch {
		case head == nil || !strings.Contains(stack, "\ntesting.tRunner("): // no test
		case strings.HasPrefix(head[2], "testing."): // it waits for its subtests, or for its turn
		case strings.Contains(stack, "synctest.") && minutes(head[1]) < inBubble:
		case strings.Contains(stack, "\nos/exec.(*Cmd)."): // a compiler may take minutes
		default:
			found = append(found, stack)
		}
	}
	return strings.Join(found, "\n\n")
}
