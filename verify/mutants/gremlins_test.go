package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gremlins is the mutation tester: it changes one operator at a time and runs the
// tests of the package that has it.
const gremlins = "github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0"

// atLeast is the part of the judged mutants that the tests have to kill, ofRules that of the rule
// book. atMost is the part of all that may time out. A mutant that times out is neither killed nor
// alive: most of them never end, but a busy machine makes more of them.
const (
	atLeast = 0.95
	ofRules = 0.97
	atMost  = 0.10
)

// mutation is one of a report. Its key is the text of its line, so that it outlives
// edits elsewhere in the file.
type mutation struct {
	Type, Status string
	Line, Column int
	file, text   string
}

func (m mutation) key() string { return m.file + " " + m.Type + " " + m.text }

// rulesDir is the rule book. It cannot be compared with itself, so what passes its own tests is judged by
// those who use it: by a store that compares and swaps, and by the stores that have rules of their own.
const (
	product  = "github.com/lambdalock/lambdalock/"
	rulesDir = "internal/rules"
)

var withRules = []string{
	"./lockstore/casstore -run '^(TestStore|TestSimulation)$'",
	"./lockstore/redisstore ./lockstore/dynamostore -run '^TestRuleBook$'",
	"./internal/modelcheck -run '^TestSearch$'",
}

// TestGremlins runs in make mutants only: it takes about half an hour on two quiet
// cores. Its subtests are the folders: -run TestGremlins/guard.
//
// What it does not see: gremlins changes no constants, and takes the condition of a
// case for not covered, because go's coverage begins behind it. Planted bugs are for
// these.
func TestGremlins(t *testing.T) {
	if os.Getenv("MUTANTS") != "all" {
		t.Skip("make mutants runs it")
	}
	bin := t.TempDir()
	tool := filepath.Join(bin, "gremlins")
	out, err := command(t.Context(), root, []string{"GOBIN=" + bin}, "go", "install", gremlins)
	require.NoError(t, err, out)
	tellNotCompiled(t, bin)
	for _, dir := range []string{rulesDir, "guard", "lockstore/dynamostore", "lockstore/redisstore"} {
		t.Run(dir, func(t *testing.T) {
			began := time.Now()
			report := filepath.Join(t.TempDir(), "report.json")
			// Tests on real servers depend on the machine and take minutes, so -short
			// leaves them out. A result from go's cache takes no time, and the timeout
			// is made from the time of the first run.
			t.Setenv("GOFLAGS", "-short -count=1 -vet=off")
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			// Not --test-cpu: with it no test runs, and every mutant counts as killed.
			least, coefficient := atLeast, "5"
			if dir == rulesDir { // what survives its own tests is tried by many more
				least, coefficient = ofRules, "100"
			}
			cmd := exec.CommandContext(t.Context(), tool, "unleash", "./"+dir, "--workers", "2", "--timeout-coefficient", coefficient,
				"--exclude-files", "internal/(batchtest|fakedynamo)/", "--output-statuses", "lt", "--output", report)
			cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stdout, os.Stderr
			require.NoError(t, cmd.Run())
			summary, problems := judge(read(t, dir, report), survivors(t, dir), least)
			fmt.Printf("%s, %v: %s\n", dir, time.Since(began).Round(time.Second), summary)
			for _, p := range problems {
				t.Error(p)
			}
		})
	}
}

// tellNotCompiled puts a go command before the real one that tells gremlins by status 2 of
// a mutant that does not compile. From status 1 it would count as killed.
func tellNotCompiled(t *testing.T, bin string) {
	out, err := command(t.Context(), root, nil, "go", "env", "GOROOT")
	require.NoError(t, err, out)
	script := "#!/bin/sh\ngo=" + strings.TrimSpace(out) + `/bin/go
run() {
	out=$("$go" "$@" 2>&1)
	status=$?
	printf '%s\n' "$out"
	case $out in *'[build failed]'*) exit 2 ;; esac
	[ $status = 0 ] || exit $status
}
run "$@"
case "$*" in
*-coverprofile*` + rulesDir + `*) # with the conditions of its cases
	for file in "$PWD"/` + rulesDir + `/*.go; do
		echo "` + product + rulesDir + `/$(basename "$file"):1.1,9999.1 1 1" >> "$4"
	done ;;
test*` + rulesDir + `*)
	cd "$(dirname "$("$go" env GOMOD)")" || exit 1
	export GOFLAGS='-count=1 -vet=off' VERIFY_SEEDS=200
	` + "run test -failfast " + strings.Join(withRules, "\n\trun test -failfast ") + ` ;;
esac
exit 0
`
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755))
}

// read returns the mutations of a report of gremlins over a folder.
func read(t *testing.T, dir, report string) (all []mutation) {
	b, err := os.ReadFile(report)
	require.NoError(t, err)
	var found struct {
		Files []struct {
			Name      string `json:"file_name"`
			Mutations []mutation
		}
	}
	require.NoError(t, json.Unmarshal(b, &found))
	for _, f := range found.Files {
		file := dir + "/" + f.Name
		lines := source(t, file)
		for _, m := range f.Mutations {
			m.file, m.text = file, lines[m.Line-1]
			all = append(all, m)
		}
	}
	return all
}

