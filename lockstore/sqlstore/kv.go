package sqlstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/lanes"
)

// kv is the casstore.KV: a row for each key. Each request is one statement, a transaction of its own. It has no arguments, so that drivers
// send it in one message, and no pooler can put something of another client in between.
type kv struct {
	*Dialect
	words []string // what fill puts into each statement
	db    *sql.DB
	lanes *lanes.Lanes
	args  atomic.Pointer[[]any] // see oneMessage
	asked atomic.Bool           // once, and nothing is refused

	tx   *sql.Tx // of the program: all requests are in it, see Table.within
	seen []byte  // what was read there
}

// queries is a *sql.Conn or a *sql.Tx.
type queries interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

type scan = func(into ...any) error

// ClockResolution implements casstore.KV.
func (k *kv) ClockResolution() time.Duration { return k.resolution }

// fill puts texts in place of the words in braces of a statement.
func (k *kv) fill(statement string, pairs ...string) string {
	return strings.NewReplacer(append(pairs, k.words...)...).Replace(statement)
}

// row is the answer to a read, or a row of a list.
type row struct {
	name    string
	now     int64
	version sql.NullString
	written sql.NullInt64
	entry   []byte
}

func (r row) toEntry() (e casstore.Entry) {
	if r.version.Valid {
		e = casstore.Entry{Value: r.entry, Version: r.version.String, WrittenAt: time.UnixMicro(r.written.Int64)}
	}
	return e
}

// Read implements casstore.KV.
func (k *kv) Read(ctx context.Context, key string, _ bool) (casstore.Entry, time.Time, error) {
	if err := k.ifRefusedOnce(ctx); err != nil {
		return casstore.Entry{}, time.Time{}, err
	}
	var r row
	var refused string
	name, from := rand.Text(), " FROM (SELECT 1) AS o LEFT JOIN {table} AS k ON k.key {=} {key}"
	if k.tx != nil {
		from += k.locks
	}
	statement := k.fill("SELECT '"+name+"', "+k.refuses+", {now}, k.version, k.written, k.entry"+from, "{key}", k.literal(key))
	n, err := k.one(ctx, name, statement, &refused, &r.now, &r.version, &r.written, &r.entry)
	switch {
	case err == nil && n != 1:
		err = errAnother
	case err == nil && refused != "":
		err = fmt.Errorf("%w: %s", lockstore.ErrUnavailable, refused)
	}
	if err != nil {
		return casstore.Entry{}, time.Time{}, err
	}
	if k.tx != nil {
		k.seen = r.entry
	}
	return r.toEntry(), time.UnixMicro(r.now), nil
}

// ifRefusedOnce asks for what cannot change, before the first request.
func (k *kv) ifRefusedOnce(ctx context.Context) error {
	if k.once == "" || k.tx != nil || k.asked.Load() {
		return nil
	}
	var found string
	name := rand.Text()
	n, err := k.one(ctx, name, k.fill(k.once, "{request}", name), &found)
	if err == nil && n == 0 {
		err = errAnother
	}
	if err != nil {
		return err
	}
	if file, ok := strings.CutPrefix(found, "file "); ok {
		mounts, _ := os.ReadFile(mountsFile) // of Linux; elsewhere nothing is known
		found = network(file, string(mounts))
	}
	if found != "" {
		return fmt.Errorf("%w: %s", lockstore.ErrUnavailable, found)
	}
	k.asked.Store(true)
	return nil
}

// ownerOf is the owner of a lease in what was read in the transaction: a secret, which the caller may not know.
func (k *kv) ownerOf(fence lockstore.Fence) (owner lockstore.Owner) {
	var entry struct {
		Holders []struct {
			Owner lockstore.Owner
			Fence lockstore.Fence
		}
	}
	_, text, _ := strings.Cut(string(k.seen), " {")
	_ = json.Unmarshal([]byte("{"+text), &entry) // package casstore has read it
	for _, h := range entry.Holders {
		if h.Fence == fence {
			owner = h.Owner
		}
	}
	return cmp.Or(owner, "nobody")
}

// Write implements casstore.KV.
func (k *kv) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	return k.write(ctx, key, value, ifVersion, "''")
}

