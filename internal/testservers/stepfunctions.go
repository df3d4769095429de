package testservers

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// stepFunctionsVersion is the version that install-stepfunctions.sh installs.
const stepFunctionsVersion = "3.0.0"

const installStepFunctions = "run internal/testservers/install-stepfunctions.sh"

// StepFunctions returns a command that runs a script of Node.js, in which
// require("aws-local-stepfunctions") is an interpreter of state machines.
func StepFunctions(t testing.TB, script string) *exec.Cmd {
	t.Helper()
	modules := filepath.Join(cache(t), "aws-local-stepfunctions-"+stepFunctionsVersion, "node_modules")
	if _, err := os.Stat(modules); err != nil {
		missing(t, "aws-local-stepfunctions "+stepFunctionsVersion, installStepFunctions)
	}
	node := filepath.Join(modules, ".bin", "node") // installed if the machine's node is too old
	if _, err := os.Stat(node); err != nil {
		node = find(t, "node", installStepFunctions)
	}
	cmd := exec.CommandContext(t.Context(), node, script)
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	cmd.SysProcAttr = dieWithParent()
	return cmd
}
