package verifyrecord

import "fmt"

// Fault is a row of the fault catalogue and something to say of it.
type Fault struct{ ID, Why string }

// Faults are the ids of the catalogue's rows, F01 to F79.
func Faults() []string {
	var ids []string
	for i := 1; i <= 79; i++ {
		ids = append(ids, fmt.Sprintf("F%02d", i))
	}
	return ids
}

// Untried are the rows that no test makes, and why. Every other one has a test
// that names it.
var Untried = []Fault{
	{"F46", "sessions and elections are ZooKeeper's, and there is no store for ZooKeeper"},
	{"F47", "half-created nodes are ZooKeeper's, and there is no store for ZooKeeper"},
	{"F59", "nothing wakes waiters up: each looks for itself, see F57"},
	{"F60", "there are no wake-up messages that could be lost"},
}

// Played are the rows of which something else than the real cause is made, because
// that cannot be had on one machine, and what it is.
var Played = []Fault{
	{"F06", "a SIGKILL, which is what the kernel sends to a process that takes too much memory"},
	{"F08", "clocks that the test sets; stopping a process does not stop its monotonic clock"},
	{"F19", "the fake Redis's clock; a server's own clock is the machine's"},
	{"F31", "a throttling that a proxy or the fake DynamoDB answers with"},
	{"F42", "the service's own errors, answered by the fake DynamoDB"},
	{"F44", "denials and lost keys of KMS, answered by the fake DynamoDB; a missing table is real"},
	{"F45", "an older entry that is put back"},
	{"F50", "descriptions of tables, answered by the fake DynamoDB; Redis and Valkey are really set up so"},
	{"F71", "a refusal as the service words it, and a Redis user who is switched off"},
}
