//go:build race

package modelcheck

const withRaceDetector = true
