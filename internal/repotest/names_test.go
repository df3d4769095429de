package repotest

import (
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

// names finds functions whose folder, resource and events do not have the same name.
func names(top fs.FS) (problems []string, err error) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	folders, err := fs.ReadDir(top, "functions")
	if err != nil {
		return nil, err
	}
	var functions []string
	for _, d := range folders {
		f := d.Name()
		if !d.IsDir() || f == "internal" {
			continue
		}
		functions = append(functions, f)
		text, err := fs.ReadFile(top, "functions/"+f+"/main.go")
		if err != nil {
			add("functions/%s has no main.go: %v", f, err)
		}
		if lines := strings.Count(string(text), "\n"); lines > maxMainLines {
			add("functions/%s/main.go has %d lines; want at most %d: main, key, handle. Move the rest to a package below", f, lines, maxMainLines)
		}
	}

	text, err := fs.ReadFile(top, "template.yaml")
	if err != nil {
		return nil, err
	}
	t, err := template.Parse(text, nil)
	if err != nil {
		return nil, err
	}
	resources, err := t.Functions()
	if err != nil {
		return nil, err
	}
	for _, f := range functions {
		if t.Resources[resourceName(f)].Type != template.FunctionType {
			add("template.yaml has no %s %s for functions/%s: add it", template.FunctionType, resourceName(f), f)
		}
	}
	for _, f := range resources {
		folder, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimPrefix(f.CodeURI, "./"), "/"), "functions/")
		switch {
		case !ok || !slices.Contains(functions, folder):
			add("template.yaml: %s has CodeUri %q, which is no folder of functions/", f.ID, f.CodeURI)
		case resourceName(folder) != f.ID:
			add("template.yaml: %s has CodeUri %q; want the resource to be %s, or the folder's name to fit", f.ID, f.CodeURI, resourceName(folder))
		}
	}

	files, err := fs.Glob(top, "events/*.json")
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, p := range files {
		if strings.HasSuffix(p, ".out.json") {
			continue // the function's test wants the event
		}
		name := strings.TrimSuffix(path.Base(p), ".json")
		function := "" // nightly-report-bad is nightly-report's, also if there is a nightly
		for _, f := range functions {
			if (name == f || strings.HasPrefix(name, f+"-")) && len(f) > len(function) {
				function = f
			}
		}
		has[function] = true
		if function == "" {
			add("%s belongs to no function: begin its name with one of %q", p, functions)
		} else if out := "events/" + name + ".out.json"; !slices.Contains(files, out) {
			add("%s has no %s: add it", p, out)
		}
	}
	for _, f := range functions {
		if !has[f] {
			add("functions/%s has no event: add events/%s.json and events/%s.out.json", f, f, f)
		}
	}
	return problems, nil
}

func TestNames(t *testing.T) {
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
	check(t, func(top fstest.MapFS) { replace(top, "NightlyReportFunction", "NightlyFunction") },
		"no AWS::Serverless::Function NightlyReportFunction", "want the resource to be NightlyReportFunction")
	check(t, func(top fstest.MapFS) { delete(top, "events/nightly-report-bad.out.json") }, "nightly-report-bad.json has no events/nightly-report-bad.out.json")
	check(t, func(top fstest.MapFS) { top["events/other.json"] = &fstest.MapFile{Data: []byte("{}")} }, "belongs to no function")
	check(t, func(top fstest.MapFS) {
		top["functions/nightly/main.go"] = &fstest.MapFile{}
		replace(top, "  NightlyReportFunction", "  NightlyFunction: {Type: 'AWS::Serverless::Function', Properties: {CodeUri: functions/nightly}}\n  NightlyReportFunction")
	}, "functions/nightly has no event")
}
