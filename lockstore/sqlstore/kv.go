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
	"os"
	"path/filepath"
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
	"github.com/lambdalock/lambdalock/lockstore/internal/beside"
	"github.com/lambdalock/lambdalock/lockstore/internal/lanes"
)

// kv is the casstore.KV: a row for each key. Each request is one statement without arguments, so that drivers
// send it in one message, and no pooler can put something of another client in between. In a transaction of the program no pooler does.
type kv struct {
	*Dialect
	words *strings.Replacer // what fill puts into each statement
	db    *sql.DB
	lanes *lanes.Lanes
	args  atomic.Pointer[[]any] // see simpleProtocol
	asked atomic.Bool           // once, and nothing is refused

	tx   *sql.Tx // of the program: all requests are in it, see Table.within
	seen []byte  // what was read there
}

// queries is a *sql.Conn or a *sql.Tx. send sends a statement by one, with what simpleProtocol returns.
type (
	row     = []sql.NullString
	answer  = []row
	send    = func(q queries, args []any) (answer, error)
	queries interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	}
)

func (k *kv) ClockResolution() time.Duration { return k.resolution }

// fill puts texts in place of the words in braces of a statement. The texts of pairs may have such words, too, which stay.
func (k *kv) fill(statement string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(k.words.Replace(k.words.Replace(statement)))
}

func (k *kv) Read(ctx context.Context, key string, _ bool) (e casstore.Entry, now time.Time, err error) {
	which := "k.key {=} {key}"
	if k.tx != nil {
		which += k.locks
		if k.locks == "" && k.seen == nil {
			if _, err = k.ask(ctx, "", "UPDATE {table} SET version = version WHERE key = {key}", 0, "{key}", key); err != nil {
				return e, now, err
			}
		}
	}
	rows, now, err := k.read(ctx, which, "{key}", key)
	if len(rows) > 0 {
		e = rows[0].Entry
	}
	if k.tx != nil {
		k.seen = e.Value
	}
	return e, now, err
}

// read returns some rows, and the server's time. It refuses what no request may rest on.
func (k *kv) read(ctx context.Context, which string, pairs ...string) (all []casstore.Listed, now time.Time, err error) {
	if k.once != "" && k.tx == nil && !k.asked.Load() {
		rows, err := k.ask(ctx, rand.Text(), k.once, 3)
		if err == nil {
			mounts, _ := os.ReadFile(mountsFile) // of Linux; elsewhere nothing is known
			err = refusedBy(network(rows[0][2].String, string(mounts)))
		}
		if err != nil {
			return nil, now, err
		}
		k.asked.Store(true)
	}
	rows, err := k.ask(ctx, rand.Text(), "SELECT {request}, {refuses}, {now}, k.key, k.version, k.written, k.entry FROM (SELECT 1) AS o LEFT JOIN (SELECT * FROM {table} AS k WHERE "+which+") AS k ON true", 7, pairs...)
	for _, r := range rows {
		at, first := strconv.ParseInt(r[2].String, 10, 64)
		written, second := strconv.ParseInt(cmp.Or(r[5].String, "0"), 10, 64)
		if errors.Join(first, second) != nil || r[3].Valid && r[4].String == "" {
			return nil, now, fmt.Errorf("%w: a row is damaged, or not ours: key %q, version %.90q, written %.90q", lockstore.ErrCorrupt, r[3].String, r[4].String, r[5].String)
		}
		now = time.UnixMicro(at)
		if name := r[3]; name.Valid { // else there is no row
			all = append(all, casstore.Listed{Key: name.String, Name: name.String, Entry: casstore.Entry{Value: []byte(r[6].String), Version: r[4].String, WrittenAt: time.UnixMicro(written)}})
		}
	}
	return all, now, err
}

func (k *kv) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	return k.write(ctx, key, value, ifVersion, "''", "")
}

