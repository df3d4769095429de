//go:build sam

package samtest

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
)

// TestSAM runs everything under the SAM CLI, once on each store. The stores run side by
// side: for most of its time the SAM CLI starts and stops one container.
func TestSAM(t *testing.T) {
	s := sam{
		program: os.Getenv("SAMLOCAL_PROGRAM"), built: os.Getenv("SAMLOCAL_BUILT"),
		arch: os.Getenv("SAMLOCAL_ARCH"), image: os.Getenv("SAMLOCAL_IMAGE"),
	}
	if s.program == "" {
		t.Skip("make sam-test runs it")
	}
	t.Chdir("../../..")
	ctx := untilInterrupted(t)
	for _, file := range []string{"template.yaml", "deploy/table.yaml", "deploy/part.yaml", "deploy/cache.yaml", "examples/own-function/template.yaml", "examples/reindex/template.yaml"} {
		s.run(t, ctx, "validate", "--lint", "--template-file", file)
	}
	s.run(t, ctx, "build", "--build-dir", s.built, "--parameter-overrides", "Architecture="+s.arch)
	s.printed(t, ctx, "sam build", "--build-dir", s.builtExample(), "--parameter-overrides", "Architecture="+s.arch)
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, ctx.Err())
			tm := readTemplate(t)
			on := start(t, tm)
			all := newSuite(t, ctx, tm, on)
			at := local{s, on.variables(t, tm), filepath.Join(t.TempDir(), "variables.json"), containerInterface()}
			all.serve = at.serve
			all.once = at.once
			if name != "Redis" { // where each event has a container of its own
				all.once = at.serve(t, "start-lambda").once
			}
			if name == "ZooKeeper" {
				all.onZooKeeper(t)
				return
			}
			all.run(t)
			t.Run(example, func(t *testing.T) { at.example(t, ctx, on) })
		})
	}
}

// TestAWS runs everything on a deployed stack.
func TestAWS(t *testing.T) {
	stack := os.Getenv("STACK")
	if stack == "" {
		t.Skip("make test-aws STACK=name runs it, on a stack in AWS")
	}
	t.Chdir("../../..")
	c := openCloud(t, os.Getenv)
	all := c.suite(t, untilInterrupted(t), stack)
	t.Logf("%s replaces the accounts %s and %s, takes the locks of the accounts %s, %s, %s, of a nightly event, and some in shared/, and changes nothing else",
		stack, account, another, account, nobody, another)
	all.run(t)
}

// untilInterrupted ends when a person interrupts the run, or when it takes too long:
// all checks fail then, and what was started is stopped.
func untilInterrupted(t *testing.T) context.Context {
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func readTemplate(t require.TestingT) *template.Template {
	tm, err := template.Read("template.yaml", nil)
	require.NoError(t, err)
	return tm
}
