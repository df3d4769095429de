package samtest

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
)

// TestSAM runs everything under the SAM CLI, once on each store.
func TestSAM(t *testing.T) {
	s := sam{
		program: os.Getenv("SAMTEST_PROGRAM"), built: os.Getenv("SAMTEST_BUILT"),
		arch: os.Getenv("SAMTEST_ARCH"), image: os.Getenv("SAMTEST_IMAGE"),
	}
	if s.program == "" {
		t.Skip("make sam-test runs it, with the SAM CLI and Docker")
	}
	t.Chdir("../..")
	ctx := untilInterrupted(t)
	s.run(t, ctx, "validate", "--lint")
	s.run(t, ctx, "build", "--build-dir", s.built, "--parameter-overrides", "Architecture="+s.arch)
	for name, start := range map[string]func(*testing.T, *template.Template) store{"Redis": startRedis, "DynamoDB": startDynamo} {
		require.NoError(t, ctx.Err())
		t.Run(name, func(t *testing.T) {
			tm := readTemplate(t)
			on := start(t, tm)
			all := newSuite(t, ctx, tm, on)
			at := local{s, on.variables(t, tm)}
			all.serve, all.clients = at.serve, true
			all.once = at.once
			if name == "DynamoDB" { // Redis has shown that each event can have a container of its own
				all.once = at.serve(t, oneByOne).once
			}
			all.run(t)
			t.Run("examples/own-function", func(t *testing.T) { at.example(t, ctx, on) })
		})
	}
}

// TestAWS runs everything on a deployed stack.
func TestAWS(t *testing.T) {
	stack := os.Getenv("STACK")
	if stack == "" {
		t.Skip("make test-aws STACK=name runs it, on a stack in AWS")
	}
	t.Chdir("../..")
	c := openCloud(t, os.Getenv)
	all := c.suite(t, untilInterrupted(t), stack)
	t.Logf("%s replaces the accounts %s and %s, takes the locks of the accounts %s, %s, %s, of the schedule nightly, and some in shared/, and changes nothing else",
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
