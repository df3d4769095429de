package sqltest

import (
	"database/sql"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestConformance runs the suites by the server's own clock.
func TestConformance(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		table := e.table("lambdalock")
		o := sqlstore.Options{Table: table}
		if e.dialect == sqlstore.PostgreSQL {
			o.Listen = listen(e.dsn(e.addr))
		}
		all := e.rows(t, table)
		// of is the engine and the table of a case: each has a file of its own.
		of := func(t *testing.T) (engine, rows) {
			if e.addr != "" {
				return e, all
			}
			e := sqlite(t)
			return e, e.rows(t, table)
		}
		castest.Run(t, func(t *testing.T) (casstore.KV, castest.Table) {
			e, there := of(t)
			if e.addr == "" {
				return kvOf(store(t, e.pool(t, "", 2), o)), there
			}
			p := testservers.Proxy(t, e.addr)
			db := e.pool(t, p.Addr, 3)
			s := store(t, db, o)
			return kvOf(s), wire{there, p, db, func(t *testing.T) casstore.KV { return kvOf(store(t, e.pool(t, "127.0.0.1:1", 3), o)) }}
		}, beside)
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			e, there := of(t)
			h := castest.Harness(t, kvOf(store(t, e.pool(t, e.addr, 3), o)), casstore.Options{Name: "sqlstore"}, there)
			h.Sequences = 4
			h.TakeoverDelay += 300 * time.Millisecond // a busy machine: a process knows the time of its last reply
			h.Other = func(t *testing.T) *lockstore.Store { return store(t, e.pool(t, e.addr, 3), o) }
			return h
		}, beside)
	})
}

// busy are the cases that compute more than they wait.
var busy = regexp.MustCompile("/(rules|owner|keys|many)/")

// beside is storetest.Parallel, but the busy cases come first, one after the other: the leases of the others are short.
func beside(t *testing.T, f func(*testing.T)) {
	if busy.MatchString(t.Name()) {
		f(t)
		return
	}
	storetest.Parallel(t, f)
}

// wire is a table that can break the network.
type wire struct {
	rows
	proxy       *testservers.CutProxy
	db          *sql.DB
	unreachable func(t *testing.T) casstore.KV
}

func (w wire) during(set func()) func() {
	set()
	return func() {
		w.proxy.Forward()
		w.proxy.Disconnect()
	}
}

// LoseReplies implements castest.Wire.
func (w wire) LoseReplies(*testing.T) func() { return w.during(func() { w.proxy.CutReplies("") }) }

// Hang implements castest.Wire. A request without a connection would not be sent.
func (w wire) Hang(t *testing.T) func() {
	connected(t, w.db, 2)
	return w.during(w.proxy.Swallow)
}

// Unreachable implements castest.Wire.
func (w wire) Unreachable(t *testing.T) casstore.KV { return w.unreachable(t) }

// virtual is a harness inside a synctest bubble: the statements have the time of the bubble.
func (e engine) virtual(t *testing.T, table sqlstore.Table) storetest.Harness {
	var shift atomic.Int64
	there := e.rows(t, table)
	h := castest.Harness(t, kvOf(store(t, e.clocked(t, &shift), sqlstore.Options{Table: table})), casstore.Options{Name: "sqlstore"}, there)
	h.ShiftClock = func(_ *testing.T, d time.Duration) { shift.Store(int64(d)) }
	h.Sequences = 30 // TestRuleBook has more
	return h
}

// TestVirtualTime runs the suite in virtual time.
func TestVirtualTime(t *testing.T) {
	verifyrecord.SkipWithRace(t) // it runs by the server's own clock
	on(t, func(t *testing.T, e engine) {
		storetest.Run(t, func(t *testing.T) storetest.Harness { return e.virtual(t, e.table("lambdalock")) }, synctest.Test)
	})
}

// TestRuleBook compares the store with the rule book by random requests.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test . -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	all := map[string]func(*testing.T) storetest.Harness{}
	for name, start := range engines {
		e := start(t)
		e.create(t, e.table("lambdalock")) // two that do at once may fail
		all[name] = func(t *testing.T) storetest.Harness { return e.virtual(t, e.table("lambdalock")) }
	}
	leasesim.RuleBook(t, "random requests over sqlstore and to the rule book", 15, 1000, all)
}

// A URL of each dialect.
func TestURLs(t *testing.T) {
	e := sqlite(t)
	db := e.pool(t, "", 2)
	for d, url := range map[*sqlstore.Dialect]string{
		sqlstore.PostgreSQL: "postgres://localhost/db?table=locks", sqlstore.MySQL: "mysql://localhost/db?table=locks",
		sqlstore.DSQL: "dsql://localhost/postgres?table=locks", sqlstore.SQLite: "sqlite:///tmp/locks.db?table=locks",
	} {
		parts := []string{"path", "others"}
		if d != sqlstore.SQLite {
			parts = append(parts, "user", "port")
		}
		opener := sqlstore.Opener(func(string) (*sql.DB, error) { return db, nil }, sqlstore.Options{Table: sqlstore.Table{Dialect: d}})
		storetest.URLs(t, opener, func(string) string { return "" }, url, parts...)
	}
	for _, bad := range []string{"Locks", "a b", "a;b", "a.b.c", "1a", `"a"`, "a'b"} {
		_, err := sqlstore.Table{Dialect: sqlstore.MySQL, Name: bad}.Schema()
		require.ErrorIs(t, err, lockstore.ErrInvalid, bad)
	}
}

// The program chooses the driver.
func TestNoDriver(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/lambdalock/lambdalock/lockstore/sqlstore").Output()
	require.NoError(t, err)
	for dep := range strings.Lines(string(out)) {
		domain, _, _ := strings.Cut(dep, "/")
		require.True(t, !strings.Contains(domain, ".") || strings.HasPrefix(dep, "github.com/lambdalock/"), dep)
	}
}