var fenceOf = regexp.MustCompile(`^\S+ \w+ \{"n":\d+,"fence":(\d{1,18})\b`)

// write makes a version that no other write has, so it is also the name of the request. wake is a part of PostgreSQL's statement.
func (k *kv) write(ctx context.Context, key string, value []byte, ifVersion, wake string) (casstore.Entry, error) {
	clock, version, fence := k.clock, rand.Text(), "0"
	statement := "UPDATE {table} AS k SET version = {version}, written = {clock}, fence = {fence}, entry = {entry} WHERE k.key {=} {key} AND k.version {=} {old}" + k.writes
	if ifVersion == "" {
		statement = "INSERT INTO {table} VALUES ({key}, {version}, {clock}, {fence}, {entry})" + k.insert
		if k.writes != "" {
			statement = "INSERT INTO {table} SELECT {key}, {version}, {clock}, {fence}, {entry} FROM DUAL WHERE true" + k.writes
		}
	}
	if k.tx == nil {
		clock = cmp.Or(k.bounded, clock)
	}
	if m := fenceOf.FindSubmatch(value[:min(len(value), 100)]); m != nil {
		fence = string(m[1])
	}
	if k.answer != "" {
		statement = fmt.Sprintf(k.answer, statement)
	}
	statement = k.fill(statement, "{wake}", wake, "{key}", k.literal(key), "{version}", k.literal(version), "{clock}", clock, "{fence}", fence,
		"{entry}", k.literal(string(value)), "{old}", k.literal(ifVersion))
	var written sql.NullInt64
	var n int64
	var err error
	if k.answer != "" {
		n, err = k.one(ctx, version, statement, &written, new(any))
		if err == nil && n != 1 && k.Dialect == PostgreSQL { // it always has a row
			err = errAnother
		}
	} else {
		err = k.send(ctx, func(q queries, _ []any) error {
			result, err := q.ExecContext(ctx, statement)
			if err != nil {
				return err
			}
			changed, first := result.RowsAffected()
			id, second := result.LastInsertId()
			n, written = changed, sql.NullInt64{Int64: id, Valid: true}
			return errors.Join(first, second)
		})
	}
	switch {
	case err != nil:
		return casstore.Entry{}, err
	case n == 0 || !written.Valid:
		return casstore.Entry{}, casstore.ErrConflict
	}
	return casstore.Entry{Version: version, WrittenAt: time.UnixMicro(written.Int64)}, nil
}

var (
	errAnother = errors.New("the answer is that to another request" + pooler)
	errDamaged = fmt.Errorf("%w: a row is damaged, or not ours", lockstore.ErrCorrupt)
)

// one is ask for an answer of at most one row, which begins with the name of the request: an answer to another request is none.
func (k *kv) one(ctx context.Context, name, statement string, into ...any) (int64, error) {
	var of string
	n, err := k.ask(ctx, statement, func(scan scan) error { return scan(append([]any{&of}, into...)...) })
	if (n > 0 || errors.Is(err, errDamaged)) && of != name {
		return 0, errAnother
	}
	return n, err
}

