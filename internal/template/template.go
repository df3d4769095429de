// Package template reads a SAM template for tests: each resource as CloudFormation makes it for some
// values of the parameters. It computes no condition: who reads says which hold, and
// deploy/check_templates.py looks at all parameters. Of the functions of CloudFormation it
// knows those that template.yaml uses where somebody looks.
//
// A resource has its logical id as its name, and ID.Arn as its ARN. A name that
// stands for nothing stays as ${NAME}, which no right answer contains. What another
// stack exports is the value "import NAME", see Exports. Any other thing that this
// package does not know is an error.
package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Types of resources.
const (
	FunctionType = "AWS::Serverless::Function"
	TableType    = "AWS::DynamoDB::Table"
)

// Template is a template with values for its parameters.
type Template struct {
	Resources map[string]Resource // by logical id

	globals yaml.Node // of all functions
	outputs map[string]output
	values  map[string]string // what !Ref NAME, !GetAtt NAME and ${NAME} stand for
}

// Resource is one resource of a template.
type Resource struct {
	Type string

	properties yaml.Node
	of         *Template
}

// Function is a Lambda function, with what all functions have in common.
type Function struct {
	ID          string // logical id
	CodeURI     string // folder of its main package
	Timeout     int    // seconds
	Environment struct{ Variables map[string]string }
}

// Name is the function's folder without functions/.
func (f Function) Name() string { return strings.TrimPrefix(f.CodeURI, "functions/") }

// Table is a DynamoDB table.
type Table struct {
	ID  string // logical id
	Key string // its one key attribute, a string
}

// output is a value that a stack shows.
type output struct {
	Value  yaml.Node `yaml:"Value"`
	Export struct {
		Name yaml.Node `yaml:"Name"`
	} `yaml:"Export"`
}

// Read reads the template in a file, see Parse.
func Read(file string, values map[string]string) (*Template, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(text, values)
}

// Parse reads a template. A parameter that values does not name has its default.
// values may also say what else a name stands for, such as "Cache.Endpoint", and have
// the names of the conditions that hold. nil is template.yaml by itself, with its own table.
func Parse(text []byte, values map[string]string) (*Template, error) {
	var file struct {
		Parameters map[string]struct {
			Default string `yaml:"Default"`
		} `yaml:"Parameters"`
		Globals struct {
			Function yaml.Node `yaml:"Function"`
		} `yaml:"Globals"`
		Resources map[string]struct {
			Type       string    `yaml:"Type"`
			Properties yaml.Node `yaml:"Properties"`
		} `yaml:"Resources"`
		Outputs map[string]output `yaml:"Outputs"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("the template: %w", err)
	}
	if values == nil {
		values = map[string]string{"OwnTable": "true"}
	}
	t := &Template{map[string]Resource{}, file.Globals.Function, file.Outputs, map[string]string{
		"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012", "AWS::StackName": "stack", "AWS::URLSuffix": "amazonaws.com",
	}}
	for name, p := range file.Parameters {
		t.values[name] = p.Default
	}
	for id, r := range file.Resources {
		t.Resources[id] = Resource{r.Type, r.Properties, t}
		t.values[id] = id
	}
	maps.Copy(t.values, values)
	return t, nil
}

// Decode stores the resource's properties in to, as json.Unmarshal does: the case
// of names does not count.
func (r Resource) Decode(to any) error {
	v, err := r.of.value(&r.properties)
	if err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// Functions are the template's functions, sorted by id.
func (t *Template) Functions() (all []Function, err error) {
	for _, id := range t.ids(FunctionType) {
		f := Function{ID: id}
		for _, properties := range []yaml.Node{t.globals, t.Resources[id].properties} {
			if err := (Resource{FunctionType, properties, t}).Decode(&f); err != nil {
				return nil, fmt.Errorf("%s: %w", id, err)
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// Tables are the template's tables, sorted by id.
func (t *Template) Tables() (all []Table, err error) {
	for _, id := range t.ids(TableType) {
		var p struct {
			KeySchema []struct{ AttributeName string }
		}
		if err := t.Resources[id].Decode(&p); err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		if len(p.KeySchema) != 1 {
			return nil, fmt.Errorf("%s: has %d keys; the tables here have one", id, len(p.KeySchema))
		}
		all = append(all, Table{id, p.KeySchema[0].AttributeName})
	}
	return all, nil
}

// Exports are what a stack of the template exports, as values for a template that
// imports them.
func (t *Template) Exports() (map[string]string, error) {
	all := map[string]string{}
	for id, o := range t.outputs {
		if o.Export.Name.Kind == 0 {
			continue
		}
		name, err := t.value(&o.Export.Name)
		value, err2 := t.value(&o.Value)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		all[fmt.Sprint("import ", name)] = fmt.Sprint(value)
	}
	return all, nil
}

func (t *Template) ids(kind string) (ids []string) {
	for id, r := range t.Resources {
		if r.Type == kind {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// noValue is what !Ref AWS::NoValue stands for: the property or item is not there.
type noValue struct{}

// value is what a node comes to: text, numbers, lists and maps as JSON has them.
func (t *Template) value(n *yaml.Node) (any, error) {
	var parts []any // of a list, or of a map: name, value, name, value
	for _, inner := range n.Content {
		part, err := t.value(inner)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	switch n.Tag {
	case "!Ref", "!GetAtt":
		name := n.Value
		if len(parts) == 2 {
			name = fmt.Sprintf("%s.%s", parts...)
		}
		if name == "AWS::NoValue" {
			return noValue{}, nil
		}
		return t.text("${"+name+"}", nil), nil
	case "!Sub":
		if len(parts) == 2 {
			return t.text(fmt.Sprint(parts[0]), parts[1].(map[string]any)), nil
		}
		return t.text(n.Value, nil), nil
	case "!If":
		if t.values[fmt.Sprint(parts[0])] == "true" {
			return parts[1], nil
		}
		return parts[2], nil
	case "!Split":
		var list []any
		for part := range strings.SplitSeq(fmt.Sprint(parts[1]), fmt.Sprint(parts[0])) {
			list = append(list, part)
		}
		return list, nil
	case "!!seq":
		return slices.DeleteFunc(parts, func(v any) bool { return v == noValue{} }), nil
	case "!!map":
		object := map[string]any{}
		if len(parts) == 2 && parts[0] == "Fn::ImportValue" {
			return t.text(fmt.Sprintf("${import %v}", parts[1]), nil), nil
		}
		for i := 0; i < len(parts); i += 2 {
			if parts[i+1] != (noValue{}) {
				object[fmt.Sprint(parts[i])] = parts[i+1]
			}
		}
		return object, nil
	}
	if n.Kind != 0 && !strings.HasPrefix(n.Tag, "!!") {
		return nil, fmt.Errorf("line %d: the function %s is unknown here", n.Line, n.Tag)
	}
	var v any
	err := n.Decode(&v)
	return v, err
}

var named = regexp.MustCompile(`\$\{([^}]+)\}`)

// text puts in what the names stand for; own are names of one !Sub.
func (t *Template) text(pattern string, own map[string]any) string {
	return named.ReplaceAllStringFunc(pattern, func(found string) string {
		name := found[2 : len(found)-1]
		if v, ok := own[name]; ok {
			return fmt.Sprint(v)
		}
		if v, ok := t.values[name]; ok {
			return v
		}
		if id, _, attribute := strings.Cut(name, "."); attribute && t.Resources[id].Type != "" {
			return name
		}
		return found
	})
}
