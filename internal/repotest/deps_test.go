package repotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/dependencies.md")

const (
	root = "../.."
	page = root + "/docs/dependencies.md"
)

// allowed are the licences that ask for no more than to be named.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// why is what each module is for. One that another module brings along says for
// which.
var why = map[string]string{
	"github.com/aws/aws-lambda-go":                                     "the runtime loop, event types, request ids",
	"github.com/aws/aws-sdk-go-v2":                                     "requests to AWS and their signatures",
	"github.com/aws/aws-sdk-go-v2/credentials":                         "credentials of Lambda's environment and of its endpoint",
	"github.com/aws/aws-sdk-go-v2/internal/configsources":              "for aws-sdk-go-v2",
	"github.com/aws/aws-sdk-go-v2/internal/endpoints/v2":               "for aws-sdk-go-v2",
	"github.com/aws/aws-sdk-go-v2/service/dynamodb":                    "the client of the store",
	"github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding":    "for service/dynamodb",
	"github.com/aws/aws-sdk-go-v2/service/internal/endpoint-discovery": "for service/dynamodb",
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager":              "the lock service's secret",
	"github.com/aws/smithy-go":                                         "for aws-sdk-go-v2; the types of its errors",
	"github.com/redis/go-redis/v9":                                     "the client for single servers, Sentinel and clusters",
	"github.com/cespare/xxhash/v2":                                     "for go-redis",
	"go.uber.org/atomic":                                               "for go-redis",
	"golang.org/x/sys":                                                 "for go-redis",
	"github.com/alicebob/miniredis/v2":                                 "tests in virtual time; the server of lockctl local, which then needs only Go",
	"github.com/yuin/gopher-lua":                                       "for miniredis",
	"github.com/stretchr/testify":                                      "tests",
	"go.uber.org/goleak":                                               "tests: nothing leaves a goroutine behind",
	"go.yaml.in/yaml/v3":                                               "tests and tools read template.yaml",
	"github.com/santhosh-tekuri/jsonschema/v6":                         "tests: answers are what the OpenAPI description says",
	"golang.org/x/text":                                                "for jsonschema",

	"github.com/Shopify/toxiproxy/v2":                  "delays, resets and slices on the way to a server",
	"github.com/anishathalye/porcupine":                "judges histories",
	"github.com/rs/zerolog":                            "for toxiproxy; keeps it silent",
	"github.com/lib/pq":                                "the driver for the test of examples/sqlfence; it has no dependencies, pgx has five",
	"github.com/beorn7/perks":                          "for toxiproxy",
	"github.com/golang/protobuf":                       "for toxiproxy",
	"github.com/gorilla/mux":                           "for toxiproxy",
	"github.com/mattn/go-colorable":                    "for zerolog",
	"github.com/mattn/go-isatty":                       "for zerolog",
	"github.com/matttproud/golang_protobuf_extensions": "for toxiproxy",
	"github.com/prometheus/client_golang":              "for toxiproxy",
	"github.com/prometheus/client_model":               "for toxiproxy",
	"github.com/prometheus/common":                     "for toxiproxy",
	"github.com/prometheus/procfs":                     "for toxiproxy",
	"github.com/rs/xid":                                "for toxiproxy",
	"google.golang.org/protobuf":                       "for toxiproxy",
	"gopkg.in/tomb.v1":                                 "for toxiproxy",

	"github.com/spf13/cobra": "commands, flags and their help",
	"github.com/spf13/pflag": "for cobra",

	"cirello.io/dynamolock/v2":                                     "another lock, to compare with",
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue": "for dynamolock",
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression":     "for dynamolock",
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams":         "for dynamolock",

	"github.com/bsm/redislock":         "another lock, to compare with",
	"github.com/go-redsync/redsync/v4": "another lock, to compare with",
}

// dependency is a module that is used.
type dependency struct {
	path, version, licence string
	users                  []string // our packages that link it, without tests
}

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath string
	Deps       []string
	Module     *struct {
		Path, Version, Dir string
		Main               bool
	}
}

func list(t *testing.T, dir string, args ...string) (all []goPackage) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Deps,Module"}, args...)...)
	cmd.Dir = filepath.Join(root, dir)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0") // the same page on every machine
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("go list in %s: %v: %s", dir, err, failed.Stderr)
	}
	require.NoError(t, err)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// dependencies are the modules that a module of this repository and its tests are
// made of.
func dependencies(t *testing.T, dir string) map[string]*dependency {
	found, of := map[string]*dependency{}, map[string]string{} // of: the module of a package
	for _, p := range list(t, dir, "-deps", "-test", "./...") {
		if p.Module == nil || p.Module.Main || p.Module.Path == module {
			continue
		}
		of[p.ImportPath] = p.Module.Path
		if found[p.Module.Path] == nil {
			found[p.Module.Path] = &dependency{path: p.Module.Path, version: p.Module.Version, licence: licenceOf(t, p.Module.Dir)}
		}
	}
	for _, p := range list(t, dir, "-tags=lambda.norpc", "./...") {
		for _, dep := range p.Deps {
			if d := found[of[dep]]; d != nil {
				name := strings.TrimPrefix(p.ImportPath, module+"/")
				if !slices.Contains(d.users, name) {
					d.users = append(d.users, name)
				}
			}
		}
	}
	return found
}

