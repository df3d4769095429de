// Package deploy tests the script that deploys the application, without AWS and
// without the SAM CLI: nothing is ever deployed by a test.
package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
)

// TestDeployScript runs deploy.sh with a SAM CLI that writes down how it is
// called and, when it is guided, saves answers as the real one does.
func TestDeployScript(t *testing.T) {
	const fakeSAM = `#!/bin/sh
echo "$* region=$AWS_DEFAULT_REGION cgo=$CGO_ENABLED flags=$GOFLAGS" >>calls
case "$*" in
*--guided*)
	[ -z "$ABORT" ] || exit 1
	[ -n "$ANSWER" ] || exit 0 # who does not save
	printf '%s\n' 's3_prefix = "mine"' 'stack_name = "mine"' 'region = "eu-west-3"' 'parameter_overrides = "LockTtl=\"60s\" Architecture=\"'"$ANSWER"'\" AlarmTopic=\"\""' >>samconfig.deploy.toml ;;
build*) echo "sam deploy --guided" ;;
esac
`
	const fakePython = `#!/bin/sh
[ "$1" = -c ] && exit 0
[ "$2" = stack-policy.json ] && { echo "$*" >>calls; exit "${REFUSED:-0}"; }
echo "$MISSING"
[ -z "$MISSING" ]
`
	if _, err := exec.LookPath("python3"); err != nil {
		require.Empty(t, os.Getenv("CI"), "python3 makes a terminal here")
		t.Skip("python3, which makes a terminal here, is not installed")
	}
	dir := t.TempDir()
	install, err := os.ReadFile("../functions/internal/samtest/install.sh")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^version=(\S+)`).FindSubmatch(install)
	require.NotNil(t, version)
	sam := filepath.Join("cache", "lambdalock", "sam-"+string(version[1]))
	files := map[string]string{
		"functions/internal/samtest/install.sh": string(install), filepath.Join(sam, "complete"): "",
		filepath.Join(sam, "bin", "sam"): fakeSAM, filepath.Join(sam, "bin", "python3"): fakePython,
	}
	for _, file := range []string{"deploy/deploy.sh", "internal/testservers/apt.sh", "samconfig.toml"} {
		text, err := os.ReadFile(filepath.Join("..", file))
		require.NoError(t, err)
		files[file] = string(text)
	}
	for file, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o755))
	}
	script := []string{"sh", "deploy/deploy.sh"}
	run := func(args []string, env ...string) (calls []string, out string, err error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_CACHE_HOME=" + filepath.Join(dir, "cache")}, env...)
		text, err := cmd.CombinedOutput()
		written, _ := os.ReadFile(filepath.Join(dir, "calls")) // absent when nothing was called
		_ = os.Remove(filepath.Join(dir, "calls"))
		return strings.Split(strings.TrimSpace(string(written)), "\n"), string(text), err
	}
	const terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
	deploy := func(env ...string) (calls []string, out string, err error) {
		return run(append([]string{"python3", "-c", terminal}, script...), env...)
	}

	calls, out, err := run(script)
	require.Error(t, err)
	assert.Equal(t, []string{""}, calls, "nothing is built")
	assert.Equal(t, "deploy: the first run asks questions and needs a terminal; nothing was built\n", out)
	calls, out, err = deploy("ARCHITECTURE=x86")
	require.Error(t, err)
	assert.Equal(t, []string{""}, calls, "nothing is built")
	assert.Contains(t, out, "ARCHITECTURE=x86; want arm64 or x86_64")

	calls, out, err = deploy("MISSING=credentials and a region")
	require.Error(t, err)
	assert.Equal(t, []string{""}, calls, "nothing is built")
	for _, want := range []string{"AWS needs credentials and a region", "export AWS_REGION=", "export AWS_ACCESS_KEY_ID=", "AWS_SESSION_TOKEN", "IAM", "Nothing was built"} {
		assert.Contains(t, out, want)
	}
	_, err = os.Stat(filepath.Join(dir, "samconfig.deploy.toml"))
	require.ErrorIs(t, err, os.ErrNotExist)

	built := func(arch, region string) string {
		return "build --parameter-overrides Architecture=" + arch + " region=" + region + " cgo=0 flags=-trimpath -tags=lambda.norpc '-ldflags=-s -w'"
	}
	_, _, err = deploy("ABORT=1", "AWS_REGION=eu-west-1")
	require.Error(t, err)
	for range 2 { // who gave up is asked again, and sees what is built
		calls, out, err = deploy("ABORT=1", "AWS_REGION=eu-west-1", "ARCHITECTURE=x86_64")
		require.Error(t, err)
		assert.Equal(t, []string{built("x86_64", "eu-west-1"), "deploy --guided --config-file samconfig.deploy.toml --stack-name lambdalock --parameter-overrides Architecture=x86_64 region=eu-west-1 cgo= flags="}, calls)
		assert.Contains(t, out, "Enter takes the default")
		assert.Contains(t, out, "built for x86_64")
		assert.NotContains(t, out, "sam deploy --guided", "SAM's advice would pass this script by")
	}
	for range 2 { // who did not save is asked again
		calls, out, err = deploy("AWS_REGION=eu-west-1")
		require.NoError(t, err, out)
		assert.Len(t, calls, 2)
		assert.Contains(t, calls[1], "--guided")
		assert.NotContains(t, out, "test-aws")
	}
	const protected = "- stack-policy.json mine eu-west-3"
	calls, out, err = deploy("ANSWER=arm64", "AWS_REGION=eu-west-1", "AWS_DEFAULT_REGION=eu-west-2")
	require.NoError(t, err, out)
	assert.Equal(t, []string{built("arm64", "eu-west-2"), "deploy --guided --config-file samconfig.deploy.toml --stack-name lambdalock --parameter-overrides Architecture=arm64 region=eu-west-2 cgo= flags=", protected}, calls)
	assert.Contains(t, out, "make test-aws STACK=mine")
	saved, err := os.ReadFile(filepath.Join(dir, "samconfig.deploy.toml"))
	require.NoError(t, err)
	assert.Contains(t, string(saved), "cached = false")
	assert.Equal(t, 1, strings.Count(string(saved), "stack_name"), "samconfig.toml has none for sam delete to go for")

	calls, out, err = run(script, "ARCHITECTURE=x86_64")
	require.Error(t, err)
	assert.Equal(t, []string{""}, calls)
	assert.Equal(t, "deploy: ARCHITECTURE=x86_64, but samconfig.deploy.toml says arm64; remove that file to be asked again\n", out)
	calls, out, err = run(script)
	require.NoError(t, err, out)
	assert.Equal(t, []string{built("arm64", ""), "deploy --config-file samconfig.deploy.toml region= cgo= flags=", protected}, calls, "it is not asked again, and what is saved counts")
	assert.NotContains(t, out, "leave Architecture")
	assert.Contains(t, out, "make test-aws STACK=mine")
	_, out, err = run(script, "ARCHITECTURE=arm64")
	require.NoError(t, err, out)
	_, out, err = run(script, "REFUSED=1")
	require.Error(t, err)
	assert.Contains(t, out, "mine is deployed, but stack-policy.json does not protect it")
}

// TestStackPolicy: the policy, which is one for all stacks, protects all that keeps
// locks or accounts in the templates.
func TestStackPolicy(t *testing.T) {
	text, err := os.ReadFile("../stack-policy.json")
	require.NoError(t, err)
	var policy struct {
		Statement []struct {
			Effect, Resource string
			Action           any
			Condition        struct {
				StringEquals struct{ ResourceType []string }
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &policy))
	require.Len(t, policy.Statement, 2)
	deny := policy.Statement[1]
	assert.Equal(t, "Deny", deny.Effect)
	assert.Equal(t, "*", deny.Resource)
	assert.Equal(t, []any{"Update:Replace", "Update:Delete"}, deny.Action)
	kept := map[string]bool{}
	for _, file := range []string{"../template.yaml", "table.yaml", "cache.yaml"} {
		tm, err := template.Read(file, nil)
		require.NoError(t, err)
		for _, r := range tm.Resources {
			if r.Type == template.TableType || strings.HasPrefix(r.Type, "AWS::ElastiCache::") && strings.HasSuffix(r.Type, "Cache") {
				kept[r.Type] = true
			}
		}
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(kept)), deny.Condition.StringEquals.ResourceType)
}

// TestBuildWithoutTheScript: the script and the page build with the same settings, and without a library of the machine.
func TestBuildWithoutTheScript(t *testing.T) {
	const line = `CGO_ENABLED=0 GOFLAGS="-trimpath -tags=lambda.norpc '-ldflags=-s -w'"`
	for _, file := range []string{"deploy.sh", "README.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.True(t, strings.Contains(string(text), line), file)
	}
}
