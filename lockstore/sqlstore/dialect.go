package sqlstore

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// Dialect is the SQL that a database speaks. In its statements, words in braces stand for what fill puts there.
type Dialect struct {
	name             string
	schemes          []string // of URLs
	schema           string   // of a table without one: nothing rests on the search_path, nor on temporary tables
	mark, operator   string   // around a name; around an operator, so that nothing in the search_path can shadow it
	resolution, skew time.Duration
	literal          func(string) string
	bind             string // an argument in place of a literal, in a transaction of the program: so the driver, which may keep each text there, sees few texts
	now, clock       string // microseconds since 1970; those of a write, if they are others
	refuses          string // what is wrong with the session: WHEN a condition THEN a text
	alone            string // as refuses, of a request that is not in a transaction of the program
	once             string // as refuses, of what cannot change: asked once; and the file, if there is one
	bound            string // a condition of an UPDATE that is not in a transaction of the program: how long it locks a row, or waits for one
	insert           string // behind an INSERT: without it a row that is there is an error
	answer           string // around a write: its name, what is refused, its time, and the wake-up; "" is a result with the time as the last insert id
	locks            string // behind a SELECT that locks its row; "" is an UPDATE before it
	create           string
	check            string // answers with a row for each finding: problem, fix
	extent           string // rows and bytes
	faults           []fault
}

// fault is what some errors of a server mean: the first one that matches counts. After an error that matches none the outcome is unknown.
type fault struct {
	matches string // the SQLSTATE or, without one, the text: a regular expression
	kind    error  // nil: the outcome is unknown
	advice  string
}

var (
	refused, corrupt, conflict = lockstore.ErrUnavailable, lockstore.ErrCorrupt, casstore.ErrConflict

	noTable    = "; it is no table of locks of this dialect: run the SQL that lockctl schema prints (sqlstore.Table.Schema returns it), or name another table"
	noRights   = "; the role needs SELECT, INSERT and UPDATE on the table, and USAGE on its schema"
	onlyRead   = "; this server or this role only reads: want the primary's address, and no default_transaction_read_only"
	pooler     = "; a pooler gives the connections of this program to others in between: let the driver send a query without arguments in one message, as lib/pq does, and pgx with default_query_exec_mode=simple_protocol"
	refusesToo = "; PgBouncer says this code of most that it refuses, also of a database or a user that it does not know: see its log"
	noFolder   = "; the file or its folder is not there, or only reads: this user has to be able to write both"
	noSpace    = "; the disk needs free space, or it is broken"
	tooLong    = "; a transaction has kept the row or the file for too long"
	leftOpen   = "a transaction of the program is open on this connection of the pool"
)

const columns = ` (
	key text PRIMARY KEY NOT NULL, -- of a lock
	version text NOT NULL, -- of this write: no other one has it
	written bigint NOT NULL, -- when, in microseconds since 1970 on the server's clock
	entry text NOT NULL -- the state, as package casstore of lambdalock writes it
)`

// micros casts what EXTRACT returns, because it is a float on CockroachDB, which has no operator for a float and a numeric.
func micros(time string) string {
	return "(EXTRACT(epoch FROM pg_catalog." + time + "())::pg_catalog.numeric OPERATOR(pg_catalog.*) 1000000::pg_catalog.numeric)::pg_catalog.int8"
}