// ask sends a statement, calls f for each row of the answer, and returns how many these are. It reads all of it, because a commit can fail
// after the rows were sent. After an error other than errDamaged nobody may read what f writes: f may go on.
func (k *kv) ask(ctx context.Context, statement string, f func(scan) error) (int64, error) {
	var n int64
	err := k.send(ctx, func(q queries, args []any) error {
		n = 0
		rows, err := q.QueryContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for ; rows.Next(); n++ {
			if err := f(rows.Scan); err != nil {
				return fmt.Errorf("%w: %w", errDamaged, err)
			}
		}
		if err := rows.Err(); n == 0 || !errors.Is(err, sqldriver.ErrBadConn) {
			return err
		}
		return errors.New("the connection ended within the answer") // it is not asked for again
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// busyTime is how long a request tries to get the lock of SQLite's file.
const busyTime = 5 * time.Second

// send runs a request on a connection, in another goroutine: not every driver returns when the context ends. The request keeps its
// room, see package lanes, for as long as its connection. The error says whether the request may have been applied.
func (k *kv) send(ctx context.Context, do func(queries, []any) error) error {
	if k.tx != nil {
		return k.explain(true, do(k.tx, nil))
	}
	if err := k.lanes.Enter(ctx, lanes.From(ctx)); err != nil {
		return err
	}
	var claimed atomic.Bool // by who sends it, or by the caller that returns: then it must not be sent
	done := make(chan error, 1)
	go func() {
		defer k.lanes.Leave()
		done <- k.onConn(ctx, &claimed, do)
	}()
	select {
	case err := <-done:
		if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return err
	case <-ctx.Done():
		return k.explain(claimed.Swap(true), ctx.Err())
	}
}

// onConn gets a connection first: an error of that is certain. What a driver calls a bad connection is mostly an old one, so the request
// is sent on another one; it may have been applied on the first, so only a conflict is certain then.
func (k *kv) onConn(ctx context.Context, claimed *atomic.Bool, do func(queries, []any) error) error {
	for began, bad := time.Now(), 0; ; {
		conn, err := k.db.Conn(ctx)
		if err != nil {
			return k.explain(bad > 0, err)
		}
		args := k.oneMessage(conn)
		if bad > 0 || !claimed.Swap(true) {
			err = do(conn, args)
		}
		_ = conn.Close() // it goes back to the pool
		switch {
		case errors.Is(err, sqldriver.ErrBadConn) && bad < 3:
			bad++
		case k.again(ctx, began, err):
			claimed.Store(false)
		default:
			if err = k.explain(true, err); bad > 0 && err != nil && !errors.Is(err, casstore.ErrConflict) {
				err = errors.New(err.Error())
			}
			return err
		}
	}
}

// again says, after a pause, that SQLite's file was locked for a shorter time than a request tries. A transaction whose reads are older than
// a commit of another one (517) cannot write any more.
func (k *kv) again(ctx context.Context, began time.Time, err error) bool {
	return err != nil && k.Dialect == SQLite && strings.Contains(err.Error(), "is locked") && !strings.Contains(err.Error(), "(517)") &&
		time.Since(began) < busyTime && pause.For(ctx, mathrand.N(10*time.Millisecond)) == nil
}

var numberOf = regexp.MustCompile(`\bError (\d+)\b`)

// explain says of an error whether the request was applied: it may have been, unless the error matches lockstore.ErrUnavailable,
// lockstore.ErrCorrupt or casstore.ErrConflict. A server's error undoes the whole statement.
func (k *kv) explain(sent bool, err error) error {
	if err == nil || errors.Is(err, lockstore.ErrCorrupt) {
		return err
	}
	code := err.Error()
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		code = state.SQLState()
	}
	if m := numberOf.FindStringSubmatch(code); m != nil && k.Dialect == MySQL {
		code = m[1]
	}
	var f fault
	if i := slices.IndexFunc(k.faults, func(f fault) bool { return regexp.MustCompile(f.matches).MatchString(code) }); i >= 0 {
		f = k.faults[i]
	}
	if !sent || k.tx != nil && f.kind == casstore.ErrConflict { // which ends the transaction
		f.kind = lockstore.ErrUnavailable
	}
	if f.kind == nil {
		return fmt.Errorf("%w%s", err, f.advice)
	}
	return fmt.Errorf("%w: %w%s", f.kind, err, f.advice)
}

// oneMessage returns what the driver wants in front of the arguments of a query, so that it sends the query in one message and prepares
// no statement: of pgx the constant QueryExecModeSimpleProtocol, whose type only pgx has. Others want nothing.
func (k *kv) oneMessage(conn *sql.Conn) (args []any) {
	if known := k.args.Load(); known != nil {
		return *known
	}
	err := conn.Raw(func(c any) error {
		if of, ok := reflect.TypeOf(c).MethodByName("Conn"); !ok || of.Type.String() != "func(*stdlib.Conn) *pgx.Conn" {
			return nil
		}
		mode := reflect.ValueOf(c).MethodByName("Conn").Call(nil)[0].MethodByName("Config").Call(nil)[0].Elem().FieldByName("DefaultQueryExecMode")
		for n := range int64(10) {
			if mode.SetInt(n); fmt.Sprint(mode) == "simple protocol" {
				args = []any{mode.Interface()}
			}
		}
		return nil
	})
	if err == nil { // else the connection has ended, and the next one is asked
		k.args.Store(&args)
	}
	return args
}

// pageSize is how many rows one request lists.
const pageSize = 100

// ifRefused says what Read refuses. No lock has the key "".
func (k *kv) ifRefused(ctx context.Context) error {
	_, _, err := k.Read(ctx, "", true)
	return err
}

// List implements casstore.Lister, by one request for each page.
func (k *kv) List(ctx context.Context, prefix string, page func(casstore.Page) error) error {
	if err := k.ifRefused(ctx); err != nil {
		return err
	}
	for last, end := "", false; !end; {
		var p casstore.Page
		statement := k.fill(fmt.Sprint("SELECT {now}, k.key, k.version, k.written, k.entry FROM {table} AS k WHERE k.key {>} {last} AND k.key {>=} {prefix} ORDER BY k.key LIMIT ", pageSize),
			"{last}", k.literal(last), "{prefix}", k.literal(prefix))
		n, err := k.ask(ctx, statement, func(scan scan) error {
			var r row
			err := scan(&r.now, &r.name, &r.version, &r.written, &r.entry)
			last, p.Now = r.name, time.UnixMicro(r.now)
			switch {
			case err != nil || !strings.HasPrefix(r.name, prefix):
				end = true
			case lockstore.ValidateKey(r.name) != nil:
				p.Damaged++
				p.DamagedNames = append(p.DamagedNames, r.name)
			default:
				p.Entries = append(p.Entries, casstore.Listed{Key: r.name, Name: r.name, Entry: r.toEntry()})
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := page(p); err != nil {
			return err
		}
		end = end || n < pageSize
	}
	return nil
}

// Extent implements casstore.Lister, mostly by what the server has counted before.
func (k *kv) Extent(ctx context.Context) (lockstore.Extent, error) {
	var e lockstore.Extent
	if err := k.ifRefused(ctx); err != nil {
		return e, err
	}
	if _, err := k.ask(ctx, k.fill(k.extent), func(scan scan) error { return scan(&e.Entries, &e.Bytes) }); err != nil {
		return lockstore.Extent{}, err
	}
	return e, nil
}

// Check implements driver.Checker.
func (k *kv) Check(ctx context.Context) ([]lockstore.Finding, error) {
	var all []lockstore.Finding
	_, err := k.ask(ctx, k.fill(k.check), func(scan scan) error {
		var f lockstore.Finding
		err := scan(&f.Problem, &f.Fix)
		if f.Problem != "" {
			all = append(all, f)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if k.db.Stats().MaxOpenConnections == 0 {
		all = append(all, lockstore.Finding{Problem: "the pool of connections has no limit: this program may take all that the server has", Fix: "call SetMaxOpenConns, and SetMaxIdleConns with the same number"})
	}
	// Writes that change nothing find missing rights.
	if err = k.ifRefused(ctx); err == nil {
		if _, err = k.Write(ctx, "check", nil, "no version"); errors.Is(err, casstore.ErrConflict) {
			_, err = k.ask(ctx, k.fill("INSERT INTO {table} SELECT * FROM {table} WHERE false"), func(scan) error { return nil })
		}
	}
	if ctx.Err() == nil && err != nil {
		all = append(all, lockstore.Finding{Problem: fmt.Sprintf("requests fail: %v", err), Fix: "do what the error says"})
	}
	return all, ctx.Err()
}

var networks = regexp.MustCompile(`^(nfs|cifs|smb|9p|ceph|afs|gluster|lustre|fuse\.|virtiofs)`)

// mountsFile is another one in tests.
var mountsFile = "/proc/mounts"

// mounted gives the signs back that a list of mounts has as numbers.
var mounted = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// network says that other machines may have the file system of a file, too; else "". mounts is a list as in /proc/mounts.
func network(file, mounts string) string {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	place, kind := "", ""
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line) // a device, a directory, a type
		if len(f) < 3 {
			continue
		}
		if at := mounted.Replace(f[1]); len(at) >= len(place) && strings.HasPrefix(file, strings.TrimSuffix(at, "/")+"/") {
			place, kind = at, f[2]
		}
	}
	if !networks.MatchString(kind) {
		return ""
	}
	return "the file is on a file system of type " + kind + ", which other machines may have, too; keep it on a disk of this machine: two owners may hold the same key where its locks fail"
}
