// Package timeflag has the form of a time on the command line, which is the same for all flags.
package timeflag

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Longest is the longest time that can be given, and longer than what any flag allows.
const Longest = 10 * 365 * 24 * time.Hour

// Var adds a flag. Its default is what d has.
func Var(f *pflag.FlagSet, d *time.Duration, name, shorthand, usage string) *pflag.Flag {
	return f.VarPF((*value)(d), name, shorthand, usage)
}

type value time.Duration

// Set reads a number of seconds, as flock and timeout take it, or a duration of Go. Whether
// the time is too short or too long is the command's own business.
func (v *value) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, notNumber := strconv.ParseFloat(text, 64); notNumber == nil {
		d, err = time.Duration(n*float64(time.Second)), nil
		if !(-Longest.Seconds() <= n && n <= Longest.Seconds()) { // also NaN
			err = strconv.ErrRange
		}
	}
	if err != nil {
		return errors.New("want seconds, or a duration such as 24h, 1m30s or 500ms")
	}
	*v = value(d)
	return nil
}

func (v *value) String() string { return time.Duration(*v).String() }

func (v *value) Type() string { return "TIME" }
