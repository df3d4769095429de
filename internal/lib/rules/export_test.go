package rules

// MustHold is what Strict asserts.
var MustHold = mustHold
