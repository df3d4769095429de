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

// states are the words for the state of a key.
var states = []string{
	lockstore.Free.String(), lockstore.Reserved.String(), lockstore.Held.String(), lockstore.Revoked.String(),
	lockstore.Completed.String(), lockstore.Cooldown.String(), lockstore.InDoubt.String(),
}

// answer is a key's state as JSON. The fence is a text: it is above 2^50, and many readers
// of JSON round numbers.
type answer struct {
	Time    string                `json:"time,omitempty"` // of watch: when lockctl saw it
	Key     string                `json:"key"`
	State   lockstore.State       `json:"state"`
	Holder  *lockstore.HolderInfo `json:"holder,omitempty"`
	Fence   string                `json:"fence,omitempty"`
	LeftMs  int64                 `json:"leftMs,omitempty"`
	Waiting int                   `json:"waiting"`
}

func answerOf(s lockstore.Status) answer {
	a := answer{Key: s.Key, State: s.State, LeftMs: s.Remaining.Milliseconds(), Waiting: s.Waiting}
	if s.State.Taken() {
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
