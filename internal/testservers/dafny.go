package testservers

import "testing"

// Dafny is the path of the prover Dafny.
func Dafny(t testing.TB) string {
	t.Helper()
	return find(t, "dafny", "run internal/testservers/dafny.sh")
}
