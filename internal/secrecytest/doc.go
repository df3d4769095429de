// Package secrecytest holds the test that no output shows a secret: not an owner, not an address, not a
// result and not a password, whatever the server of a store does. It has no code of its own.
package secrecytest
