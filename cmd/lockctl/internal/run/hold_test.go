package run

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// A guard process that begins after the end of trust starts nothing.
func TestGuardProcessIsLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	itsOrders, orders, err := os.Pipe()
	require.NoError(t, err)
	reports, itsReports, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(lockctl, guardCommand, "0", "touch", file)
	cmd.ExtraFiles = []*os.File{itsOrders, itsReports}
	_, err = orders.WriteString(now().add(-time.Nanosecond).order() + "\n")
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, itsOrders.Close())
	require.NoError(t, itsReports.Close())
	said, err := io.ReadAll(reports)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.NoError(t, orders.Close())
	require.NoError(t, reports.Close())
	assert.Equal(t, "late\n", string(said))
	assert.NoFileExists(t, file)
}

// What lockctl makes of the last report of the guard process.
func TestEnded(t *testing.T) {
	for name, c := range map[string]struct {
		line   string
		status int
		text   string
	}{
		"late":                        {"late", exit.Lost, "was not started"},
		"success":                     {"ended 0 true true", 0, ""},
		"lost":                        {"ended 0 false true", exit.Lost, "was lost"},
		"a process is left":           {"ended 0 true false", 0, ""},
		"a process is left, and lost": {"ended 0 false false", exit.Lost, "was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := guard.New(memstore.New(time.Now), guard.Options{})
			require.NoError(t, err)
			lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute})
			require.NoError(t, err)
			var stderr bytes.Buffer
			h := &hold{settings: &settings{key: "k", ttl: seconds(time.Minute)}, guard: g, lease: lease, until: now().add(lease.TTL), stderr: &stderr}
			err = h.ended(t.Context(), parseReport(c.line))
			assert.Equal(t, c.status, exit.Status(err))
			if err != nil {
				assert.ErrorContains(t, err, c.text)
			}
			left := strings.Contains(name, "left")
			assert.Equal(t, left, strings.Contains(stderr.String(), "cannot be ended"), stderr.String())
			status, err := g.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, left, status.Held)
		})
	}
}