// modules are the folders of all modules but the product's.
func modules(t *testing.T) (dirs []string) {
	require.NoError(t, fs.WalkDir(repository, ".", func(p string, d fs.DirEntry, err error) error {
		if path.Base(p) == "go.mod" && p != "go.mod" {
			dirs = append(dirs, path.Dir(p))
		}
		return err
	}))
	require.Contains(t, dirs, "verify")
	return dirs
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

// licence knows a licence by the words that no other one has.
func licence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(part string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(part)) }
	var all []string
	for _, foreign := range []string{"GNU GENERAL PUBLIC", "GNU LESSER", "GNU AFFERO", "Mozilla Public License", "Server Side Public", "Business Source", "Commons Clause", "Elastic License"} {
		if has(foreign) {
			all = append(all, foreign)
		}
	}
	if has("Apache License") && has("Version 2.0") {
		all = append(all, "Apache-2.0")
	}
	if has("Redistribution and use in source and binary forms") {
		if has("Neither the name") {
			all = append(all, "BSD-3-Clause")
		} else {
			all = append(all, "BSD-2-Clause")
		}
	}
	if has("Permission to use, copy, modify, and/or distribute this software for any purpose") {
		all = append(all, "ISC")
	}
	if has("Permission is hereby granted, free of charge") {
		all = append(all, "MIT")
	}
	if len(all) == 0 {
		return "unknown"
	}
	return strings.Join(all, ", ")
}

func isAllowed(licence string) bool {
	for _, one := range strings.Split(licence, ", ") {
		if !slices.Contains(allowed, one) {
			return false
		}
	}
	return true
}

// linkedBy says in a few words whose programs a module is in.
func (d dependency) linkedBy() string {
	var packages, functions []string
	tools := false
	for _, user := range d.users {
		folder, name, _ := strings.Cut(user, "/")
		switch {
		case folder == "functions" && !strings.HasPrefix(name, "internal/"):
			functions = append(functions, name)
		case folder == "boot", folder == "guard" && !strings.HasPrefix(name, "internal/"), folder == "lockstore" && !strings.Contains(name, "/internal/"):
			packages = append(packages, strings.TrimPrefix(user, "lockstore/"))
		case folder == "internal", folder == "cmd":
			tools = true
		}
	}
	switch {
	case len(packages) > 0:
		return "`" + strings.Join(packages, "`, `") + "`"
	case len(functions) > 0:
		return "functions: " + strings.Join(functions, ", ")
	case tools:
		return "tools"
	}
	return "tests"
}

func write(b *strings.Builder, all map[string]*dependency) {
	b.WriteString("| module | version | licence | linked by | why |\n| --- | --- | --- | --- | --- |\n")
	for _, p := range slices.Sorted(maps.Keys(all)) {
		d := all[p]
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", d.path, d.version, d.licence, d.linkedBy(), why[p])
	}
}

// TestDependencies: each module that is used has an allowed licence and a reason,
// and is on the page.
func TestDependencies(t *testing.T) {
	unused := maps.Clone(why)
	product := dependencies(t, ".")
	harness := map[string]*dependency{}
	for _, dir := range modules(t) {
		for p, d := range dependencies(t, dir) {
			d.users = slices.DeleteFunc(d.users, func(user string) bool { return !strings.HasPrefix(user, "cmd/") })
			if harness[p] != nil {
				d.users = append(d.users, harness[p].users...)
			}
			harness[p] = d
		}
	}
	for name, all := range map[string]map[string]*dependency{"the product": product, "other modules": harness} {
		require.NotEmpty(t, all)
		for p, d := range all {
			if !isAllowed(d.licence) {
				t.Errorf("%s, of %s, has the licence %s; allowed are %s", p, name, d.licence, strings.Join(allowed, ", "))
			}
			if why[p] == "" {
				t.Errorf("%s, of %s, has no reason in why", p, name)
			}
			delete(unused, p)
		}
	}
	require.Empty(t, unused, "modules that are not used")
	for p, d := range product {
		if harness[p] != nil {
			d.users = append(d.users, harness[p].users...)
			delete(harness, p)
		}
	}

	var b strings.Builder
	b.WriteString(`# Dependencies

Made by ` + "`go test ./internal/repotest -update`" + `, which fails when a module is missing here, has
no reason, or has another licence than ` + strings.Join(allowed, ", ") + `.
A program links what the packages that it imports link, and nothing else of the
list; what only tests or tools link is in no program of a user.

`)
	write(&b, product)
	b.WriteString("\n## Other modules of this repository\n\nNo program of a user links these, unless the user imports such a module. What is above\nis left out.\n\n")
	write(&b, harness)
	b.WriteString("\nWhat is known of weak points in them is not looked up here: `govulncheck` needs its\ndatabase (vuln.go.dev), which no gate of this project asks.\n")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(b.String()), 0o644))
		return
	}
	there, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(there), "run go test ./internal/repotest -update")
}

func TestLicence(t *testing.T) {
	for want, text := range map[string]string{
		"Apache-2.0":              "Apache License\n  Version 2.0, January 2004",
		"MIT":                     "Permission is hereby granted,\nfree of charge, to any person",
		"BSD-3-Clause":            "Redistribution and use in source and binary forms … Neither the name of",
		"BSD-2-Clause":            "Redistribution and use in source and binary forms",
		"Apache-2.0, MIT":         "Apache License, Version 2.0. Permission is hereby granted, free of charge",
		"Mozilla Public License":  "Mozilla Public License Version 2.0",
		"GNU GENERAL PUBLIC, MIT": "GNU General Public License; Permission is hereby granted, free of charge",
		"unknown":                 "All rights reserved.",
	} {
		require.Equal(t, want, licence(text))
	}
	for licence, want := range map[string]bool{"MIT": true, "Apache-2.0, MIT": true, "unknown": false, "none": false, "GNU GENERAL PUBLIC, MIT": false, "": false} {
		require.Equal(t, want, isAllowed(licence), licence)
	}
}
