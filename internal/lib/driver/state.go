package driver

import "strconv"

// State is the state of a key, in one word. Package lockstore says what each of them means.
type State int

const (
	Free State = iota
	Reserved
	Held
	Revoked
	Completed
	Cooldown
	InDoubt
)

var states = [...]string{"free", "reserved", "held", "revoked", "completed", "cooldown", "in doubt"}

// String is the state in small letters, such as "held" or "in doubt".
func (s State) String() string {
	if s < 0 || int(s) >= len(states) {
		return "state " + strconv.Itoa(int(s))
	}
	return states[s]
}

func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Taken says that an Acquire is refused, whoever asks: the state is neither Free nor Reserved.
func (s State) Taken() bool { return s > Reserved }

// Done says that the work is done: the state is Completed or Cooldown.
func (s State) Done() bool { return s == Completed || s == Cooldown }