// PostgreSQL is also for Aurora PostgreSQL and Neon.
var PostgreSQL = &Dialect{
	name: "PostgreSQL", schemes: []string{"postgres", "postgresql"}, schema: "public", mark: `"`, operator: "OPERATOR(pg_catalog.%s)", resolution: time.Microsecond,
	// In ASCII, so nothing rests on the encoding of the connection, nor on standard_conforming_strings.
	literal: func(s string) string {
		s = strconv.QuoteToASCII(s)
		return "E'" + strings.ReplaceAll(s[1:len(s)-1], "'", "''") + "'"
	},
	bind: "$%d::pg_catalog.text",
	now:  micros("statement_timestamp"), locks: " FOR UPDATE",
	refuses: "WHEN pg_catalog.current_setting('transaction_read_only') {=} 'on' THEN 'this server, or this role by default_transaction_read_only, only reads' " +
		"WHEN pg_catalog.row_security_active({name}::pg_catalog.text) THEN 'row security is on for this role' " +
		"WHEN pg_catalog.current_setting('client_encoding') {<>} 'UTF8' THEN 'client_encoding is not UTF8' ",
	// Both are equal in the first message of a transaction alone.
	alone: "WHEN pg_catalog.transaction_timestamp() {<>} pg_catalog.statement_timestamp() THEN '" + leftOpen + ", or the driver sends a query in several messages: " +
		"let pgx have default_query_exec_mode=simple_protocol' ",
	bound:  " AND pg_catalog.set_config('lock_timeout', '2s', true) IS NOT NULL", // it ends with the transaction of the statement
	insert: " ON CONFLICT DO NOTHING",
	answer: "WITH w AS (%s RETURNING written) SELECT {request}, {refuses}, w.written, {wake} FROM (SELECT 1) AS o LEFT JOIN w ON true",
	// So that a new version of a row is on the page of the old one, and not compressed.
	create: "CREATE TABLE IF NOT EXISTS {table}" + strings.Replace(columns, "key text", `key text COLLATE pg_catalog."C"`, 1) +
		" WITH (fillfactor = 50, toast_tuple_target = 8160);\nCOMMENT ON TABLE {table} IS {remark};\n",
	check: `SELECT f.problem, f.fix FROM (SELECT pg_catalog.to_regclass({name})) AS o (t) LEFT JOIN pg_catalog.pg_class AS c ON c.oid {=} o.t::pg_catalog.oid, LATERAL (VALUES
		(COALESCE(pg_catalog.obj_description(o.t::pg_catalog.oid, 'pg_class'), '') {<>} {remark}, 'there is no table of locks of this dialect and version, so requests fail', 'run the SQL that lockctl schema prints'),
		(c.relpersistence {=} 'u', 'the table is UNLOGGED: a crash of the server empties it, and then two owners may hold the same key', 'ALTER TABLE {table} SET LOGGED'),
		(c.relrowsecurity, 'row security hides rows from some roles, so that their requests fail', 'ALTER TABLE {table} DISABLE ROW LEVEL SECURITY'),
		(pg_catalog.current_setting('synchronous_commit') {=} 'off' OR pg_catalog.current_setting('synchronous_commit') {=} 'local' OR pg_catalog.current_setting('fsync') {=} 'off', 'synchronous_commit is off or local, or fsync is off: after a crash or a failover the server may not know its last leases and results, and then two owners may hold the same key', 'set both to on'),
		(pg_catalog.current_setting('server_encoding') {<>} 'UTF8', 'the database is not in UTF8: requests for some keys fail', 'use a database in UTF8'),
		(pg_catalog.current_setting('idle_in_transaction_session_timeout') {=} '0', 'idle_in_transaction_session_timeout is 0: a program that stops in a transaction with StillHeld or Complete, as a frozen Lambda environment does, keeps the row of its key locked', 'set it for the role, to some seconds more than its longest transaction waits')
		) AS f (bad, problem, fix) WHERE f.bad`,
	extent: "SELECT CASE WHEN c.reltuples {<} 0::pg_catalog.float4 THEN (SELECT pg_catalog.count(*) FROM {table}) ELSE c.reltuples::pg_catalog.int8 END, " +
		"pg_catalog.pg_total_relation_size(c.oid) FROM pg_catalog.pg_class AS c WHERE c.oid {=} {name}::pg_catalog.regclass::pg_catalog.oid",
	faults: []fault{
		{"^(42P05|26000)$", nil, pooler},
		{"^08P01$", nil, refusesToo},
		{"^(08|40003|57P|58|XX)", nil, ""}, // the connection or the session has ended; a proxy may say 58 and XX of a server that it has lost
		{"^(40001|40P01|23505)$", conflict, ""},
		{"^(42P01|42703|42804|42809|3F000|42601|22...)$", corrupt, noTable},
		{"^42501$", refused, noRights},
		{"^25006$", refused, onlyRead},
		{"^55P03$", refused, tooLong},
		{"^[0-9A-Z]{5}$", refused, ""},
	},
}

// DSQL is Aurora DSQL, and for CockroachDB.
var DSQL = func() *Dialect {
	d := *PostgreSQL
	d.name, d.schemes, d.refuses, d.alone, d.bound, d.answer = "DSQL", []string{"dsql"}, "WHEN false THEN '' ", "", "", "%s RETURNING version, '', written, ''"
	d.create, d.check = "CREATE TABLE IF NOT EXISTS {table}"+columns+";\n", "SELECT '', '' WHERE false"
	// The clock is that of the machine that runs the statement. These follow Amazon's Time Sync Service, to fractions of a millisecond; those of
	// CockroachDB differ by half a second at most, or stop.
	d.skew = 500 * time.Millisecond
	return &d
}()

// elapsed is the time since MySQL's NOW, which is that of the statement or what SET timestamp says, in the time zone of the session.
const elapsed = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"

