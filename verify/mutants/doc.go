// Package mutants plants bugs in the project, and runs the test that has to catch each.
//
// A mistake in a rule of the lock is no patch: package internal/wrongrules is the rule book with
// one mistake at a time. Of these and of what a store may do wrong (lockstore/storetest,
// wrongstore_test.go), each has to be found by a case of the suite, by the comparison of random requests
// with the rule book, or by the induction (internal/rules). The comparison runs on every store. So a mistake
// that an engine makes in Lua, or in an expression, is not planted there once more.
//
// All else is a patch in patches/: what stands in Lua, in expressions and in the loops of stores, in the
// guard and in what is above it. It changes what go reads for one test, and no file of the project.
//
// A bug counts as caught when the test passes without the bug, fails with it, and
// prints the words that name what is wrong. Other failures do not count: the machine
// may have been too busy, or the test may have crashed over something else.
package mutants
