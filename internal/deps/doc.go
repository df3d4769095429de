// Package deps holds the test of docs/dependencies.md: which modules this one and
// its two modules of tests use, under which licence, and why. It has no code of its
// own. After a change of go.mod:
//
//	go test ./internal/deps -update
package deps
