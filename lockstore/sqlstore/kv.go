package sqlstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
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

	tx   *sql.Tx // of the program: all requests are in it, see Table.within
	seen []byte  // what was read there
}

// queries is a *sql.Conn or a *sql.Tx.
type queries interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// ClockResolution implements casstore.KV.
func (k *kv) ClockResolution() time.Duration { return k.resolution }

// fill puts texts in place of the words in braces of a statement.
func (k *kv) fill(statement string, pairs ...string) string {
	return strings.NewReplacer(append(pairs, k.words...)...).Replace(statement)
}

// row is the answer to a read, or a row of a list.
type row struct {
	name, refuses string
	now           int64
	version       sql.NullString
	written       sql.NullInt64
	entry         []byte
}

func (r row) toEntry() (e casstore.Entry) {
	if r.version.Valid {
		e = casstore.Entry{Value: r.entry, Version: r.version.String, WrittenAt: time.UnixMicro(r.written.Int64)}
	}
	return e
}

var (
	errAnother = errors.New("the answer is that to another request" + pooler)
	errNoRow   = errors.New("the key has no row")
	errDamaged = fmt.Errorf("%w: a row is damaged, or not ours", lockstore.ErrCorrupt)
)

// Read implements casstore.KV. The random text in the request comes back in the answer, so an answer to another request is none.
func (k *kv) Read(ctx context.Context, key string, _ bool) (casstore.Entry, time.Time, error) {
	var r row
	nonce, from := rand.Text(), "(SELECT 1) AS o LEFT JOIN {table} AS k ON k.key {=} {key}"
	if k.tx != nil {
		from = "{table} AS k WHERE k.key {=} {key}" + k.locked
		if k.lockFirst != "" {
			if _, err := k.tx.ExecContext(ctx, k.fill(k.lockFirst, "{key}", k.literal(key))); err != nil {
				return casstore.Entry{}, time.Time{}, k.explain(sent, err)
			}
		}
	}
	statement := k.fill("SELECT '"+nonce+"', {now}, k.version, k.written, k.entry, "+k.refuses+" FROM "+from, "{key}", k.literal(key))
	n, err := k.ask(ctx, statement, func(scan scan) error { return scan(&r.name, &r.now, &r.version, &r.written, &r.entry, &r.refuses) })
	switch {
	case err != nil && !errors.Is(err, errDamaged):
	case err == nil && n == 0 && k.tx != nil:
		err = errNoRow
	case r.name != nonce:
		err = errAnother
	case err == nil && r.refuses != "":
		err = fmt.Errorf("%w: %s", lockstore.ErrUnavailable, r.refuses)
	}
	if err != nil {
		return casstore.Entry{}, time.Time{}, err
	}
	if k.tx != nil {
		k.seen = r.entry
	}
	return r.toEntry(), time.UnixMicro(r.now), nil
}

// Write implements casstore.KV.
func (k *kv) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	return k.write(ctx, key, value, ifVersion, "''")
}

var fenceOf = regexp.MustCompile(`^\S+ \w+ \{"n":\d+,"fence":(\d{1,18})\b`)

// write makes a version that no other write has, so it is also what the answer is known by. wake is a part of PostgreSQL's statement.
func (k *kv) write(ctx context.Context, key string, value []byte, ifVersion, wake string) (e casstore.Entry, err error) {
	statement := "UPDATE {table} AS k SET version = {version}, written = {clock}, fence = {fence}, entry = {entry} WHERE k.key {=} {key} AND k.version {=} {old}" + k.returning
	if ifVersion == "" {
		statement = "INSERT INTO {table} VALUES ({key}, {version}, {clock}, {fence}, {entry})" + k.insert
	}
	if k.around != "" {
		statement = fmt.Sprintf(k.around, statement)
	}
	clock, version, fence := k.clock, rand.Text(), "0"
	if k.bounded != "" && k.tx == nil {
		clock = k.bounded
	}
	if m := fenceOf.FindSubmatch(value[:min(len(value), 100)]); m != nil {
		fence = string(m[1])
	}
	statement = k.fill(statement, "{wake}", wake, "{key}", k.literal(key), "{version}", k.literal(version), "{clock}", clock, "{fence}", fence,
		"{entry}", k.literal(string(value)), "{old}", k.literal(ifVersion))
	var written sql.NullInt64
	if k.returning == "" {
		err = k.send(ctx, func(q queries, _ []any) error {
			result, err := q.ExecContext(ctx, statement)
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); err != nil || n == 0 {
				return cmp.Or(err, casstore.ErrConflict)
			}
			written.Int64, err = result.LastInsertId()
			return err
		})
	} else {
		var asked string
		n, failed := k.ask(ctx, statement, func(scan scan) error { return scan(&asked, &written, new(any)) })
		switch err = failed; {
		case err != nil && !errors.Is(err, errDamaged):
		case err == nil && n == 0 && k.around == "", err == nil && asked == version && !written.Valid:
			err = casstore.ErrConflict
		case err != nil || asked != version:
			err = errAnother
		}
	}
	if err != nil {
		return e, err
	}
	return casstore.Entry{Version: version, WrittenAt: time.UnixMicro(written.Int64)}, nil
}

