// Package fuzzall runs every Fuzz function of the product's module for a while. An input
// that fails is written beside the function, below testdata/fuzz, and every go test
// runs it from then on.
//
//	go test ./fuzzall -run TestFuzz -v    one function, for a second
//	FUZZTIME=20s                       every function, for so long each: make fuzz
package fuzzall
