//go:build !race

package verifyrecord

const withRaceDetector = false
