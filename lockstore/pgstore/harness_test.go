package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestMain(m *testing.M) {
	watchdog.Start()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// TestConformance runs the suite by the server's own clock.
func TestConformance(t *testing.T) {
	url := testservers.PostgreSQL(t)
	create(t, direct(t, url), DefaultTable, "")
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		h := harness(t, url, DefaultTable)
		h.Sequences = 4
		return h
	}, storetest.Parallel)
}

// TestVirtualTime runs the suite in virtual time: the function asks a sequence what time it is.
func TestVirtualTime(t *testing.T) {
	verifyrecord.SkipWithRace(t) // it runs by the server's own clock
	url := testservers.PostgreSQL(t)
	storetest.Run(t, inBubble(url), synctest.Test)
}

// TestRuleBook compares the store with the rule book by random requests.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test . -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	url := testservers.PostgreSQL(t)
	leasesim.RuleBook(t, "random requests over PostgreSQL and to the rule book", 20, 1000, map[string]func(*testing.T) storetest.Harness{"PostgreSQL": inBubble(url)})
}

func inBubble(url string) func(*testing.T) storetest.Harness {
	return func(t *testing.T) storetest.Harness {
		h, _ := virtual(t, url)
		return h
	}
}

// direct is a database for the test's own statements.
func direct(t testing.TB, url string) *sql.DB {
	db, err := sql.Open("postgres", url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func run(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(context.Background(), statement, args...)
	require.NoError(t, err)
}

// create makes the table. clock, if it is not "", is a function in place of the server's clock.
func create(t testing.TB, db *sql.DB, table Table, clock string) {
	t.Helper()
	schema, err := table.Schema()
	require.NoError(t, err)
	if clock != "" {
		schema = strings.ReplaceAll(schema, "clock_timestamp()", clock)
	}
	run(t, db, schema)
}

var schemas atomic.Int32

// virtual is a harness inside a synctest bubble. Its table has a clock of its own, which shows the time of the bubble.
func virtual(t *testing.T, url string) (h storetest.Harness, table string) {
	db := direct(t, url)
	s := fmt.Sprintf("s%d", schemas.Add(1))
	run(t, db, fmt.Sprintf("CREATE SCHEMA %[1]s; CREATE SEQUENCE %[1]s.now;"+
		"CREATE FUNCTION %[1]s.clock() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz 'epoch' + last_value * interval '1 microsecond' FROM %[1]s.now $$", s))
	t.Cleanup(func() { run(t, db, "DROP SCHEMA "+s+" CASCADE") })
	create(t, db, Table(s+".locks"), s+".clock()")
	var shift atomic.Int64
	tick := func() {
		run(t, db, "SELECT setval('"+s+".now', $1)", time.Now().Add(time.Duration(shift.Load())).UnixMicro())
	}
	h = harness(t, url, Table(s+".locks"))
	h.Store = h.Store.WrapDriver(func(d driver.Driver) driver.Driver { return clocked{d.(*server), tick} })
	h.ShiftClock = func(_ *testing.T, d time.Duration) { shift.Store(int64(d)) }
	h.Delay = nil // while a request is under way, the time of the bubble stands still
	return h, s + ".locks"
}

// clocked sets the clock before each request.
type clocked struct {
	*server
	tick func()
}

func (c clocked) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	c.tick()
	return c.server.Do(ctx, key, r)
}

func (c clocked) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	c.tick() // Await reads after a pause, and the clock is behind by then, as an old read is
	return c.server.Await(ctx, key, r)
}

func (c clocked) List(ctx context.Context, prefix string, page func(driver.Page) error) error {
	c.tick()
	return c.server.List(ctx, prefix, page)
}

