//go:build !race

package verifyrecord

// WithRaceDetector says whether the race detector looks on: it makes a test of many goroutines
// ten times as slow.
const WithRaceDetector = false