// MySQL is 8.0 or later, and MariaDB 10.6 or later.
var MySQL = &Dialect{
	name: "MySQL", schemes: []string{"mysql", "mariadb"}, mark: "`", operator: "%s", resolution: time.Microsecond,
	// Nothing rests on the connection's character set, its collation, time zone and sql_mode.
	literal: func(s string) string { return "X'" + hex.EncodeToString([]byte(s)) + "'" },
	now:     "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + " + elapsed + ")", clock: "LAST_INSERT_ID({now})", locks: " FOR UPDATE",
	refuses: "WHEN CONCAT(@@read_only) NOT IN ('0', 'OFF') OR @@innodb_read_only = 1 THEN 'this server only reads' " + // of MariaDB 12 a text
		"WHEN " + elapsed + " NOT BETWEEN 0 AND 60000000 THEN 'SET timestamp has changed the clock of the session' " + // or summer time has begun or ended
		"WHEN /*!80000 @@transaction_isolation *//*M! @@tx_isolation */ = 'READ-UNCOMMITTED' THEN 'the isolation level is READ UNCOMMITTED' ",
	alone: "WHEN @@autocommit = 0 THEN 'autocommit is off' /*M! WHEN @@in_transaction = 1 THEN '" + leftOpen + "' */ ",
	bound: " AND @@autocommit = 1 /*M! AND @@in_transaction = 0 */", // these alone are known before it locks the row
	// A server without Galera may not know its variables.
	once: "SELECT {request}, IF(SLEEP(0.001) = 0 AND SYSDATE(6) = NOW(6), 'the server has the option sysdate-is-now: SET timestamp could change its clock', ''), '' " +
		"/*M! UNION ALL SELECT {request}, 'this server is a node of a Galera cluster: each node has a clock of its own', '' FROM information_schema.global_variables " +
		"WHERE variable_name = 'WSREP_ON' AND variable_value = 'ON' */",
	create: "CREATE TABLE IF NOT EXISTS {table}" + strings.NewReplacer("key text", "`key` varbinary(1024)", "version text", "version varbinary(64)", "entry text", "entry mediumblob").Replace(columns) +
		" ENGINE=InnoDB ROW_FORMAT=DYNAMIC COMMENT={remark};\n",
	check: `SELECT 'there is no table of locks of this dialect and version, or it is not in InnoDB, so requests fail', 'run the SQL that lockctl schema prints' FROM DUAL
		WHERE NOT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = {schema} AND table_name = {bare} AND table_comment = {remark} AND engine = 'InnoDB')
		UNION ALL SELECT 'innodb_flush_log_at_trx_commit is not 1: after a crash the server may not know its last leases and results, and then two owners may hold the same key', 'set it to 1' FROM DUAL WHERE @@innodb_flush_log_at_trx_commit <> 1
		UNION ALL SELECT 'innodb_lock_wait_timeout is more than 10 s: so long may a request wait for a row that a transaction has', 'set it to 2 in the URL or the DSN' FROM DUAL WHERE @@innodb_lock_wait_timeout > 10`,
	extent: "SELECT COALESCE(table_rows, 0), COALESCE(data_length, 0) FROM information_schema.tables WHERE table_schema = {schema} AND table_name = {bare}",
	faults: []fault{
		{`^Error (1053|107[789]|1152|1158|1159|116[01]|1180|1184|1927|4031|[29]\d{3})\b`, nil, ""}, // the connection or the server ends, or a proxy has lost it
		{`^Error (1213|1020|1062|3101)\b`, conflict, ""},
		{`^Error (1146|1054|1136|1364|1049|1046|1064)\b`, corrupt, noTable},
		{`^Error (1142|1143|1044|1045|1370)\b`, refused, noRights},
		{`^Error (1290|1792|1836)\b`, refused, onlyRead},
		{`^Error (1205|3572)\b`, refused, tooLong},
		{`^Error [1-9]\d{3}\b`, refused, ""},
	},
}

// SQLite is 3.37 or later.
var SQLite = &Dialect{
	name: "SQLite", schemes: []string{"sqlite"}, schema: "main", mark: `"`, operator: "%s", resolution: time.Millisecond,
	literal: func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" },
	now:     "(CAST(strftime('%s', 'now') || substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)", // milliseconds; 'now' is one moment in a statement
	refuses: "WHEN (SELECT file FROM pragma_database_list WHERE name = 'main') = '' THEN 'the database is in memory: each connection has its own' ",
	once:    "SELECT {request}, '', file FROM pragma_database_list WHERE name = 'main'",
	insert:  " ON CONFLICT DO NOTHING", answer: "%s RETURNING version, '', written, ''",
	create: "CREATE TABLE IF NOT EXISTS {table}" + strings.NewReplacer("text", "TEXT", "bigint", "INTEGER").Replace(columns) + " STRICT;\n",
	check: `SELECT 'there is no table of locks, so requests fail', 'run the SQL that lockctl schema prints' WHERE NOT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = {bare})
		UNION ALL SELECT 'synchronous is not FULL: after a power cut the last leases and results may be lost, and then two owners may hold the same key', 'let each connection begin with PRAGMA synchronous = FULL' WHERE (SELECT synchronous FROM pragma_synchronous) < 2
		UNION ALL SELECT 'journal_mode is off or memory: a crash in the middle of a write damages the file', 'PRAGMA journal_mode = WAL' WHERE (SELECT journal_mode FROM pragma_journal_mode) IN ('off', 'memory')`,
	extent: "SELECT (SELECT count(*) FROM {table}), (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)",
	faults: []fault{
		{"is locked", refused, tooLong},
		{"within a transaction", refused, "; " + leftOpen},
		{"no such table|no such column|values were supplied|has no column", corrupt, noTable},
		{"malformed|not a database", corrupt, "; the file is damaged, or it is no database"},
		{"readonly database|unable to open", refused, noFolder},
		{"disk is full", refused, noSpace},
		{"disk I/O error", nil, noSpace},
		{"interrupted|out of memory", refused, ""},
	},
}
