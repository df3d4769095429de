package bench

import (
	"encoding/json"
	"os"
	"time"
)

// Results are the figures of one run. The command report makes docs/benchmarks.md from them.
type Results struct {
	Date    time.Time `json:"date"`
	Machine string    `json:"machine"`
	Go      string    `json:"go"`
	Servers []string  `json:"servers"` // names and versions
	Peers   []string  `json:"peers"`   // modules and versions
	Tables  []Table   `json:"tables"`
	Waits   []Wait    `json:"waits"`
}

// Table is one part of the run.
type Table struct {
	Name    string     `json:"name"`
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

// Wait is how long 16 clients of one key waited, with the one locker.
type Wait struct {
	Store    string        `json:"store"`
	Locker   string        `json:"locker"`
	HandOver time.Duration `json:"handOver"` // the time of the whole by the number of grants
	P50      time.Duration `json:"p50"`      // from the call until the work begins
	P99      time.Duration `json:"p99"`
	Longest  time.Duration `json:"longest"`
}

// Write writes the results to a file.
func (r Results) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Read reads the results of a file.
func Read(path string) (Results, error) {
	var r Results
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}
