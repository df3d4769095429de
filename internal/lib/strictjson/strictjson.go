// Package strictjson reads flat JSON objects from callers who are to notice
// their mistakes. It refuses what the standard decoder takes: other spellings of a name, two values of one
// name, and text behind the object's end.
package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Object reads a JSON object of at most max bytes, whose names are among fields
// and stand once each, and returns its values: string, json.Number, bool or nil.
// Its error names the field and is for the caller to see.
func Object(text string, max int, fields ...string) (map[string]json.Token, error) {
	switch {
	case len(text) > max:
		return nil, TooLong(max)
	case !utf8.ValidString(text):
		return nil, errors.New("body: is not valid UTF-8")
	}
	want := strings.Join(fields, ", ")
	if n := len(fields); n > 1 {
		want = strings.Join(fields[:n-1], ", ") + " and " + fields[n-1]
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("body: want a JSON object with %s", want)
	}
	values := map[string]json.Token{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, errNotJSON
		}
		name := t.(string) // the decoder takes no other name
		_, twice := values[name]
		switch {
		case twice:
			return nil, fmt.Errorf("%s: stands twice", Shown(name))
		case !slices.Contains(fields, name):
			return nil, fmt.Errorf("%s: is unknown; want %s", Shown(name), want)
		}
		if values[name], err = d.Token(); err != nil {
			return nil, errNotJSON
		}
		if _, nested := values[name].(json.Delim); nested {
			return nil, fmt.Errorf("%s: want a single value, no object or list", name)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, errNotJSON
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("body: has something after the JSON object")
	}
	return values, nil
}

// String is a value that has to be there. Its error names the field and is for the
// caller to see, as that of Whole is.
func String(values map[string]json.Token, name string) (string, error) {
	v, ok := values[name]
	if !ok {
		return "", fmt.Errorf("%s: is missing", name)
	}
	text, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s: want a string", name)
	}
	return text, nil
}

// Whole is a value that has to be there, from low to high, which are numbers of
// unit, such as "whole seconds". As for Int, 30.0 and 3e1 are 30.
func Whole(values map[string]json.Token, name, unit string, low, high int64) (int64, error) {
	v, ok := values[name]
	if !ok {
		return 0, fmt.Errorf("%s: is missing", name)
	}
	number, ok := v.(json.Number)
	if !ok {
		return 0, fmt.Errorf("%s: want a number", name)
	}
	n, ok := whole(number.String())
	if !ok || n < low || n > high {
		return 0, fmt.Errorf("%s: is %s; want %s, %d to %d", name, Shown(number.String()), unit, low, high)
	}
	return n, nil
}

// Int is a whole number for encoding/json, however it is written: many programs have no
// whole numbers, and write 30 as 30.0.
type Int int64

// UnmarshalJSON refuses what is no whole number, as encoding/json does for an int64. Unlike there null is refused, too.
func (i *Int) UnmarshalJSON(text []byte) error {
	n, ok := whole(string(text))
	if !ok {
		return &json.UnmarshalTypeError{Value: Shown(string(text)), Type: reflect.TypeFor[int64]()}
	}
	*i = Int(n)
	return nil
}

// whole is the value of a JSON number, if it is whole and an int64. It never rounds, as a
// float64 would.
func whole(text string) (int64, bool) {
	mantissa, exponent, scaled := strings.Cut(strings.ToLower(text), "e")
	before, behind, _ := strings.Cut(mantissa, ".")
	zeros := 0 // behind the digits
	if scaled {
		var err error
		if zeros, err = strconv.Atoi(exponent); err != nil {
			return 0, false
		}
	}
	digits := strings.TrimRight(before+behind, "0")
	zeros += len(before) - len(digits)
	switch {
	case strings.Trim(digits, "-0") == "":
		return 0, true
	case zeros < 0 || zeros > 18: // an int64 has 19 digits
		return 0, false
	}
	n, err := strconv.ParseInt(digits+strings.Repeat("0", zeros), 10, 64)
	return n, err == nil
}

var errNotJSON = errors.New("body: is not valid JSON")

// TooLong is what Object says about a text of more than max bytes.
func TooLong(max int) error { return fmt.Errorf("body: want at most %d bytes", max) }

// Shown is a caller's text in an answer, quoted and cut.
func Shown(s string) string {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return fmt.Sprintf("%q", s)
}
