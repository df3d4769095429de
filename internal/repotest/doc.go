// Package repotest holds the tests of the repository as a whole. It has no code of its
// own. Its rules:
//
//   - who may import whom, and what a function may link
//   - where the environment is read, and that no test sleeps
//   - which licences and versions the dependencies have
//   - that each fault of verify/faults.md has a test
//   - that the README and the pages in docs/ show compiled code and are short, that each alarm is
//     on them, and that links lead somewhere
package repotest
