// Package template reads a SAM template for tests: each resource as CloudFormation makes it for some
// values of the parameters. Of the functions of CloudFormation it knows those that the templates here use
// where somebody looks; others stay as they are.
//
// A resource has its logical id as its name, and ID.Arn as its ARN. A name that
// stands for nothing stays as ${NAME}, which no right answer contains. What another
// stack exports is the value "import NAME", see Template.Exports.
package template

import (
	"encoding/json"
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
	Resources map[string]Resource // by logical id; without those whose condition does not hold
	Exports   map[string]string   // what its stack exports, as values for a template that imports them
	Refused   bool                // its Rules do not allow these values, and nothing is made

	source source
	values map[string]string // what !Ref NAME, !GetAtt NAME and ${NAME} stand for
}

// Resource is one resource of a template. A function's properties are with what all functions have in common.
type Resource struct {
	Type, DeletionPolicy, UpdateReplacePolicy string

	Properties any // text, numbers, lists and maps as JSON has them
}

// Function is a Lambda function.
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

// source is what a template's text says.
type source struct {
	Parameters map[string]struct {
		Default        any    `yaml:"Default"`
		AllowedPattern string `yaml:"AllowedPattern"`
	} `yaml:"Parameters"`
	Rules map[string]struct {
		RuleCondition node `yaml:"RuleCondition"`
		Assertions    []struct {
			Assert node `yaml:"Assert"`
		} `yaml:"Assertions"`
	} `yaml:"Rules"`
	Conditions map[string]node `yaml:"Conditions"`
	Globals    struct {
		Function node `yaml:"Function"`
	} `yaml:"Globals"`
	Resources map[string]struct {
		Type                string `yaml:"Type"`
		DeletionPolicy      string `yaml:"DeletionPolicy"`
		UpdateReplacePolicy string `yaml:"UpdateReplacePolicy"`
		Condition           string `yaml:"Condition"`
		Properties          node   `yaml:"Properties"`
	} `yaml:"Resources"`
	Outputs map[string]struct {
		Condition string `yaml:"Condition"`
		Value     node   `yaml:"Value"`
		Export    struct {
			Name node `yaml:"Name"`
		} `yaml:"Export"`
	} `yaml:"Outputs"`
}

// node is a value of a template, with a function such as !Ref X written out as {Ref: X}.
type node struct{ v any }

// UnmarshalYAML makes yaml call it for each value.
func (to *node) UnmarshalYAML(n *yaml.Node) (err error) {
	to.v, err = written(n)
	return err
}

func written(n *yaml.Node) (v any, err error) {
	switch n.Kind {
	case yaml.MappingNode:
		all := map[string]any{}
		for i := 0; i < len(n.Content) && err == nil; i += 2 {
			all[n.Content[i].Value], err = written(n.Content[i+1])
		}
		v = all
	case yaml.SequenceNode:
		all := make([]any, len(n.Content))
		for i := 0; i < len(all) && err == nil; i++ {
			all[i], err = written(n.Content[i])
		}
		v = all
	default:
		v = n.Value
		if strings.HasPrefix(n.Tag, "!!") {
			err = n.Decode(&v)
		}
	}
	switch name, short := strings.CutPrefix(n.Tag, "!"); {
	case !short || strings.HasPrefix(name, "!"):
	case name == "Ref" || name == "Condition":
		v = map[string]any{name: v}
	default:
		v = map[string]any{"Fn::" + name: v}
	}
	return v, err
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
// values may also say what else a name stands for, such as "Cache.Endpoint".
func Parse(text []byte, values map[string]string) (*Template, error) {
	var s source
	if err := yaml.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("the template: %w", err)
	}
	return s.with(values), nil
}