type scan = func(into ...any) error

// ask sends a statement, calls f for each row of the answer, and returns how many these are. It reads all of it, because a commit can fail
// after the rows were sent. After an error other than errDamaged nobody may read what f writes: f may go on.
func (k *kv) ask(ctx context.Context, statement string, f func(scan) error) (int, error) {
	n := 0
	err := k.send(ctx, func(q queries, args []any) error {
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

// Bits of a request's state.
const (
	sent     = 1 << iota
	again    // the driver has said that the connection was bad, so it was sent once more
	returned // the caller has returned, so it must not be sent
)

// busyTime is how long a request tries to get the lock of SQLite's file.
const busyTime = 5 * time.Second

// send runs a request on a connection, in another goroutine: not every driver returns when the context ends. The request keeps its
// room, see package lanes, for as long as its connection. The error says whether the request may have been applied.
func (k *kv) send(ctx context.Context, do func(queries, []any) error) error {
	if k.tx != nil {
		return k.explain(sent, do(k.tx, nil))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
	}
	lane, ok := ctx.Value(laneKey{}).(lanes.Lane)
	if !ok {
		lane = lanes.Looks
	}
	if err := k.lanes.Enter(ctx, lane); err != nil {
		return err
	}
	var state atomic.Uint32
	done := make(chan error, 1)
	go func() {
		defer k.lanes.Leave()
		done <- k.onConn(ctx, &state, do)
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done: // if both happen at the same time, the answer counts
		default:
			return k.explain(state.Or(returned), ctx.Err())
		}
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return k.explain(state.Load(), err)
}

// onConn gets a connection first: an error of that is certain. What a driver calls a bad connection is mostly an old one, so the request
// is sent on another one.
func (k *kv) onConn(ctx context.Context, state *atomic.Uint32, do func(queries, []any) error) error {
	for began, tries := time.Now(), 0; tries < 3; {
		conn, err := k.db.Conn(ctx)
		if err != nil {
			return err
		}
		args := k.oneMessage(conn)
		if state.Or(sent)&returned == 0 {
			err = do(conn, args)
		}
		_ = conn.Close() // it goes back to the pool
		busy := err != nil && k.Dialect == SQLite && strings.Contains(err.Error(), "is locked") && time.Since(began) < busyTime
		switch {
		case errors.Is(err, sqldriver.ErrBadConn):
			state.Or(again)
			tries++
		case !busy || pause.For(ctx, mathrand.N(10*time.Millisecond)) != nil:
			return err
		}
	}
	return sqldriver.ErrBadConn
}

// explain says of an error whether the request was applied: it may have been, unless the error matches lockstore.ErrUnavailable,
// lockstore.ErrCorrupt or casstore.ErrConflict. A server's error undoes the whole statement.
func (k *kv) explain(state uint32, err error) error {
	if err == nil || errors.Is(err, errNoRow) || errors.Is(err, casstore.ErrConflict) || errors.Is(err, lockstore.ErrCorrupt) || errors.Is(err, lockstore.ErrUnavailable) {
		return err
	}
	code := err.Error()
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		code = e.SQLState()
	}
	var f fault
	if i := slices.IndexFunc(k.faults, func(f fault) bool { return regexp.MustCompile(f.matches).MatchString(code) }); i >= 0 {
		f = k.faults[i]
	}
	if k.tx != nil && f.kind == casstore.ErrConflict {
		f.kind = lockstore.ErrUnavailable // it ends the transaction
	}
	switch {
	case state&sent == 0:
		return fmt.Errorf("%w: %w%s", lockstore.ErrUnavailable, err, f.advice)
	case f.kind == nil, state&again != 0 && f.kind != casstore.ErrConflict:
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

// List implements casstore.Lister, by one request for each page.
func (k *kv) List(ctx context.Context, prefix string, page func(casstore.Page) error) error {
	for last, end := "", false; !end; {
		var p casstore.Page
		statement := k.fill("SELECT {now}, k.key, k.version, k.written, k.entry FROM {table} AS k WHERE k.key {>} {last} AND k.key {>=} {prefix} ORDER BY k.key LIMIT "+strconv.Itoa(pageSize),
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
		if f.Problem == "file" { // of SQLite
			f.Problem, f.Fix = network(f.Fix), "keep the file on a disk of this machine: two owners may hold the same key where its locks fail"
		}
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
	_, _, err = k.Read(ctx, "check", true)
	if err == nil { // a write that changes nothing finds missing rights
		_, err = k.Write(ctx, "check", nil, "no version")
	}
	if ctx.Err() == nil && !errors.Is(err, casstore.ErrConflict) {
		all = append(all, lockstore.Finding{Problem: fmt.Sprintf("requests fail: %v", err), Fix: "do what the error says"})
	}
	return all, ctx.Err()
}
