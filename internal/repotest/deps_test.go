package repotest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/dependencies.md")

const page = "docs/dependencies.md"

// allowed are the licences that ask for no more than to be named.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// why is what each module is for that a go.mod of ours asks for. Other modules come
// with these.
var why = map[string]string{
	"github.com/aws/aws-lambda-go":                        "the runtime loop, event types, request ids",
	"github.com/aws/aws-sdk-go-v2":                        "requests to AWS and their signatures",
	"github.com/aws/aws-sdk-go-v2/credentials":            "credentials of Lambda's environment and of its endpoint",
	"github.com/aws/aws-sdk-go-v2/service/dynamodb":       "the client of the store",
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager": "the lock service's secret",
	"github.com/aws/aws-sdk-go-v2/service/sqs":            "examples/queue makes busy messages visible again",
	"github.com/aws/aws-sdk-go-v2/service/sfn":            "wakes a state that waits for a lock",
	"github.com/aws/smithy-go":                            "the types of the SDK's errors",
	"github.com/go-zookeeper/zk":                          "the client of the store; it has no dependencies",
	"github.com/redis/go-redis/v9":                        "the client for single servers, Sentinel and clusters",
	"github.com/alicebob/miniredis/v2":                    "tests in virtual time; the server of lockctl local, which then needs only Go",
	"github.com/stretchr/testify":                         "tests",
	"go.uber.org/goleak":                                  "tests: nothing leaves a goroutine behind",
	"go.yaml.in/yaml/v3":                                  "tests and tools read template.yaml",
	"github.com/santhosh-tekuri/jsonschema/v6":            "tests: answers are what the OpenAPI description says",
	"go.etcd.io/etcd/client/v3":                           "the client of examples/etcdstore",
	"go.etcd.io/etcd/api/v3":                              "etcd's error types",
	"google.golang.org/grpc":                              "etcd's codes",
	"github.com/lib/pq":                                   "PostgreSQL in lockctl, the examples and the tests; it has no dependencies, pgx has five; sqlstore has no driver",
	"github.com/jackc/pgx/v5":                             "tests of sqlstore",
	"github.com/go-sql-driver/mysql":                      "MySQL in lockctl and in tests. We do not change its files, which stay under MPL-2.0; a program of any licence may link them",
	"modernc.org/sqlite":                                  "SQLite in lockctl and in tests, without cgo",
	"github.com/aws/aws-cdk-go/awscdk/v2":                 "the lock table in CDK, examples/locktable",
	"github.com/aws/jsii-runtime-go":                      "jsii argument types",
	"github.com/spf13/cobra":                              "commands, flags and their help",
	"github.com/spf13/pflag":                              "flags that all commands of lockctl have",
	"github.com/aws/aws-sdk-go-v2/config":                 "profiles and single sign-on of an operator, for lockctl; the client of examples/queue",
	"github.com/creack/pty":                               "tests: lockctl run at a terminal",
	"golang.org/x/sys":                                    "for github.com/redis/go-redis/v9; clocks, terminals and process groups of lockctl run",
	"golang.org/x/text":                                   "for github.com/santhosh-tekuri/jsonschema/v6 in tests, and golang.org/x/net in cosmosstore",
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos": "requests to Cosmos DB and their signatures",
	"github.com/Azure/azure-sdk-for-go/sdk/azcore":        "the types of the SDK's options",
	"golang.org/x/oauth2":                                 "Google's credentials; the store's requests are plain HTTP",
	"go.opentelemetry.io/otel":                            "what guard/otelguard is for; Lambda's own telemetry speaks it, too",
	"go.opentelemetry.io/otel/metric":                     "OpenTelemetry histograms",
	"go.opentelemetry.io/otel/trace":                      "OpenTelemetry spans",
	"go.opentelemetry.io/otel/sdk":                        "tests: spans that are kept in memory",
	"go.opentelemetry.io/otel/sdk/metric":                 "tests: histograms that are kept in memory",
	"cirello.io/dynamolock/v2":                            "another lock, to compare with",
	"github.com/bsm/redislock":                            "another lock, to compare with",
}

// exceptions are modules with another licence, and the modules of ours that may link them. No function does.
var exceptions = map[string][]string{"github.com/go-sql-driver/mysql": {"bench", "cmd/lockctl", "lockstore/sqlstore/sqltest"}}

// dependency is a module that is used.
type dependency struct {
	version, licence string
	indirect         bool
	parents          []string // modules that import it
	users            []string // folders of our modules that link it
}

// dependencies are the modules that modules of this repository and their tests are
// made of.
func dependencies(t *testing.T, dirs ...string) map[string]*dependency {
	found := map[string]*dependency{}
	for _, dir := range dirs {
		of := map[string]string{} // the module of a package
		all := slices.DeleteFunc(goList(t, dir, "-deps", "-test", "-tags=sam", "./..."), func(p pkg) bool {
			return p.Module == nil || p.Module.Main || strings.HasPrefix(p.Module.Path+"/", module+"/")
		})
		for _, p := range all {
			m := p.Module
			of[p.ImportPath] = m.Path
			if found[m.Path] == nil {
				found[m.Path] = &dependency{version: m.Version, licence: licenceOf(t, m.Dir), indirect: m.Indirect}
			}
			if d := found[m.Path]; !slices.Contains(d.users, dir) {
				d.users = append(d.users, dir)
			}
		}
		for _, p := range all {
			for _, imported := range p.Imports {
				if d := found[of[imported]]; d != nil && of[imported] != p.Module.Path {
					d.parents = append(d.parents, p.Module.Path)
				}
			}
		}
	}
	return found
}