// write makes a version that no other write has, so it is also the name of the request. wake is a part of PostgreSQL's statement, with the text notes.
func (k *kv) write(ctx context.Context, key string, value []byte, ifVersion, wake, notes string) (casstore.Entry, error) {
	version := rand.Text()
	statement := "UPDATE {table} AS k SET version = {version}, written = {clock}, entry = {entry} WHERE k.key {=} {key} AND k.version {=} {old} AND {refuses} {=} ''"
	switch {
	case ifVersion == "":
		statement = "INSERT INTO {table} SELECT {key}, {version}, {clock}, {entry} FROM (SELECT 1) AS o WHERE {refuses} {=} ''" + k.insert
	case k.tx == nil:
		statement += k.bound
	}
	if k.answer != "" {
		statement = strings.ReplaceAll(fmt.Sprintf(k.answer, statement), "{wake}", wake)
	}
	rows, err := k.ask(ctx, version, statement, 4, "{key}", key, "{version}", version, "{entry}", string(value), "{old}", ifVersion, "{notes}", notes)
	if err != nil || len(rows) == 0 || !rows[0][2].Valid {
		return casstore.Entry{}, cmp.Or(err, casstore.ErrConflict)
	}
	at, err := strconv.ParseInt(rows[0][2].String, 10, 64)
	return casstore.Entry{Version: version, WrittenAt: time.UnixMicro(at)}, err
}

var errAnother = errors.New("the answer is that to another request" + pooler)

func refusedBy(what string) error {
	if what == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", lockstore.ErrUnavailable, what)
}

// ask sends a statement, and returns the rows of the answer, with so many columns. A request that has a name gets it back as the first column, and
// what is refused as the second one. Such a read, and PostgreSQL's write, have at least one row. An answer to another request is none. pairs are
// words of the statement and their values.
func (k *kv) ask(ctx context.Context, name, statement string, columns int, pairs ...string) (answer, error) {
	pairs = append(pairs, "{request}", name)
	var values []any
	for i := 1; i < len(pairs); i += 2 {
		if k.tx != nil && k.bind != "" && strings.Contains(statement, pairs[i-1]) {
			values = append(values, pairs[i])
			pairs[i] = fmt.Sprintf(k.bind, len(values))
		} else {
			pairs[i] = k.literal(pairs[i])
		}
	}
	statement = k.fill(statement, pairs...)
	reads := strings.HasPrefix(statement, "SELECT")
	all, err := k.send(ctx, reads, func(q queries, mode []any) (answer, error) {
		if k.answer == "" && !reads {
			result, err := q.ExecContext(ctx, statement)
			return resultOf(name, result, err)
		}
		return rowsOf(q.QueryContext(ctx, statement, append(mode, values...)...))
	})
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0 && name != "" && (reads || k.Dialect == PostgreSQL) || slices.ContainsFunc(all, func(r row) bool { return len(r) != columns || name != "" && r[0].String != name }):
		return nil, errAnother
	}
	for _, r := range all {
		if err := refusedBy(r[1].String); name != "" && err != nil {
			return nil, err
		}
	}
	return all, nil
}

// rowsOf reads the whole answer, because a commit can fail after the rows were sent.
func rowsOf(rows *sql.Rows, err error) (all answer, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	for err == nil && rows.Next() {
		r, into := make(row, len(columns)), make([]any, len(columns))
		for i := range r {
			into[i] = &r[i]
		}
		err = rows.Scan(into...)
		all = append(all, r)
	}
	err = cmp.Or(err, rows.Err())
	if len(all) > 0 && errors.Is(err, sqldriver.ErrBadConn) { // it is not asked for again
		err = errors.New("the connection ended within the answer")
	}
	return all, err
}

// resultOf is rowsOf for a write of MySQL.
func resultOf(name string, r sql.Result, err error) (all answer, _ error) {
	if err != nil {
		return nil, err
	}
	n, first := r.RowsAffected()
	id, second := r.LastInsertId()
	for range n {
		all = append(all, row{{String: name}, {}, {String: strconv.FormatInt(id, 10), Valid: true}, {}})
	}
	return all, errors.Join(first, second)
}

// busyTime is how long a request tries to get the lock of SQLite's file, and a transaction that of a row.
const busyTime = 5 * time.Second

