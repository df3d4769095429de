// Package secrecy holds the tests that nothing which is printed, logged, measured
// or answered has an owner, a password or a credential in it. It has no code of its
// own. What the functions as deployed log and answer is looked at in the same way
// by functions/internal/functest.
package secrecy
