// Package repotest holds the tests of the repository as a whole. It has no code of its
// own. Its rules:
//
//   - who may import whom, and what a function may link
//   - where the environment is read
//   - which licences and versions the dependencies have
//   - that one name goes through all files
//   - that each fault of docs/faults.md has a test
//   - that the README and the pages in docs/ show compiled code, the map in docs/design.md has
//     all rooms, and links lead somewhere
package repotest