// with is the template with values.
func (s source) with(values map[string]string) *Template {
	t := &Template{Resources: map[string]Resource{}, Exports: map[string]string{}, source: s, values: map[string]string{
		"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012", "AWS::StackName": "stack", "AWS::URLSuffix": "amazonaws.com",
	}}
	for name, p := range s.Parameters {
		t.values[name] = ""
		if p.Default != nil {
			t.values[name] = fmt.Sprint(p.Default)
		}
	}
	for id := range s.Resources {
		t.values[id] = id
	}
	maps.Copy(t.values, values)
	for _, rule := range s.Rules {
		for _, a := range rule.Assertions {
			t.Refused = t.Refused || t.value(rule.RuleCondition.v) == true && t.value(a.Assert.v) == false
		}
	}
	if t.Refused {
		return t
	}
	for id, r := range s.Resources {
		if !t.holds(r.Condition) {
			continue
		}
		properties := t.value(r.Properties.v)
		if r.Type == FunctionType {
			properties = merged(t.value(s.Globals.Function.v), properties)
		}
		t.Resources[id] = Resource{r.Type, r.DeletionPolicy, r.UpdateReplacePolicy, properties}
	}
	for _, o := range s.Outputs {
		if o.Export.Name.v != nil && t.holds(o.Condition) {
			t.Exports[fmt.Sprint("import ", t.value(o.Export.Name.v))] = fmt.Sprint(t.value(o.Value.v))
		}
	}
	return t
}

// merged has what is common and what is own; of two values the own one counts.
func merged(common, own any) any {
	all, isMap := common.(map[string]any)
	more, areMaps := own.(map[string]any)
	if !isMap || !areMaps {
		return own
	}
	all = maps.Clone(all)
	for name, v := range more {
		all[name] = merged(all[name], v)
	}
	return all
}

// Decode stores the resource's properties in to, as json.Unmarshal does: the case
// of names does not count.
func (r Resource) Decode(to any) error {
	text, err := json.Marshal(r.Properties)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// Functions are the template's functions, sorted by id.
func (t *Template) Functions() (all []Function, err error) {
	for _, id := range t.ids(FunctionType) {
		f := Function{ID: id}
		if err := t.Resources[id].Decode(&f); err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
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

// ids are those of the resources of a type, sorted.
func (t *Template) ids(kind string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.Resources)), func(id string) bool { return t.Resources[id].Type != kind })
}

// holds says whether a condition holds; "" is none.
func (t *Template) holds(condition string) bool {
	return condition == "" || t.value(t.source.Conditions[condition].v) == true
}

// noValue is what !Ref AWS::NoValue stands for: the property or item is not there.
type noValue struct{}

// value is what a value with functions comes to.
func (t *Template) value(v any) any {
	switch v := v.(type) {
	case []any:
		var all []any
		for _, item := range v {
			if item = t.value(item); item != (noValue{}) {
				all = append(all, item)
			}
		}
		return all
	case map[string]any:
		object := map[string]any{}
		for name, inner := range v {
			if len(v) == 1 {
				if came, known := t.function(name, inner); known {
					return came
				}
			}
			if inner = t.value(inner); inner != (noValue{}) {
				object[name] = inner
			}
		}
		return object
	}
	return v
}

// function is what a function of CloudFormation comes to, if it is known.
func (t *Template) function(name string, arg any) (v any, known bool) {
	args, _ := arg.([]any)
	switch name {
	case "Ref", "Fn::GetAtt":
		if arg == "AWS::NoValue" {
			return noValue{}, true
		}
		if len(args) == 2 {
			arg = fmt.Sprintf("%v.%v", args...)
		}
		return t.text(fmt.Sprintf("${%v}", arg), nil), true
	case "Fn::Sub":
		if len(args) == 2 {
			own, _ := t.value(args[1]).(map[string]any)
			return t.text(fmt.Sprint(args[0]), own), true
		}
		return t.text(fmt.Sprint(arg), nil), true
	case "Fn::ImportValue":
		return t.text(fmt.Sprintf("${import %v}", t.value(arg)), nil), true
	case "Fn::Split":
		var list []any
		for part := range strings.SplitSeq(fmt.Sprint(t.value(args[1])), fmt.Sprint(args[0])) {
			list = append(list, part)
		}
		return list, true
	case "Fn::If":
		if t.holds(fmt.Sprint(args[0])) {
			return t.value(args[1]), true
		}
		return t.value(args[2]), true
	case "Condition":
		condition, is := arg.(string) // a policy's statement may have a Condition, too
		return is && t.holds(condition), is
	case "Fn::Equals":
		return fmt.Sprint(t.value(args[0])) == fmt.Sprint(t.value(args[1])), true
	case "Fn::Not":
		return t.value(args[0]) == false, true
	case "Fn::And":
		return !slices.ContainsFunc(args, func(a any) bool { return t.value(a) != true }), true
	}
	return nil, false
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
		if id, _, attribute := strings.Cut(name, "."); attribute && t.source.Resources[id].Type != "" {
			return name
		}
		return found
	})
}
