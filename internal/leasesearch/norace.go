//go:build !race

package leasesearch

const withRaceDetector = false
