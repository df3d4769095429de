package clienttest

import (
	"bufio"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// The tests wait for the ends of leases, so all of them run at once.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	watchdog.Start()
	os.Exit(m.Run())
}

// program is one of clients/.
type program struct {
	file    string
	needs   []string // a command that fails where the program cannot run
	command []string // to which the key is added
}

// bearer is what jobs/job.py and jobs/job.mjs send.
const bearer = "Bearer of a test"

var programs = []program{
	{"lock.py", []string{"python3", "-c", "import sys; sys.exit(sys.version_info < (3, 8))"}, []string{"python3", "jobs/job.py"}},
	{"lock.mjs", []string{"node", "-e", "process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)"}, []string{"node", "jobs/job.mjs"}},
}

func TestClients(t *testing.T) {
	url := serve(t)
	for _, p := range programs {
		t.Run(p.file, func(t *testing.T) {
			t.Parallel()
			for _, file := range []string{"../../clients/" + p.file, p.command[1]} {
				require.FileExists(t, file) // so go test repeats no old result after a change of it
			}
			if text, err := exec.CommandContext(t.Context(), p.needs[0], p.needs[1:]...).CombinedOutput(); err != nil {
				require.Empty(t, os.Getenv("CI"), "%q: %v %s", p.needs, err, text)
				t.Skipf("it cannot run here: %q: %v %s", p.needs, err, text)
			}
			for _, s := range situations {
				if s.only == "" || strings.Contains(s.only, p.file) {
					t.Run(s.name, func(t *testing.T) {
						t.Parallel()
						s.run(newHarness(t, url, p))
					})
				}
			}
		})
	}
}

// serve starts what make serve starts.
func serve(t *testing.T) string {
	binary := filepath.Join(t.TempDir(), "lockctl")
	require.NoError(t, lambdatest.Build(t.Context(), "../../cmd/lockctl", binary))
	cmd := exec.Command(binary, "serve", "0")
	cmd.Env = append(cmd.Environ(), "LOCK_URL=memory://")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(os.Interrupt))
		assert.NoError(t, cmd.Wait(), "it stops in order")
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url := regexp.MustCompile(`http://[0-9.:]+\d`).FindString(line)
	require.NotEmpty(t, url)
	return url
}

const (
	// ttl is of the leases that a situation renews or lets end, which begin asks for with short. A program has to run
	// at least that often, also on a machine that is busy with other tests.
	ttl   = 30 * time.Second
	short = "LOCKS_TTL=30"
	// late is how long after its TTL the lock of a dead holder may still be held, on a
	// machine that is busy with other tests.
	late = 10 * time.Second
)
