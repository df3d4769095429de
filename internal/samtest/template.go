package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// template is what the run needs to know of template.yaml.
type template struct {
	functions []function
	tables    []dynamoTable
	urls      map[string]string // environment variable -> table's logical id
}

type function struct {
	id   string // logical id
	name string // folder below functions/
}

type dynamoTable struct{ id, key string }

// tableURL is how a variable says what it uses.
var tableURL = regexp.MustCompile(`^dynamodb://\$\{(\w+)\}$`)

func readTemplate(path string) (template, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return template{}, err
	}
	t, err := parseTemplate(text)
	if err != nil {
		return template{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func parseTemplate(text []byte) (template, error) {
	// Nodes stay as they are, so that CloudFormation's tags (!Ref) do not matter.
	type environment struct {
		Variables map[string]yaml.Node `yaml:"Variables"`
	}
	var file struct {
		Globals struct {
			Function struct {
				Environment environment `yaml:"Environment"`
			} `yaml:"Function"`
		} `yaml:"Globals"`
		Resources map[string]struct {
			Type       string    `yaml:"Type"`
			Properties yaml.Node `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return template{}, err
	}
	t := template{urls: map[string]string{}}
	variables := []environment{file.Globals.Function.Environment}
	for id, r := range file.Resources {
		switch r.Type {
		case "AWS::Serverless::Function":
			var p struct {
				CodeURI     string      `yaml:"CodeUri"`
				Environment environment `yaml:"Environment"`
			}
			if err := r.Properties.Decode(&p); err != nil {
				return template{}, fmt.Errorf("%s: %w", id, err)
			}
			t.functions = append(t.functions, function{id, strings.TrimPrefix(p.CodeURI, "functions/")})
			variables = append(variables, p.Environment)
		case "AWS::DynamoDB::Table":
			var p struct {
				KeySchema []struct {
					Name string `yaml:"AttributeName"`
				} `yaml:"KeySchema"`
			}
			if err := r.Properties.Decode(&p); err != nil {
				return template{}, fmt.Errorf("%s: %w", id, err)
			}
			if len(p.KeySchema) != 1 {
				return template{}, fmt.Errorf("%s: has %d keys; the tables here have one", id, len(p.KeySchema))
			}
			t.tables = append(t.tables, dynamoTable{id, p.KeySchema[0].Name})
		}
	}
	for _, v := range variables {
		for name, node := range v.Variables {
			if id := namedTable(&node); id != "" {
				t.urls[name] = id
			}
		}
	}
	slices.SortFunc(t.functions, func(a, b function) int { return strings.Compare(a.id, b.id) })
	for name, id := range t.urls {
		if !slices.ContainsFunc(t.tables, func(t dynamoTable) bool { return t.id == id }) {
			return template{}, fmt.Errorf("%s: there is no table %s", name, id)
		}
	}
	for _, name := range []string{lockVariable, accountsVariable} {
		if t.urls[name] == "" {
			return template{}, fmt.Errorf("no function has a variable %s: !Sub dynamodb://${TABLE}", name)
		}
	}
	return t, nil
}

// The variables that the set-up of the fixtures uses too.
const (
	lockVariable     = "LOCK_URL"
	accountsVariable = "ACCOUNTS_URL"
)

// namedTable returns the table that a value names, also as one of the choices of
// an !If, or "".
func namedTable(node *yaml.Node) string {
	if m := tableURL.FindStringSubmatch(node.Value); m != nil {
		return m[1]
	}
	for _, inner := range node.Content {
		if id := namedTable(inner); id != "" {
			return id
		}
	}
	return ""
}

// functionOf returns the function that an event's name begins with.
func (t template) functionOf(event string) (function, bool) {
	var best function // nightly-report-bad is nightly-report's, also if there is a nightly
	for _, f := range t.functions {
		if (event == f.name || strings.HasPrefix(event, f.name+"-")) && len(f.name) > len(best.name) {
			best = f
		}
	}
	return best, best.name != ""
}
