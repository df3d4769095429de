package storetest

import (
	"os"
	"os/exec"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRunOnABrokenStore is run by TestRunFailsAndExplains in a process of its
// own, because it fails.
func TestRunOnABrokenStore(t *testing.T) {
	runner := map[string]func(*testing.T, func(*testing.T)){"synctest": synctest.Test, "direct": Direct, "parallel": Parallel}[os.Getenv("STORETEST_BROKEN")]
	if runner == nil {
		t.Skip("only in the process that TestRunFailsAndExplains starts")
	}
	Run(t, func(*testing.T) Harness {
		h := newModel("M01 acquire unconditional").harness()
		h.Delete = nil
		return h
	}, runner)
}

func TestRunFailsAndExplains(t *testing.T) {
	for _, runner := range []string{"synctest", "direct", "parallel"} {
		t.Run(runner, func(t *testing.T) {
			t.Parallel()
			text := runAlone(t, "STORETEST_BROKEN="+runner, "-test.run=^TestRunOnABrokenStore$/^(acquire|renew)$/^(a_held_key|a_deleted|a_key)")
			assert.Contains(t, text, "--- FAIL: TestRunOnABrokenStore/acquire/a_held_key_is_refused_F64")
			assert.Contains(t, text, "Two events for the same resource must not both get the lease", "the explanation")
			assert.Contains(t, text, "want it held by another", "what was seen")
			assert.Contains(t, text, "--- SKIP: TestRunOnABrokenStore/renew/a_deleted_entry", "a case that cannot run does not pass")
			assert.Contains(t, text, "the harness has no Delete")
			assert.Contains(t, text, "storetest: 1 of 3 cases skipped: no Delete\n", "the last line says what was not checked")
			assert.Contains(t, text, "--- PASS: TestRunOnABrokenStore/renew/a_key_that_was_never_acquired")
			assert.NotContains(t, text, "Renew never makes a lease", "a case that passes explains nothing")
		})
	}
}

// TestRunOnNothing is run by TestRunSaysWhatIsMissingF51 in a process of its own.
func TestRunOnNothing(t *testing.T) {
	switch os.Getenv("STORETEST_NOTHING") {
	case "open":
		Run(t, nil, Direct)
	case "run":
		Run(t, func(*testing.T) Harness { return Harness{} }, nil)
	case "store":
		Run(t, func(*testing.T) Harness { return Harness{} }, synctest.Test)
	default:
		t.Skip("only in the process that TestRunSaysWhatIsMissingF51 starts")
	}
}

func TestRunSaysWhatIsMissingF51(t *testing.T) {
	for missing, says := range map[string]string{
		"open":  "storetest: Run needs open",
		"run":   "storetest: Run needs open",
		"store": "storetest: the harness has no Store",
	} {
		out := runAlone(t, "STORETEST_NOTHING="+missing, "-test.run=^TestRunOnNothing$/^acquire$/^a_held_key")
		assert.Contains(t, out, says)
		assert.NotContains(t, out, "panic")
	}
}

// runAlone runs tests that fail in a process of their own, and returns what it prints.
func runAlone(t *testing.T, env string, args ...string) string {
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, "-test.v")...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, string(out))
	assert.Equal(t, 1, exit.ExitCode())
	return string(out)
}

func TestCaseNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, tc := range cases() {
		assert.False(t, seen[tc.name], tc.name)
		seen[tc.name] = true
		assert.Regexp(t, `^[A-Z0-9].*\.$`, tc.explanation, tc.name)
	}
}

func TestSummary(t *testing.T) {
	var s summary
	assert.Equal(t, "storetest: 0 of 0 cases skipped", s.String())
	s.add(&check{}, false)
	assert.Equal(t, "storetest: 0 of 1 cases skipped", s.String())
	for _, lacks := range []string{"Snapshot", "Delete", "Snapshot"} {
		s.add(&check{lacks: lacks}, true)
	}
	assert.Equal(t, "storetest: 3 of 4 cases skipped: no Delete, no Snapshot", s.String())
	s.add(nil, true)
	assert.Equal(t, "storetest: 4 of 5 cases skipped: no Delete, no Snapshot, no harness", s.String())
}
