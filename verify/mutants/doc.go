// Package mutants plants bugs in the project, one at a time, and runs the test that has
// to catch each. A planted bug is a patch in patches/. It changes what go reads for one
// test, and no file of the project.
//
// A bug counts as caught when the test passes without the bug, fails with it, and
// prints the words that name what is wrong. Other failures do not count: the machine
// may have been too busy, or the test may have crashed over something else.
//
// The package also runs a mutation tester over the stores and the guard (make
// mutants). survivors.txt lists the mutants that may live, and why.
package mutants
