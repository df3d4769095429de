package repotest

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxReadmeWords bounds README.md, in words as wc counts them.
const maxReadmeWords = 800

// maxDocsWords bounds the pages in docs/ that nobody generates, in words as wc counts them.
const maxDocsWords = 14_000

// generated are the pages in docs/ that a program writes.
var generated = []string{"benchmarks.md", "dependencies.md", "verification.md"}

// prose is a Markdown text without the blocks of code and output.
func prose(markdown string) string {
	var b strings.Builder
	for i, block := range strings.Split(markdown, "```") {
		if i%2 == 0 {
			b.WriteString(block)
		}
	}
	return b.String()
}

var codeBlock = regexp.MustCompile("(?s)```(?:go|sql)\n(.*?)```")

// goBlocks returns the blocks of Go and of SQL, which stands in constants of Go, of a Markdown text.
func goBlocks(markdown string) (blocks []string) {
	for _, m := range codeBlock.FindAllStringSubmatch(markdown, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// The program of README.md and its test are files that are compiled and run.
func TestReadmeShowsCompiledCode(t *testing.T) {
	readme := goBlocks(read(t, "README.md"))
	require.Len(t, readme, 2)
	for _, command := range []string{"make run", "make test"} {
		assert.Contains(t, read(t, "README.md"), "\n    "+command+" ", "README.md names the two commands that set everything up")
	}
	assert.Equal(t, read(t, "examples/invoice/main.go"), readme[0], "README.md and examples/invoice/main.go; make them the same")
	assert.Contains(t, read(t, "examples/invoice/main_test.go"), "\n"+readme[1], "README.md and examples/invoice/main_test.go; make them the same")

	_, program, _ := strings.Cut(readme[0], "\n)\n") // what stands behind the imports
	n := 1                                           // the line of the package
	for line := range strings.Lines(program) {
		if strings.TrimSpace(line) != "" {
			n++
		}
	}
	assert.LessOrEqual(t, n, 20, "the first program is one that a stranger reads whole")
}

// docs are the pages in docs/.
func docs(t *testing.T) map[string]string {
	names, err := fs.Glob(repository, "docs/*.md")
	require.NoError(t, err)
	pages := map[string]string{}
	for _, name := range names {
		pages[name] = read(t, name)
	}
	return pages
}

// uncompiled finds Go code of a page that stands in none of the Go files. A line "// ..." of the page
// is a gap; the indentation does not count.
func uncompiled(page, markdown string, goFiles []string) (problems []string) {
	for _, block := range goBlocks(markdown) {
		for part := range strings.SplitSeq(lines(block), "\n// ...\n") {
			part = "\n" + strings.Trim(part, "\n") + "\n"
			if !slices.ContainsFunc(goFiles, func(code string) bool { return strings.Contains(code, part) }) {
				problems = append(problems, fmt.Sprintf("%s shows code that no Go file has: %.200s", page, part))
			}
		}
	}
	return problems
}

// lines is a text without indentation, between newlines.
func lines(text string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// The Go code of the pages in docs/ stands in files that are compiled, most of which a test runs.
func TestPagesShowCompiledCode(t *testing.T) {
	var code []string
	for name, text := range goFiles(t) {
		if !strings.Contains(name, "testdata/") {
			code = append(code, lines(text))
		}
	}
	blocks := 0
	for page, markdown := range docs(t) {
		blocks += len(goBlocks(markdown))
		none(t, uncompiled(page, markdown, code))
	}
	require.Greater(t, blocks, 8)

	code = []string{lines("func f() {\n\ta()\n\tb()\n\tc()\n}\n")}
	none(t, uncompiled("p.md", "```go\na()\n// ...\nc()\n```\n", code))
	caught(t, uncompiled("p.md", "```go\na()\nc()\n```\n", code), "p.md shows code that no Go file has")
	caught(t, uncompiled("p.md", "```go\na()\n// ...\nb(1)\n```\n", code), "b(1)")
}

func TestPagesAreShort(t *testing.T) {
	assert.LessOrEqual(t, len(strings.Fields(read(t, "README.md"))), maxReadmeWords, "a page that a stranger reads first")
	words := 0
	for page, markdown := range docs(t) {
		if !slices.Contains(generated, path.Base(page)) {
			words += len(strings.Fields(markdown))
		}
	}
	assert.LessOrEqual(t, words, maxDocsWords, "the pages in docs/ are to stay a thing that one reads: delete before you add")
}

// The code of the lock table stands in a template and in a file of Terraform; the commands stand on the page only.
func TestLockTableOfThePage(t *testing.T) {
	// A table takes no time to live until it is there.
	require.Regexp(t, `(?s)aws dynamodb create-table .*--deletion-protection-enabled\n +aws dynamodb wait table-exists --table-name locks\n +aws dynamodb update-time-to-live --table-name locks `, read(t, "docs/table.md"))
	for language, file := range map[string]string{"yaml": "examples/own-function/template.yaml", "hcl": "examples/locktable/main.tf"} {
		blocks := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(read(t, "docs/table.md"), -1)
		require.NotEmpty(t, blocks)
		for _, block := range blocks {
			for part := range strings.SplitSeq(block[1], "# ...\n") {
				assert.Contains(t, read(t, file), part, "docs/table.md and %s; make them the same", file)
			}
		}
	}
}

var alarm = regexp.MustCompile(`(?m)^  (\w+Alarm):\n`)

// The page has what to do at each alarm.
func TestPageNamesEachAlarm(t *testing.T) {
	page := read(t, "deploy/README.md")
	for _, file := range []string{"template.yaml", "deploy/table.yaml", "deploy/cache.yaml"} {
		alarms := alarm.FindAllStringSubmatch(read(t, file), -1)
		require.NotEmpty(t, alarms)
		for _, m := range alarms {
			row := "\n| `" + m[1] + "`"
			if file != "template.yaml" {
				row += " of `" + file + "`"
			}
			assert.Contains(t, page, row+" |", "deploy/README.md does not say what to do at %s of %s", m[1], file)
		}
	}
}

// The page counts the alarms, and says what they cost.
func TestPageCountsTheAlarms(t *testing.T) {
	text := read(t, "template.yaml")
	alarms := strings.Count(text, "Type: AWS::CloudWatch::Alarm")
	metrics := alarms - strings.Count(text, "      Metrics:\n") + strings.Count(text, "          MetricStat:\n") // $0.10 each
	require.Contains(t, read(t, "deploy/README.md"), fmt.Sprintf("| %d alarms (%d metrics) | $%.2f |", alarms, metrics, float64(metrics)/10))
}

var link = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)

// brokenLinks finds links of a page to files and headings of the repository that are not
// there.
func brokenLinks(top fs.FS, page string) (problems []string, err error) {
	text, err := fs.ReadFile(top, page)
	if err != nil {
		return nil, err
	}
	for _, m := range link.FindAllStringSubmatch(prose(string(text)), -1) {
		file, heading := page, m[2]
		if m[1] != "" {
			file = path.Join(path.Dir(page), m[1])
		}
		if _, err := fs.Stat(top, file); err != nil {
			problems = append(problems, fmt.Sprintf("%s has a link to %s, which is not there", page, file))
			continue
		}
		if heading == "" {
			continue
		}
		target, err := fs.ReadFile(top, file)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(anchors(string(target)), heading) {
			problems = append(problems, fmt.Sprintf("%s has a link to %s#%s, and %s has no such heading", page, file, heading, file))
		}
	}
	return problems, nil
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(markdown string) (names []string) {
	for line := range strings.Lines(markdown) {
		if hashes, title, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.Trim(hashes, "#") == "" {
			names = append(names, strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
					return unicode.ToLower(r)
				}
				return -1
			}, title))
		}
	}
	return names
}

func TestLinks(t *testing.T) {
	pages := 0
	require.NoError(t, walk(func(p string) error {
		if path.Ext(p) != ".md" {
			return nil
		}
		pages++
		problems, err := brokenLinks(repository, p)
		none(t, problems)
		return err
	}))
	require.Greater(t, pages, 5)

	problems, err := brokenLinks(fstest.MapFS{
		"a.md":   {Data: []byte("[x](b/c.md#one-two-3) [y](b/c.md#four) [z](d.md) [here](#nowhere) [web](https://example.com/x)")},
		"b/c.md": {Data: []byte("## One two: 3\n[up](../a.md)")},
	}, "a.md")
	require.NoError(t, err)
	caught(t, problems, "b/c.md#four, and", "a link to d.md, which", "a.md#nowhere, and")
}
