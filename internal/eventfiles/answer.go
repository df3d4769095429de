package eventfiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// SameAnswer tells how a function's answer differs from the expected one. Both
// are JSON; spaces and the order of names do not count, also in a text that is
// JSON itself, such as the body of an HTTP response. The expected texts
// "<text>" and "<number>" stand for any value of that kind, "" aside: for what
// is new in each run.
func SameAnswer(want, got []byte) error {
	a, err := decoded(want)
	if err != nil {
		return fmt.Errorf("the expected answer: %w", err)
	}
	b, err := decoded(got)
	if err != nil {
		return fmt.Errorf("the answer %.200q: %w", got, err)
	}
	if same(a, b) {
		return nil
	}
	var short bytes.Buffer
	if err := json.Compact(&short, want); err != nil {
		return err
	}
	return fmt.Errorf("want %s\n     got  %s", short.Bytes(), bytes.TrimSpace(got))
}

// SameText compares texts as SameAnswer does those of an answer.
func SameText(want, got string) bool {
	if want == got || want == "<text>" && got != "" {
		return true
	}
	if !strings.HasPrefix(want, "{") {
		return false
	}
	a, errWant := decoded([]byte(want))
	b, errGot := decoded([]byte(got))
	return errWant == nil && errGot == nil && same(a, b)
}

// same compares what decoded returns.
func same(want, got any) bool {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok || len(got) != len(want) {
			return false
		}
		for name, value := range want {
			other, ok := got[name]
			if !ok || !same(value, other) {
				return false
			}
		}
		return true
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return false
		}
		for i := range want {
			if !same(want[i], got[i]) {
				return false
			}
		}
		return true
	case string:
		if want == "<number>" {
			_, ok := got.(json.Number)
			return ok
		}
		text, ok := got.(string)
		return ok && SameText(want, text)
	default:
		return want == got
	}
}

func decoded(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("has something after its one JSON value")
	}
	return v, nil
}
