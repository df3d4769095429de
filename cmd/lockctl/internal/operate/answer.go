// Package operate has the commands for operators: they look at locks and end leases.
package operate

import (
	"encoding/json"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The states of a key, as show and list print them.
const (
	stateHeld    = "held"
	stateClosing = "closing" // the lease is broken, and nobody may have the key until it ends
	stateKept    = "kept"    // nobody may have the key for a time: it has an answer, or is in a cooldown
	stateDoubt   = "doubt"   // the work has begun, and nobody said how it ended
	stateFree    = "free"
)

var states = []string{stateHeld, stateClosing, stateKept, stateDoubt, stateFree}

func stateOf(s lockstore.Status) string {
	switch {
	case s.InDoubt:
		return stateDoubt
	case s.Kept:
		return stateKept
	case s.Broken:
		return stateClosing
	case s.Held:
		return stateHeld
	}
	return stateFree
}

// answer is a key's state as JSON. The fence is a text: it is above 2^50, and many readers
// of JSON round numbers.
type answer struct {
	Time    string                `json:"time,omitempty"` // of watch: when lockctl saw it
	Key     string                `json:"key"`
	State   string                `json:"state"`
	Holder  *lockstore.HolderInfo `json:"holder,omitempty"`
	Fence   string                `json:"fence,omitempty"`
	LeftMs  int64                 `json:"leftMs,omitempty"`
	Waiting int                   `json:"waiting"`
}

func answerOf(s lockstore.Status) answer {
	a := answer{Key: s.Key, State: stateOf(s), LeftMs: s.Remaining.Milliseconds(), Waiting: s.Waiting}
	if s.Held {
		a.Holder = &s.Holder
	}
	if s.Fence != 0 {
		a.Fence = strconv.FormatInt(int64(s.Fence), 10)
	}
	return a
}

// warnings is where a command prints what is no answer.
func warnings(cmd *cobra.Command) io.Writer { return exit.Writer{To: cmd.ErrOrStderr()} }

// output is where a command prints its answer.
func output(cmd *cobra.Command) io.Writer { return exit.Writer{To: cmd.OutOrStdout()} }

// printJSON prints one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
