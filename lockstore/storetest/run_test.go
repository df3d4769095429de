package storetest

import (
	"os"
	"os/exec"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRunThatFails fails. Other tests run it in another process.
func TestRunThatFails(t *testing.T) {
	broken := func(*testing.T) Harness {
		h := newWrong("M01 acquire unconditional").harness()
		h.Delete = nil
		return h
	}
	nothing := func(*testing.T) Harness { return Harness{} }
	switch os.Getenv("STORETEST_FAILS") {
	case "synctest":
		Run(t, broken, synctest.Test)
	case "parallel":
		Run(t, broken, Parallel)
	case "no open":
		Run(t, nil, Parallel)
	case "no run":
		Run(t, nothing, nil)
	case "no store":
		Run(t, nothing, synctest.Test)
	default:
		t.Skip("only in the process that runAlone starts")
	}
}

func TestRunFailsAndExplains(t *testing.T) {
	for _, how := range []string{"synctest", "parallel"} {
		text := runAlone(t, how)
		for _, has := range []string{
			"--- FAIL: TestRunThatFails/contention/one_of_many_wins_F01_F64", "16 of 16 were granted the key; want 1", "Exactly one is granted the key",
			"--- SKIP: TestRunThatFails/fence/grows_when_its_entry", "the harness has no Delete", "storetest: 1 of 3 cases skipped: no Delete\n",
			"--- PASS: TestRunThatFails/fence/counts_in_microseconds",
		} {
			assert.Contains(t, text, has, how)
		}
		assert.NotContains(t, text, "A fence is at least the time", "a case that passes explains nothing")
	}
	for how, says := range map[string]string{
		"no open": "storetest: Run needs open", "no run": "storetest: Run needs open", "no store": "storetest: the harness has no Store",
	} {
		text := runAlone(t, how)
		assert.Contains(t, text, says, "F51")
		assert.NotContains(t, text, "panic")
	}
}

// runAlone runs three cases of TestRunThatFails in another process, and returns the output.
func runAlone(t *testing.T, how string) string {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestRunThatFails$/^(contention|fence)$/^(one_of|grows_when|counts_in)")
	cmd.Env = append(os.Environ(), "STORETEST_FAILS="+how)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, string(out))
	assert.Equal(t, 1, exit.ExitCode())
	return string(out)
}

func TestExplanationsAreSentences(t *testing.T) {
	for _, tc := range cases() {
		assert.Regexp(t, `^[A-Z0-9].*\.$`, tc.explanation, tc.name)
	}
}
