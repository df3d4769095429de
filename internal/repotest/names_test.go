package repotest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
)

const maxMainLines = 50

// functionNames returns the folders of functions/ that are deployed.
func functionNames(top fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(top, "functions")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "internal" {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// resourceName is the name in the template: nightly-report is
// NightlyReportFunction.
func resourceName(function string) string {
	name := ""
	for part := range strings.SplitSeq(function, "-") {
		if part != "" {
			name += strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return name + "Function"
}

// names finds functions whose folder, resource and events do not go by one
// name.
func names(top fs.FS) (problems []string, err error) {
	functions, err := functionNames(top)
	if err != nil {
		return nil, err
	}
	for _, f := range functions {
		text, err := fs.ReadFile(top, "functions/"+f+"/main.go")
		if err != nil {
			problems = append(problems, fmt.Sprintf("functions/%s has no main.go: %v", f, err))
			continue
		}
		if lines := strings.Count(string(text), "\n"); lines > maxMainLines {
			problems = append(problems, fmt.Sprintf("functions/%s/main.go has %d lines; want at most %d: main, key, handle. Move the rest to a package below functions/internal", f, lines, maxMainLines))
		}
	}
	more, err := resources(top, functions)
	if err != nil {
		return nil, err
	}
	problems = append(problems, more...)
	more, err = eventFiles(top, functions)
	return append(problems, more...), err
}

// resources compares the template with the functions, both ways.
func resources(top fs.FS, functions []string) (problems []string, err error) {
	text, err := fs.ReadFile(top, "template.yaml")
	if err != nil {
		return nil, err
	}
	t, err := template.Parse(text, nil)
	if err != nil {
		return nil, fmt.Errorf("template.yaml: %w", err)
	}
	found, err := t.Functions()
	if err != nil {
		return nil, fmt.Errorf("template.yaml: %w", err)
	}
	for _, f := range functions {
		if t.Resources[resourceName(f)].Type != template.FunctionType {
			problems = append(problems, fmt.Sprintf("template.yaml has no %s %s for functions/%s: add it", template.FunctionType, resourceName(f), f))
		}
	}
	for _, f := range found {
		folder, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimPrefix(f.CodeURI, "./"), "/"), "functions/")
		switch {
		case !ok || !slices.Contains(functions, folder):
			problems = append(problems, fmt.Sprintf("template.yaml: %s has CodeUri %q, which is no folder of functions/", f.ID, f.CodeURI))
		case resourceName(folder) != f.ID:
			problems = append(problems, fmt.Sprintf("template.yaml: %s has CodeUri %q; want the resource to be %s, or the folder's name to fit", f.ID, f.CodeURI, resourceName(folder)))
		}
	}
	return problems, nil
}

// events looks for events without a function, functions without an event and
// events without their expected output, both ways.
func eventFiles(top fs.FS, functions []string) (problems []string, err error) {
	files, err := fs.Glob(top, "events/*")
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, p := range files {
		text, err := fs.ReadFile(top, p)
		if err != nil {
			return nil, err
		}
		if in, ok := strings.CutSuffix(p, ".held"); ok {
			if !slices.Contains(files, in+".json") {
				problems = append(problems, fmt.Sprintf("%s is the held key of no event: add %s.json", p, in))
			}
			continue
		}
		if !strings.HasSuffix(p, ".json") || !json.Valid(text) {
			problems = append(problems, fmt.Sprintf("%s is not JSON: mend it or take it away", p))
			continue
		}
		if in, ok := strings.CutSuffix(p, ".out.json"); ok {
			if !slices.Contains(files, in+".json") {
				problems = append(problems, fmt.Sprintf("%s is the output of no event: add %s.json", p, in))
			}
			continue
		}
		name := strings.TrimSuffix(path.Base(p), ".json")
		function := "" // nightly-report-bad is nightly-report's, also if there is a nightly
		for _, f := range functions {
			if (name == f || strings.HasPrefix(name, f+"-")) && len(f) > len(function) {
				function = f
			}
		}
		if function == "" {
			problems = append(problems, fmt.Sprintf("%s belongs to no function: begin its name with one of %q", p, functions))
			continue
		}
		has[function] = true
		if out := strings.TrimSuffix(p, ".json") + ".out.json"; !slices.Contains(files, out) {
			problems = append(problems, fmt.Sprintf("%s has no expected output: add %s", p, out))
		}
	}
	for _, f := range functions {
		if !has[f] {
			problems = append(problems, fmt.Sprintf("functions/%s has no event: add events/%s.json and events/%s.out.json", f, f, f))
		}
	}
	return problems, nil
}

func TestNames(t *testing.T) {
	functions, err := functionNames(repository)
	require.NoError(t, err)
	require.NotEmpty(t, functions)
	problems, err := names(repository)
	require.NoError(t, err)
	none(t, problems)
}

func TestNamesCatch(t *testing.T) {
	good := func() fstest.MapFS {
		return fstest.MapFS{
			"functions/nightly-report/main.go":   {Data: []byte(strings.Repeat("\n", maxMainLines))},
			"functions/internal/x/x.go":          {},
			"events/nightly-report.json":         {Data: []byte("{}")},
			"events/nightly-report.out.json":     {Data: []byte("{}")},
			"events/nightly-report-bad.json":     {Data: []byte("{}")},
			"events/nightly-report-bad.out.json": {Data: []byte("{}")},
			"events/nightly-report.held":         {Data: []byte("schedule/nightly")},
			"template.yaml": {Data: []byte("Conditions: {A: !Equals [a, b]}\nResources:\n" +
				"  Locks: {Type: 'AWS::DynamoDB::Table', Properties: {TableName: !Sub '${AWS::StackName}-locks'}}\n" +
				"  NightlyReportFunction:\n    Type: AWS::Serverless::Function\n    Properties:\n      CodeUri: functions/nightly-report\n" +
				"      Role: !GetAtt [Role, Arn]\n      Layers: !If [A, [!Ref B], !Ref 'AWS::NoValue']\n")},
		}
	}
	check := func(t *testing.T, change func(fstest.MapFS), parts ...string) {
		t.Helper()
		top := good()
		change(top)
		problems, err := names(top)
		require.NoError(t, err)
		caught(t, problems, parts...)
	}
	replace := func(top fstest.MapFS, old, new string) {
		text := string(top["template.yaml"].Data)
		top["template.yaml"] = &fstest.MapFile{Data: []byte(strings.Replace(text, old, new, 1))}
	}
	check(t, func(fstest.MapFS) {})
	check(t, func(top fstest.MapFS) {
		top["functions/nightly-report/main.go"].Data = []byte(strings.Repeat("\n", 51))
	}, "has 51 lines")
	check(t, func(top fstest.MapFS) {
		delete(top, "functions/nightly-report/main.go")
		top["functions/nightly-report/x.go"] = &fstest.MapFile{}
	}, "no main.go")
	check(t, func(top fstest.MapFS) { replace(top, "NightlyReportFunction", "NightlyFunction") },
		"no AWS::Serverless::Function NightlyReportFunction", "want the resource to be NightlyReportFunction")
	check(t, func(top fstest.MapFS) { replace(top, "functions/nightly-report", ".") }, `CodeUri "."`)
	check(t, func(top fstest.MapFS) { replace(top, "Serverless::Function", "Lambda::Function") }, "no AWS::Serverless::Function NightlyReportFunction")
	check(t, func(top fstest.MapFS) { delete(top, "events/nightly-report-bad.out.json") }, "add events/nightly-report-bad.out.json")
	check(t, func(top fstest.MapFS) { delete(top, "events/nightly-report-bad.json") }, "is the output of no event")
	check(t, func(top fstest.MapFS) { top["events/nightly-report-late.held"] = &fstest.MapFile{} }, "is the held key of no event")
	check(t, func(top fstest.MapFS) { top["events/other.json"] = &fstest.MapFile{Data: []byte("{}")} }, "belongs to no function")
	check(t, func(top fstest.MapFS) { top["events/nightly-report.json"].Data = []byte("{") }, "is not JSON")
	check(t, func(top fstest.MapFS) {
		top["functions/nightly/main.go"] = &fstest.MapFile{}
		replace(top, "  NightlyReportFunction", "  NightlyFunction: {Type: 'AWS::Serverless::Function', Properties: {CodeUri: functions/nightly}}\n  NightlyReportFunction")
	}, "functions/nightly has no event")
}
