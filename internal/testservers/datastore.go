package testservers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Datastore starts an empty Firestore emulator in Datastore mode and returns its address. It
// is a part of Google's gcloud and comes from no package registry, so no script installs it:
// without it the test is skipped, also if CI is set.
func Datastore(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no Firestore emulator")
	}
	const missing = "no Firestore emulator is installed, so nothing is tested on it: install gcloud, then run gcloud components install cloud-firestore-emulator"
	gcloud, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip(missing)
	}
	root, err := exec.CommandContext(t.Context(), gcloud, "info", "--format=value(installation.sdk_root)").Output()
	if err != nil {
		t.Skip(missing)
	}
	jar := filepath.Join(strings.TrimSpace(string(root)), "platform", "cloud-firestore-emulator", "cloud-firestore-emulator.jar")
	if _, err := os.Stat(jar); err != nil {
		t.Skip(missing)
	}
	java := find(t, "java", "install Java 11 or newer")
	return start(t, spec{
		name:  "the Firestore emulator",
		ready: answersHTTP,
		command: func(port int, _ string) *exec.Cmd {
			// The emulator's own script would start a second process that nobody ends.
			return exec.Command(java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Duser.language=en", "-cp", jar,
				"com.google.cloud.datastore.emulator.firestore.CloudFirestore", "start",
				"--host=127.0.0.1", "--port="+strconv.Itoa(port), "--database-mode=datastore-mode")
		},
	})
}