// harness is the common part. The suite changes rows through another database than the store.
func harness(t *testing.T, url string, table Table) storetest.Harness {
	db, wire := openWire(t, url)
	store, err := New(db, Options{Table: table})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	own := direct(t, url)
	change := func(set string) func(*testing.T, string) {
		return func(t *testing.T, key string) {
			run(t, own, "UPDATE "+string(table)+" SET "+set+" WHERE key = $1", key)
		}
	}
	// leases are those of a key whose last fence is 9: owner, fence, seat, MaxHolders, and whether the work has started.
	leases := func(all ...any) func(*testing.T, string) {
		var rows []string
		for h := range slices.Chunk(all, 5) {
			rows = append(rows, fmt.Sprintf("ROW('%v', %v, %v, %v, 1, 1000000, '', false, false, %v)::%s_holder", append(h, table)...))
		}
		return change("fence = 9, holders = ARRAY[" + strings.Join(rows, ",") + "]")
	}
	return storetest.Harness{
		Store:    store,
		Parks:    true,
		Marks:    marks,
		Places:   places,
		Requests: func() int { return int(wire.requests.Load()) },
		Delete:   func(t *testing.T, key string) { run(t, own, "DELETE FROM "+string(table)+" WHERE key = $1", key) },
		Dump: func(t *testing.T, key string) string {
			var text string
			err := own.QueryRow("SELECT coalesce((SELECT t::text FROM "+string(table)+" t WHERE key = $1), '')", key).Scan(&text)
			require.NoError(t, err)
			return text
		},
		Snapshot: func(t *testing.T, key string) func() {
			run(t, own, "CREATE TABLE IF NOT EXISTS "+string(table)+"_saved (LIKE "+string(table)+")")
			run(t, own, "DELETE FROM "+string(table)+"_saved WHERE key = $1", key)
			run(t, own, "INSERT INTO "+string(table)+"_saved SELECT * FROM "+string(table)+" WHERE key = $1", key)
			return func() {
				run(t, own, "DELETE FROM "+string(table)+" WHERE key = $1", key)
				run(t, own, "INSERT INTO "+string(table)+" SELECT * FROM "+string(table)+"_saved WHERE key = $1", key)
			}
		},
		Foreign: map[string]func(*testing.T, string){
			"a row by hand": func(t *testing.T, key string) {
				run(t, own, "INSERT INTO "+string(table)+" VALUES ($1, -1, '{}', '{}', '{}', '{}', '{}', '{}', '{}', NULL, NULL, NULL, NULL, now())", key)
			},
		},
		Corrupt: map[string]func(*testing.T, string){
			"no owner":       change("holders[1].owner = NULL"),
			"TTL is huge":    change("holders[1].ttl = 9000000000000000000"),
			"fence too high": change("holders[1].fence = fence + 1"),
			"half closed":    change("closed_since = 17"),
			"fences fall":    leases("a", 9, 0, 2, false, "b", 8, 1, 2, false),
			"an owner twice": leases("a", 8, 0, 2, false, "a", 9, 1, 2, false),
			"a seat twice":   leases("a", 8, 1, 2, false, "b", 9, 1, 2, false),
			"one too many":   leases("a", 8, 0, 2, false, "b", 9, 1, 1, false),
			"started beside": leases("a", 9, 0, 2, true),
			"a mark more":    change("ended = ended || 'a'::text"),
			"a mark of NULL": change("ended = '{NULL}', ended_as = '{released 1}'"),
			"a mark is NULL": change("ended = '{a}', ended_as = '{NULL}'"),
			"marks, a table": change("ended = '{{a,b}}', ended_as = '{{released 1,released 2}}'"),
			"marks from 5":   change("ended = '[5:5]={a}', ended_as = '[5:5]={released 1}'"),
		},
		DamageQueue: map[string]func(*testing.T, string){
			"one is nobody":     change("queue[1] = NULL"),
			"one is empty":      change("queue[1] = ''"),
			"cut short":         change("queue = queue || 'me'::text, queue_turn = '{}'"),
			"a MaxHolders more": change("queue_most = queue_most || 1"),
			"no channel":        change("queue_channel[1] = NULL"),
			"no turn":           change("queue_turn[1] = NULL"),
			"a table":           change("queue = '{{me,you}}', queue_most = '{{1,1}}', queue_turn = '{{0,0}}', queue_channel = '{{a,b}}'"),
			"it begins with 5":  change("queue = '[5:5]={me}', queue_most = '[5:5]={1}', queue_turn = '[5:5]={0}', queue_channel = '[5:5]={a}'"),
			"gone":              change("queue = '{}', queue_most = '{}', queue_turn = '{}', queue_channel = '{}'"),
		},
		LoseReplies: func(*testing.T) func() {
			wire.lose.Store(true)
			return func() { wire.lose.Store(false) }
		},
		Hang:  func(t *testing.T) func() { return wire.hang(t) },
		Delay: wire.delay.Delay,
		Unreachable: func(t *testing.T) *lockstore.Store {
			connector, err := pq.NewConnector(url)
			require.NoError(t, err)
			connector.Dialer(nowhere{})
			db := sql.OpenDB(connector)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			s, err := New(db, Options{Table: table})
			require.NoError(t, err)
			return s
		},
	}
}

type nowhere struct{}

func (nowhere) Dial(network, address string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("connection refused")}
}

func (n nowhere) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return n.Dial(network, address)
}

// wire is the network between a store and the server.
type wire struct {
	requests atomic.Int32
	lose     atomic.Bool
	delay    storetest.Delayer

	mu    sync.Mutex
	hangs chan struct{} // not nil while replies hang
}

func openWire(t *testing.T, url string) (*sql.DB, *wire) {
	w := &wire{}
	connector, err := pq.NewConnector(url)
	require.NoError(t, err)
	connector.Dialer(w)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db, w
}

func (w *wire) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: w.delay.Conn(conn, isBind), wire: w}, nil
}

func (w *wire) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return w.Dial(network, address)
}

// hang makes all replies wait until the end of it.
func (w *wire) hang(*testing.T) (restore func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs = make(chan struct{})
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		close(w.hangs)
		w.hangs = nil
	}
}

type wireConn struct {
	net.Conn
	wire *wire
	cut  bool
}

func isBind(b []byte) bool { return b[0] == 'B' }

// Write counts the requests: each begins with a message Bind.
func (c *wireConn) Write(b []byte) (int, error) {
	if isBind(b) {
		c.wire.requests.Add(1)
	}
	c.cut = isBind(b) && c.wire.lose.Load()
	return c.Conn.Write(b)
}

// Read loses the reply to a request: the server has applied it.
func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut && err == nil {
		c.Conn.Close()
		return 0, io.EOF
	}
	c.wire.mu.Lock()
	hangs := c.wire.hangs
	c.wire.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	return n, err
}
