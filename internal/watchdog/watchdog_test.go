package watchdog

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process whose tests hang ends within two minutes, and names them.
func TestHangsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes more than a minute")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHangs$", "-test.timeout=10m", "-test.parallel=8")
	cmd.Env = append(os.Environ(), "HANGS=1")
	began := time.Now()
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	_, stacks, _ := strings.Cut(string(out), "panic: a test has waited for more than a minute")
	stacks, _, _ = strings.Cut(stacks, "created by github.com") // of the panic itself
	for _, name := range []string{"channel", "group", "network", "cleanup"} {
		require.Contains(t, stacks, "watchdog."+name)
	}
	require.NotContains(t, stacks, "testing.(*T).Run(", "who waits for its subtests does not hang")
	require.Less(t, time.Since(began), 2*time.Minute)
}

func channel(*testing.T) { <-make(chan int) }

func group(*testing.T) {
	var all sync.WaitGroup
	all.Add(1)
	all.Wait()
}

func network(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, err = l.Accept()
	require.NoError(t, err)
}

func cleanup(t *testing.T) {
	t.Cleanup(func() { channel(t) })
}

// TestHangs is what TestHangsAreFound runs.
func TestHangs(t *testing.T) {
	if os.Getenv("HANGS") == "" {
		t.Skip("it hangs")
	}
	Start()
	for name, hang := range map[string]func(t *testing.T){"channel": channel, "group": group, "network": network, "cleanup": cleanup} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hang(t)
		})
	}
}
