// Command report makes docs/benchmarks.md from the record of a run, the argument. make bench KEEP=1 runs it.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"text/template"

	"github.com/lambdalock/lambdalock/bench"
)

//go:embed benchmarks.md.tmpl
var page string

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("want one argument, the record of a run")
	}
	results, err := bench.Read(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	text, err := render(results)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("../docs/benchmarks.md", []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}

func render(r bench.Results) (string, error) {
	t := template.New("").Funcs(template.FuncMap{
		"table": func(name string) (string, error) {
			i := slices.IndexFunc(r.Tables, func(t bench.Table) bool { return t.Name == name })
			if i < 0 {
				return "", fmt.Errorf("the record has no table %q", name)
			}
			return markdown(r.Tables[i]), nil
		},
		"join": strings.Join,
	})
	if _, err := t.Parse(page); err != nil {
		return "", err
	}
	var b bytes.Buffer
	err := t.Execute(&b, r)
	return b.String(), err
}

// markdown leaves out the rows without a figure, which only the terminal needs.
func markdown(t bench.Table) string {
	var b strings.Builder
	write := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	write(t.Columns)
	write(slices.Repeat([]string{"---"}, len(t.Columns)))
	for _, row := range t.Rows {
		if len(row) > 2 && row[1] == "" {
			continue
		}
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(c), "|", "\\|")
		}
		write(cells)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