// send runs a request on a connection, in another goroutine: not every driver returns when the context ends. The request keeps its
// room, see package lanes, for as long as its connection. The error says whether the request may have been applied.
func (k *kv) send(ctx context.Context, reads bool, do send) (answer, error) {
	for began := time.Now(); k.tx != nil; {
		if all, err := do(k.tx, nil); !k.again(ctx, began, err) {
			return all, k.explain(true, err)
		}
	}
	if err := k.lanes.Enter(ctx, lanes.From(ctx)); err != nil {
		return nil, err
	}
	var claimed atomic.Bool // by who sends it, or by the caller that returns: then it must not be sent
	all, err := beside.Do(ctx, func() (answer, error) {
		defer k.lanes.Leave()
		return k.onConn(ctx, reads, &claimed, do)
	})
	switch {
	case err != nil && err == ctx.Err(): // the request goes on
		err = k.explain(claimed.Swap(true), err)
	case err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return all, err
}

// onConn gets a connection first: an error of that is certain, at the first time. What a driver calls a bad connection is mostly an old one, so the request
// is sent on another one; it may have been applied on the first, so only a conflict is certain then.
func (k *kv) onConn(ctx context.Context, reads bool, claimed *atomic.Bool, do send) (all answer, _ error) {
	for began, bad := time.Now(), 0; ; {
		conn, err := k.db.Conn(ctx)
		if err != nil && bad > 0 {
			return nil, errors.New(k.explain(true, err).Error())
		} else if err != nil {
			return nil, k.explain(false, err)
		}
		args := k.simpleProtocol(conn)
		switch {
		case bad == 0 && claimed.Swap(true):
		case k.Dialect == SQLite:
			all, err = alone(ctx, conn, reads, do)
		default:
			all, err = do(conn, args)
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
			return all, err
		}
	}
}

// alone sends a request to SQLite in a transaction of its own. BEGIN fails if one of the program's is open on the connection.
func alone(ctx context.Context, conn *sql.Conn, reads bool, do send) (answer, error) {
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: reads})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	all, err := do(tx, nil)
	if err == nil {
		err = tx.Commit()
	}
	return all, err
}

// again says, after a pause, that SQLite's file was locked for a shorter time than a request tries. A transaction whose reads are older than
// a commit of another one (517) cannot write any more.
func (k *kv) again(ctx context.Context, began time.Time, err error) bool {
	return err != nil && k.Dialect == SQLite && strings.Contains(err.Error(), "is locked") && !strings.Contains(err.Error(), "(517)") &&
		time.Since(began) < busyTime && pause.For(ctx, mathrand.N(10*time.Millisecond)) == nil
}

