package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lambdalock/lambdalock/bench"
)

// The page shows every table that the tests keep, one after the other.
func TestEveryTable(t *testing.T) {
	files, err := filepath.Glob("../*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Results
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range regexp.MustCompile(`\tpart\(t, "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
			r.Tables = append(r.Tables, bench.Table{Name: call[1], Columns: []string{"the table " + call[1]}})
		}
	}
	if len(r.Tables) < 15 {
		t.Fatalf("the tests keep %d tables only", len(r.Tables))
	}
	page, err := render(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range r.Tables {
		if n := strings.Count(page, "\n\n| "+table.Columns[0]+" |\n"); n != 1 {
			t.Errorf("the page shows the table %q %d times; want once", table.Name, n)
		}
	}
	if strings.Contains(page, "\n\n\n") {
		t.Error("the page has two empty lines")
	}
}
