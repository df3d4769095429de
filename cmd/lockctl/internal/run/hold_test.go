package run

import (
	"bytes"
	"context"
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
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
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
			h := &hold{settings: &settings{key: "k", ttl: seconds(time.Minute), killAfter: seconds(defaultKillAfter)}, guard: g, lease: lease, until: now().add(lease.TTL), stderr: &stderr}
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
		h := &hold{settings: &settings{ttl: seconds(c.ttl), killAfter: seconds(c.killAfter)}}
		assert.Equal(t, c.want, h.untilRenewal(c.left), name)
	}
}

// brief is a store that lets nobody trust a lease for long.
type brief struct{ lockstore.Store }

const briefTrust = 2 * time.Second

func (b brief) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	lease, err := b.Store.Acquire(ctx, req)
	lease.TTL = min(lease.TTL, briefTrust)
	return lease, err
}

func (b brief) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	trusted, err := b.Store.Renew(ctx, lease, ttl)
	return min(trusted, briefTrust), err
}

// A long lease is renewed within the trust that was granted.
func TestRenewsWithinTheTrust(t *testing.T) {
	store := &trusting{Store: brief{memstore.New(time.Now)}, timeout: time.Minute, failing: failing{stderr: io.Discard}}
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute})
	require.NoError(t, err)
	h := &hold{settings: &settings{ttl: seconds(time.Minute)}, guard: g, store: store, lease: lease, until: store.until}
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
}

// With the least --ttl DynamoDB lets lockctl trust a lease for half of it.
func TestLeastTTLOnDynamoDB(t *testing.T) {
	url := testservers.Table(t, testservers.DynamoDB(t), "locks", "key")
	var p *process
	for range mostRepeats { // this machine may be too slow for so short a lease
		p = start(t, "", "run", "--store", url, "--ttl", "1", "k", "--", "sleep", "2")
		if p.status(t) == 0 {
			return
		}
		t.Logf("again: %s", p.err.String())
	}
	t.Fatal(p.err.String())
}
