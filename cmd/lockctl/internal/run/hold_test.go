package run

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// guardAlone starts a guard process without lockctl, with its first order. The test reads what
// it reports.
func guardAlone(t *testing.T, first, killAfter string, command ...string) (orders *os.File, reports *bufio.Scanner) {
	t.Helper()
	itsOrders, orders, err := os.Pipe()
	require.NoError(t, err)
	read, itsReports, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(lockctl, append([]string{guardCommand, killAfter}, command...)...)
	cmd.ExtraFiles = []*os.File{itsOrders, itsReports}
	_, err = orders.WriteString(first + "\n")
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, itsOrders.Close())
	require.NoError(t, itsReports.Close())
	t.Cleanup(func() {
		_ = orders.Close() // it ends the command, if there is one
		assert.NoError(t, cmd.Wait())
		assert.NoError(t, read.Close())
	})
	return orders, bufio.NewScanner(read)
}

// A guard process that begins after the end of trust starts nothing.
func TestGuardProcessIsLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	_, reports := guardAlone(t, now().add(-time.Nanosecond).order(), "0", "touch", file)
	require.True(t, reports.Scan())
	assert.Equal(t, "late", reports.Text())
	assert.False(t, reports.Scan())
	assert.NoFileExists(t, file)
}

// A command that was told to end because the lease could not be renewed has not done its work,
// also if it ends with 0 and in time. One that an operator ended has the status that it wants.
func TestGuardProcessTellsWhatItEnded(t *testing.T) {
	for name, c := range map[string]struct{ order, want string }{
		"the end of trust is near": {now().add(time.Minute - time.Second).order(), "ended 0 false true"},
		"SIGTERM of an operator":   {"signal 15", "ended 0 true true"},
		"the end":                  {"end", "ended 0 true true"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			orders, reports := guardAlone(t, now().add(time.Hour).order(), strconv.FormatInt(int64(time.Minute), 10),
				"sh", "-c", `trap 'exit 0' TERM; echo begun > "$1"; while :; do sleep 0.01; done`, "sh", file)
			lines(t, file, 1)
			_, err := orders.WriteString(c.order + "\n")
			require.NoError(t, err)
			require.True(t, reports.Scan())
			assert.Contains(t, reports.Text(), "started ")
			require.True(t, reports.Scan())
			assert.Equal(t, c.want, reports.Text())
		})
	}
}

// The command's own child gets a signal, too, and not only when the command has ended.
func TestGuardProcessSignalsTheGroup(t *testing.T) {
	for name, order := range map[string]string{
		"a signal that is passed on": "signal 15",
		"the end":                    "end",
		"the end of trust is near":   now().add(time.Minute - time.Second).order(),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			begun, told := filepath.Join(dir, "begun"), filepath.Join(dir, "told")
			orders, reports := guardAlone(t, now().add(time.Hour).order(), strconv.FormatInt(int64(time.Minute), 10), "sh", "-c", `trap : TERM
				sh -c 'trap "echo TERM > $2; exit" TERM; echo begun > "$1"; while :; do sleep 0.01; done' sh "$1" "$2" &
				while [ ! -s "$2" ]; do sleep 0.01; done; exit 5`, "sh", begun, told)
			lines(t, begun, 1)
			_, err := orders.WriteString(order + "\n")
			require.NoError(t, err)
			assert.Equal(t, []string{"TERM"}, lines(t, told, 1))
			require.True(t, reports.Scan())
			require.True(t, reports.Scan())
			assert.Regexp(t, "^ended 5 ", reports.Text())
		})
	}
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
		"lost, and renewed too late":  {"ended 143 false true", exit.Lost, "another wrote: no renewal had succeeded when --kill-after, 10s, or less was left of the lease"},
		"a process is left":           {"ended 0 true false", 0, ""},
		"a process is left, and lost": {"ended 0 false false", exit.Lost, "was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := guard.New(memstore.New(time.Now), guard.Options{})
			require.NoError(t, err)
			lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute})
			require.NoError(t, err)
			var stderr bytes.Buffer
			h := &hold{settings: &settings{key: "k", ttl: time.Minute, killAfter: defaultKillAfter}, guard: g, lease: lease, until: now().add(lease.TTL), stderr: &stderr}
			err = h.ended(t.Context(), parseReport(c.line))
			assert.Equal(t, c.status, exit.Status(err))
			if err != nil {
				assert.ErrorContains(t, err, c.text)
			}
			left := strings.Contains(name, "left")
			assert.Equal(t, left, strings.Contains(stderr.String(), "cannot be ended"), stderr.String())
			status, err := g.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, left, status.State.Taken())
		})
	}
}

// The next renewal comes before the guard process sends SIGTERM, also if the store grants
// less trust than the lease that was asked for.
func TestUntilRenewal(t *testing.T) {
	for name, c := range map[string]struct{ ttl, killAfter, left, want time.Duration }{
		"a third of the lease":    {time.Minute, 10 * time.Second, 59 * time.Second, 20 * time.Second},
		"the least lease":         {time.Second, 250 * time.Millisecond, 500 * time.Millisecond, 125 * time.Millisecond},
		"after a lost reply":      {5 * time.Second, 1250 * time.Millisecond, 2500 * time.Millisecond, 625 * time.Millisecond},
		"SIGTERM was sent":        {time.Minute, 10 * time.Second, 9 * time.Second, lookEvery},
		"the end of trust passed": {time.Minute, 0, -time.Second, lookEvery},
	} {
		h := &hold{settings: &settings{ttl: c.ttl, killAfter: c.killAfter}}
		assert.Equal(t, c.want, h.untilRenewal(c.left), name)
	}
}

// brief is a driver that lets nobody trust a lease for long.
type brief struct{ driver.Driver }

const briefTrust = 2 * time.Second

func (b brief) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	a, err := b.Driver.Do(ctx, key, r)
	a.TTL = min(a.TTL, briefTrust)
	return a, err
}

// A long lease is renewed within the trust that was granted.
func TestRenewsWithinTheTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(time.Now).WrapDriver(func(d driver.Driver) driver.Driver { return brief{d} })
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		s := &settings{ttl: time.Minute}
		s.Timeout = time.Minute
		h := &hold{settings: s, store: store, lease: lease, until: now().add(lease.TTL - margin)}
		ctx, stop := context.WithCancel(t.Context())
		answers, joined := make(chan renewal), make(chan struct{})
		go func() {
			defer close(joined)
			h.renew(ctx, answers)
		}()
		for range 3 {
			answer := <-answers
			require.NoError(t, answer.failed)
			require.False(t, answer.lost)
		}
		stop()
		<-joined
	})
}