// explain says of an error whether the request was applied: it may have been, unless the error matches lockstore.ErrUnavailable,
// lockstore.ErrCorrupt or casstore.ErrConflict. A server's error undoes the whole statement.
func (k *kv) explain(sent bool, err error) error {
	if err == nil {
		return nil
	}
	code := err.Error()
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		code = state.SQLState()
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

// simpleProtocol returns what the driver wants in front of the arguments of a query, so that it sends the query in one message and prepares
// no statement: of pgx the constant QueryExecModeSimpleProtocol, whose type only pgx has. Others want nothing.
func (k *kv) simpleProtocol(conn *sql.Conn) (args []any) {
	if known := k.args.Load(); known != nil {
		return *known
	}
	err := conn.Raw(func(c any) error {
		if _, passes := c.(sqldriver.NamedValueChecker); passes {
			args = modeOf(reflect.ValueOf(c), 5)
		}
		return nil
	})
	if err == nil { // else the connection has ended, and the next one is asked
		k.args.Store(&args)
	}
	return args
}

// modeOf looks for the connection of pgx in that of a driver, which may be within a few others, such as that of otelsql.
func modeOf(conn reflect.Value, within int) []any {
	if conn.Kind() == reflect.Interface {
		conn = conn.Elem()
	}
	if within == 0 || !conn.IsValid() {
		return nil
	}
	if of, ok := conn.Type().MethodByName("Conn"); ok && of.Type.String() == "func(*stdlib.Conn) *pgx.Conn" {
		config, _ := of.Type.Out(0).MethodByName("Config")
		field, ok := config.Type.Out(0).Elem().FieldByName("DefaultQueryExecMode") // not in pgx v4
		for n := int64(0); ok && n < 10; n++ {
			mode := reflect.New(field.Type).Elem()
			if mode.SetInt(n); fmt.Sprint(mode) == "simple protocol" {
				return []any{mode.Interface()}
			}
		}
	}
	if conn = reflect.Indirect(conn); conn.Kind() == reflect.Struct {
		for field, inner := range conn.Fields() {
			if field.Type.Implements(reflect.TypeFor[sqldriver.Conn]()) {
				if args := modeOf(inner, within-1); args != nil {
					return args
				}
			}
		}
	}
	return nil
}

// pageSize is how many rows one request lists.
const pageSize = 100

// List implements casstore.Lister, by one request for each page. The time of a page is that of the request before. No lock has the key "".
func (k *kv) List(ctx context.Context, prefix string, page func(casstore.Page) error) error {
	_, now, err := k.Read(ctx, "", true)
	for last, end := "", false; err == nil && !end; {
		p := casstore.Page{Now: now}
		var rows []casstore.Listed
		rows, now, err = k.read(ctx, fmt.Sprint("k.key {>} {last} AND k.key {>=} {prefix} ORDER BY k.key LIMIT ", pageSize), "{last}", last, "{prefix}", prefix)
		end = len(rows) < pageSize
		for _, r := range rows {
			last = max(last, r.Key)
			switch {
			case !strings.HasPrefix(r.Key, prefix):
				end = true
			case lockstore.ValidateKey(r.Key) != nil:
				p.Damaged++
				p.DamagedNames = append(p.DamagedNames, r.Key)
			default:
				p.Entries = append(p.Entries, r)
			}
		}
		if err == nil {
			err = page(p)
		}
	}
	return err
}

// Extent implements casstore.Lister, mostly by what the server has counted before.
func (k *kv) Extent(ctx context.Context) (e lockstore.Extent, err error) {
	if _, _, err = k.Read(ctx, "", true); err != nil {
		return e, err
	}
	rows, err := k.ask(ctx, "", k.extent, 2)
	for _, r := range rows {
		e.Entries, _ = strconv.ParseInt(r[0].String, 10, 64)
		e.Bytes, _ = strconv.ParseInt(r[1].String, 10, 64)
	}
	return e, err
}

func (k *kv) Check(ctx context.Context) (all []lockstore.Finding, err error) {
	rows, err := k.ask(ctx, "", k.check, 2)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		all = append(all, lockstore.Finding{Problem: r[0].String, Fix: r[1].String})
	}
	if k.db.Stats().MaxOpenConnections == 0 {
		all = append(all, lockstore.Finding{Problem: "the pool of connections has no limit: this program may take all that the server has", Fix: "call SetMaxOpenConns, and SetMaxIdleConns with the same number"})
	}
	// Writes that change nothing find missing rights.
	if _, _, err = k.Read(ctx, "", true); err == nil {
		if _, err = k.Write(ctx, "check", nil, "no version"); errors.Is(err, casstore.ErrConflict) {
			_, err = k.ask(ctx, "", "INSERT INTO {table} SELECT * FROM {table} WHERE false", 0)
		}
	}
	if ctx.Err() == nil && err != nil {
		all = append(all, lockstore.Finding{Problem: fmt.Sprintf("requests fail: %v", err), Fix: "do what the error says"})
	}
	return all, ctx.Err()
}

var (
	networks = regexp.MustCompile(`^(nfs|cifs|smb|9p|ceph|afs|gluster|lustre|fuse\.|virtiofs)`)

	// mountsFile is another one in tests.
	mountsFile = "/proc/mounts"

	// mounted gives the signs back that a list of mounts has as numbers.
	mounted = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
)

// network says that other machines may have the file system of a file, too; else "". mounts is a list as in /proc/mounts.
func network(file, mounts string) string {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	place, kind := "", ""
	for line := range strings.Lines(mounts) {
		f := append(strings.Fields(line), "", "", "") // a device, a directory, a type
		if at := mounted.Replace(f[1]); len(at) >= len(place) && strings.HasPrefix(file, strings.TrimSuffix(at, "/")+"/") {
			place, kind = at, f[2]
		}
	}
	if !networks.MatchString(kind) {
		return ""
	}
	return "the file is on a file system of type " + kind + ", which other machines may have, too; keep it on a disk of this machine: two owners may hold the same key where its locks fail"
}
