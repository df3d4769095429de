package driver

import "strconv"

// State is the state of a key, in one word.
type State int

const (
	// Free: an Acquire is granted.
	Free State = iota
	// Reserved: nobody is known to be at work. The key is kept for those who have waited longer, or
	// was handed over to one of them, who has not extended its lease yet and may have begun its work.
	Reserved
	// Held: somebody has a lease.
	Held
	// Revoked: an operator has ended the lease. Until its end nobody has the key.
	Revoked
	// Completed: the work is done, and its result is stored.
	Completed
	// Cooldown: as Completed, without a result.
	Cooldown
	// InDoubt: the lease has ended under work that had started. Nobody knows whether it
	// had its effect, until somebody resolves it.
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

// MarshalText is String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Taken says that an Acquire is refused, whoever asks: the state is neither Free nor Reserved.
func (s State) Taken() bool { return s > Reserved }

// Done says that the work is done: the state is Completed or Cooldown.
func (s State) Done() bool { return s == Completed || s == Cooldown }
