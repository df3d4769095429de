// Package repotest holds the tests of the repository as a whole: who may import
// whom, what a function may link, where the environment is read, which licences
// and versions the dependencies have, that one name goes through all files, that
// no output shows a secret, and that each fault of docs/faults.md has a test. It
// has no code of its own.
//
// Each rule is a function from what was read to a list of problems, so that it
// is itself tested on a small bad input.
package repotest