// source returns the lines of a file without the space around them.
func source(t *testing.T, file string) []string {
	b, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	lines := strings.Split(string(b), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

// survivors returns the keys of survivors.txt below a folder, or all. A mutation is
// there once for each place where it may live.
func survivors(t *testing.T, dir string) (keys []string) {
	b, err := os.ReadFile("survivors.txt")
	require.NoError(t, err)
	for entry := range strings.SplitSeq(strings.TrimSpace(string(b)), "\n\n") {
		if strings.HasPrefix(entry, "#") {
			continue
		}
		key, reason, _ := strings.Cut(entry, "\n")
		require.NotEmpty(t, strings.TrimSpace(reason), "survivors.txt gives no reason for %s", key)
		if dir == "" || strings.HasPrefix(key, dir+"/") {
			keys = append(keys, key)
		}
	}
	return keys
}

// judge counts the mutations and says what is wrong with them. listed are the keys
// of those that may live.
func judge(all []mutation, listed []string, least float64) (summary string, problems []string) {
	count := map[string]int{}
	for _, m := range all {
		count[m.Status]++
		if m.Status != "LIVED" {
			continue
		}
		if i := slices.Index(listed, m.key()); i >= 0 {
			listed = slices.Delete(slices.Clone(listed), i, i+1)
			continue
		}
		problems = append(problems, fmt.Sprintf("%s:%d:%d lived; kill it, or give the reason why it changes nothing in survivors.txt:\n%s",
			m.file, m.Line, m.Column, m.key()))
	}
	killed, judged := count["KILLED"], count["KILLED"]+count["LIVED"]
	late := count["TIMED OUT"]
	summary = fmt.Sprintf("%d killed, %d lived, %d timed out, %d not compiled, %d not covered",
		killed, count["LIVED"], late, count["NOT VIABLE"], count["NOT COVERED"])
	for _, key := range listed {
		summary += "\n  no longer lives, or timed out: take it out of survivors.txt: " + key
	}
	if float64(killed) < least*float64(judged) || judged == 0 {
		problems = append(problems, fmt.Sprintf("%d of %d were killed; want %.0f %%", killed, judged, 100*least))
	}
	if float64(late) > atMost*float64(judged+late) {
		problems = append(problems, fmt.Sprintf("%d of %d timed out, so too few were judged: run it on a quieter machine", late, judged+late))
	}
	return summary, problems
}

// A mutant that lives has to be listed, each one; and a run that killed too little, or
// judged too little, is no good result.
func TestJudge(t *testing.T) {
	mutations := func(status string, n int) []mutation {
		return slices.Repeat([]mutation{{Type: "CONDITIONALS_BOUNDARY", Status: status, Line: 7, Column: 9, file: "guard/a.go", text: "if a < b {"}}, n)
	}
	const key = "guard/a.go CONDITIONALS_BOUNDARY if a < b {"
	for name, c := range map[string]struct {
		killed, lived, late int
		listed              []string
		summary, problem    string
	}{
		"all killed":         {killed: 20, summary: "20 killed, 0 lived, 0 timed out"},
		"listed":             {killed: 38, lived: 2, listed: []string{key, key}, summary: "38 killed, 2 lived"},
		"one place too many": {killed: 38, lived: 2, listed: []string{key}, problem: "guard/a.go:7:9 lived; kill it, or give the reason why it changes nothing in survivors.txt:\n" + key},
		"another line":       {killed: 20, lived: 1, listed: []string{key + " // x"}, problem: "guard/a.go:7:9 lived"},
		"lives no longer":    {killed: 20, listed: []string{key}, summary: "take it out of survivors.txt: " + key},
		"too many listed":    {killed: 18, lived: 1, listed: []string{key}, problem: "18 of 19 were killed; want 95 %"},
		"nothing judged":     {problem: "0 of 0 were killed"},
		"too many timed out": {killed: 17, late: 2, problem: "2 of 19 timed out, so too few were judged"},
		"a few timed out":    {killed: 18, late: 2, summary: "2 timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			summary, problems := judge(slices.Concat(mutations("KILLED", c.killed), mutations("LIVED", c.lived), mutations("TIMED OUT", c.late)), c.listed, atLeast)
			require.Contains(t, summary, c.summary)
			if c.problem == "" {
				require.Empty(t, problems)
			} else {
				require.Len(t, problems, 1)
				require.Contains(t, problems[0], c.problem)
			}
		})
	}
}

// An entry whose line has been edited lists nothing any more.
func TestEverySurvivorIsInTheSource(t *testing.T) {
	for _, key := range survivors(t, "") {
		parts := strings.SplitN(key, " ", 3)
		require.Len(t, parts, 3, key)
		require.Contains(t, source(t, parts[0]), parts[2], key)
	}
}
