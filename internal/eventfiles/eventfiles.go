// Package eventfiles reads the events of events/ with their answers, and compares
// answers.
package eventfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Fixture is an event for a function, with what belongs to it.
type Fixture struct {
	Name  string // of its file, without .json
	Event []byte
	Want  []byte // the answer, from NAME.out.json, for SameAnswer
	Held  string // the key that another holds, from NAME.held; "" where there is no such file
}

// Read reads the events in a folder whose names begin so, sorted by name.
func Read(dir, begin string) (all []Fixture, err error) {
	pattern := filepath.Join(dir, begin+"*.out.json")
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		base := strings.TrimSuffix(file, ".out.json")
		event, errEvent := os.ReadFile(base + ".json")
		want, errWant := os.ReadFile(file)
		held, errHeld := os.ReadFile(base + ".held")
		if errors.Is(errHeld, fs.ErrNotExist) {
			errHeld = nil
		}
		if err := errors.Join(errEvent, errWant, errHeld); err != nil {
			return nil, err
		}
		all = append(all, Fixture{filepath.Base(base), event, want, strings.TrimSpace(string(held))})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no %s", pattern)
	}
	return all, nil
}
