//go:build sam

package samtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScriptWithoutAnEngine(t *testing.T) {
	dir := t.TempDir()
	for program, text := range map[string]string{"docker": "exit 1", "id": "echo 1000", "uname": "echo Linux"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	for ci, status := range map[string]int{"": 0, "true": 1} {
		cmd := exec.CommandContext(t.Context(), "sh", "functions/internal/samtest/run.sh")
		cmd.Dir = "../../.."
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "CI=" + ci}
		text, err := cmd.CombinedOutput()
		assert.Equal(t, "samtest: nothing was tested: no Docker engine can run here: none answers, and to start one needs root\n", string(text))
		assert.Equal(t, status, cmd.ProcessState.ExitCode(), "%v", err)
	}
}

func TestNoCredentialsReachTheFunctions(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "a-person's own")
	t.Setenv("AWS_PROFILE", "a-person's own")
	t.Setenv("SAM_CLI_POLL_DELAY", "1")
	for _, v := range environment() {
		assert.NotContains(t, v, "a-person's own")
		assert.NotContains(t, v, "SAM_CLI_POLL_DELAY")
	}
	assert.Contains(t, environment(), "AWS_SECRET_ACCESS_KEY=local")
}