// otherModules are the folders of all modules but the product's.
func otherModules(t *testing.T) (dirs []string) {
	require.NoError(t, walk(func(p string) error {
		if path.Base(p) == "go.mod" && p != "go.mod" {
			dirs = append(dirs, path.Dir(p))
		}
		return nil
	}))
	require.Contains(t, dirs, "verify")
	return dirs
}

var requirement = regexp.MustCompile(`(?m)^(?:require|replace)?\s*(\S+\.\S+/\S+) (v\S+)`)

// TestVersions: the go.mod files and go.work name one version of each module. The tests run with the newest, and a user
// of one module gets its own.
func TestVersions(t *testing.T) {
	texts := map[string]string{"go.work": read(t, "go.work"), "go.mod": read(t, "go.mod")}
	for _, dir := range otherModules(t) {
		texts[dir] = read(t, dir+"/go.mod")
		require.NotContains(t, texts[dir], "replace", "%s: go install refuses a module with it; go.work has the others' folders", dir)
	}
	versions := map[string]string{}
	for name, text := range texts {
		for _, m := range requirement.FindAllStringSubmatch(text, -1) {
			if first := versions[m[1]]; first != "" {
				require.Equal(t, first, m[2], "%s names one version of %s, and another file another", name, m[1])
			}
			versions[m[1]] = m[2]
		}
	}
}

// licenceOf reads a module's licence.
func licenceOf(t *testing.T, dir string) string {
	for _, name := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			return licence(string(text))
		}
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	return "none"
}

// marks are words that no other licence has. The shortest of a family comes last.
var marks = []struct{ licence, text string }{
	{"Apache-2.0", "apache license version 2.0"},
	{"Apache-2.0", "apache license, version 2.0"},
	{"BSD-3-Clause", "neither the name"},
	{"BSD-2-Clause", "redistribution and use in source and binary forms"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose"},
	{"MIT", "permission is hereby granted, free of charge"},
	{"MPL-2.0", "mozilla public license"}, {"not allowed", "gnu general public"}, {"not allowed", "gnu lesser"}, {"not allowed", "gnu affero"},
	{"not allowed", "server side public"}, {"not allowed", "business source"}, {"not allowed", "commons clause"}, {"not allowed", "elastic license"},
}

// licence names the licences in a text.
func licence(text string) string {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	var all []string
	for _, m := range marks {
		known := slices.Contains(all, m.licence) || m.licence == "BSD-2-Clause" && slices.Contains(all, "BSD-3-Clause") ||
			m.licence == "not allowed" && slices.Contains(all, "MPL-2.0") // it names those of GNU, to which a file may change
		if strings.Contains(text, m.text) && !known {
			all = append(all, m.licence)
		}
	}
	if len(all) == 0 {
		return "unknown"
	}
	return strings.Join(all, ", ")
}

// reason is why the module p is there: for us, or for a module that imports it.
func (d dependency) reason(p string) string {
	if why[p] != "" || !d.indirect {
		return why[p]
	}
	return "for " + slices.Min(d.parents)
}

func write(b *strings.Builder, all map[string]*dependency) {
	b.WriteString("| module | version | licence | why |\n| --- | --- | --- | --- |\n")
	for _, p := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", p, all[p].version, all[p].licence, all[p].reason(p))
	}
}

// TestDependencies: each module that is used has an allowed licence and a reason,
// and is on the page.
func TestDependencies(t *testing.T) {
	unused := maps.Clone(why)
	product, others := dependencies(t, "."), dependencies(t, otherModules(t)...)
	for name, all := range map[string]map[string]*dependency{"the product": product, "other modules": others} {
		require.NotEmpty(t, all)
		for p, d := range all {
			refused := slices.ContainsFunc(strings.Split(d.licence, ", "), func(one string) bool { return !slices.Contains(allowed, one) })
			for _, dir := range d.users {
				if refused && !slices.Contains(exceptions[p], dir) {
					t.Errorf("%s, of %s, has the licence %s; allowed are %s", p, dir, d.licence, strings.Join(allowed, ", "))
				}
			}
			if d.reason(p) == "" {
				t.Errorf("%s, of %s, has no reason in why", p, name)
			}
			delete(unused, p)
		}
	}
	require.Empty(t, unused, "modules that are not used")
	for p := range product {
		delete(others, p)
	}

	var b strings.Builder
	b.WriteString(`# Dependencies

Made by ` + "`go test ./internal/repotest -update`" + `. That test fails when a module has
no reason, or another licence than ` + strings.Join(allowed, ", ") + `.
A program links only what its packages need. What only tests need is in no user's program.

`)
	for p, dirs := range exceptions {
		fmt.Fprintf(&b, "%s is an exception. Only these modules may link it: %s.\n\n", p, strings.Join(dirs, ", "))
	}
	write(&b, product)
	b.WriteString("\n## Other modules of this repository\n\nNo program of a user links these, unless the user imports such a module. What is above\nis not repeated.\n\n")
	write(&b, others)
	b.WriteString("\nKnown vulnerabilities in them are not looked up here: `govulncheck` needs its\ndatabase (vuln.go.dev), which CI cannot reach.\n")
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(root, page), []byte(b.String()), 0o644))
		return
	}
	require.Equal(t, b.String(), read(t, page), "run go test ./internal/repotest -update")
}
