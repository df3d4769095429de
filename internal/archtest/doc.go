// Package archtest holds the tests of the project's shape: who may import whom,
// what a function may link, where the environment is read, that one name goes
// through all files, and that each fault of the catalogue has a test. It has no
// code of its own.
//
// Each rule is a function from what was read to a list of problems, so that it
// is itself tested on a small bad input.
package archtest
