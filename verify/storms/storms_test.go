package storms

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/lib/pq" // PostgreSQL's driver
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

func TestMain(m *testing.M) {
	// In make verify each test has dozens of processes: more tests at once would be about a machine that is too slow for its leases. Otherwise all
	// run at once, because they mostly wait.
	if err := flag.Set("test.parallel", strconv.Itoa(sizes().tests)); err != nil {
		panic(err)
	}
	watchdog.Start()
	m.Run()
}

// stores are where the locks are, by LOCK_URL. The function has an opener for each.
var stores = map[string]func(*testing.T) string{
	"Redis":      func(t *testing.T) string { return "redis://" + testservers.Redis(t) },
	"DynamoDB":   func(t *testing.T) string { return testservers.Table(t, testservers.DynamoDB(t), "locks", "key") },
	"ZooKeeper":  func(t *testing.T) string { return "zookeeper://" + testservers.ZooKeeper(t).Addr },
	"PostgreSQL": onPostgreSQL,
}

func onPostgreSQL(t *testing.T) string {
	url := testservers.PostgreSQL(t)
	schema, err := sqlstore.Table{Dialect: sqlstore.PostgreSQL}.Schema()
	require.NoError(t, err)
	db, err := sql.Open("postgres", url)
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), schema)
	require.NoError(t, err)
	return url
}

// size is of a storm.
type size struct {
	events, envs, faults int
	limit                time.Duration
	tests                int // at once

	// A storm with a mistake has several runs, so that its last event comes at any time of a run.
	control      int // its events
	takes, think time.Duration
}

func sizes() size {
	if verifyrecord.Full() {
		return size{1000, 50, 12, 4 * time.Minute, 3, 1000, 400 * time.Millisecond, 0}
	}
	return size{100, 8, 3, 50 * time.Second, 7, 100, 200 * time.Millisecond, 50 * time.Millisecond}
}

// TestStorm: of many events for one key a few run, one after the other, and each event that is answered has a run that began after it: first undisturbed,
// and then while those who wait and those at work are killed (F02 F03) and frozen for longer than their leases (F07 F12), beside another work
// for the same key, and with what was not answered sent again (F64). With a mistake about who covers an event the last number is too small.
func TestStorm(t *testing.T) {
	began := time.Now()
	dir := t.TempDir()
	build := sync.OnceValues(func() (string, error) { // while the servers start
		binary := filepath.Join(dir, "bootstrap")
		return binary, lambdatest.Build(t.Context(), "./function", binary)
	})
	result := verifyrecord.Result{
		Kind: verifyrecord.Processes, Name: "storms of events that one run does for all", Counts: map[string]int64{},
		Limits: []string{"A duplicate request that arrives after its event was answered is in no run: P7 does not hold then."},
	}
	var mu sync.Mutex // guards result
	t.Run("stores", func(t *testing.T) {
		for name, start := range stores {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				is := sizes()
				locks := start(t)
				binary, err := build()
				require.NoError(t, err)
				c := newCrowd(t, binary, locks, "", is.envs-2, 2, 200*time.Millisecond)
				for _, faults := range []int{0, is.faults} {
					ctx, cancel := context.WithTimeout(t.Context(), is.limit)
					o := c.storm(ctx, fmt.Sprint("storm-", faults), is.events, spread(is.events, faults), faults > 0)
					cancel()
					t.Log(o)
					assert.Zero(t, o.lost(), "answered, and no run began after it")
					assert.Greater(t, o.covered, o.runs)
					assert.Zero(t, o.asks, "who is covered at once has sent one request")
					if faults == 0 && o.resent == 0 {
						assert.LessOrEqual(t, o.place, 1, "only one waits")
					}
					if faults > 0 {
						assert.Positive(t, o.kills+o.stops)
					}
					if t.Failed() {
						t.Logf("the last lines:\n%s", strings.Join(c.tail, "\n"))
					}
					mu.Lock()
					result.Violations += int64(o.lost())
					for what, n := range map[string]int64{"SIGKILL": o.kills, "SIGSTOP": o.stops, "runs of a storm": int64(o.runs), "covered events": int64(o.covered)} {
						result.Counts[what] += n
					}
					mu.Unlock()
				}
			})
		}
		// The last event may always come when nothing of the mistake shows: so there are several storms.
		for _, variant := range []string{"a holder covers", "its own place covers", "another work covers"} {
			t.Run(variant, func(t *testing.T) {
				t.Parallel()
				is := sizes()
				ctx, cancel := context.WithTimeout(t.Context(), is.limit)
				defer cancel()
				sorts, faults := 0, []fault(nil)
				switch variant {
				case "its own place covers":
					faults = spread(is.control, 1)
				case "another work covers":
					sorts = 2
				}
				locks := stores["Redis"](t)
				binary, err := build()
				require.NoError(t, err)
				c := newCrowd(t, binary, locks, variant, is.envs-sorts, sorts, is.takes)
				c.think = is.think
				control := verifyrecord.Control{What: "of the events that coalesce: " + variant}
				for n := 0; n < 20 && !control.Shown; n++ {
					o := c.storm(ctx, fmt.Sprint("storm-", n), is.control, faults, sorts > 0)
					t.Log(o)
					control.Shown, control.Saw = o.lost() > 0, fmt.Sprintf("%d events were answered, and no run began after them", o.lost())
				}
				assert.True(t, control.Shown, "the control shows nothing")
				mu.Lock()
				defer mu.Unlock()
				result.Controls = append(result.Controls, control)
			})
		}
	})
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}
