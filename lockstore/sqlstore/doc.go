// Package sqlstore keeps locks in a table of a SQL database, through database/sql: PostgreSQL (14 or later; also Aurora and Neon), Aurora
// DSQL, MySQL (8.0 or later) and MariaDB (10.6 or later), and SQLite. It needs plain statements alone, no function or procedure. A free key
// takes two statements; on MySQL and SQLite the first request of a store takes one more. The package is a module of its own, and has no driver.
//
//	db, err := sql.Open("postgres", url)
//	db.SetMaxOpenConns(10)
//	db.SetMaxIdleConns(10)
//	store, err := sqlstore.New(db, sqlstore.Options{Table: sqlstore.Table{Dialect: sqlstore.PostgreSQL}})
//
// Somebody with the rights to create tables runs the statements of [Table.Schema] first. A role needs SELECT, INSERT and UPDATE. Who may
// read the table, or a log of the server that has statements, knows the owners, which are secret.
//
// # Connections
//
// Each request is one statement without arguments, in a transaction of its own. It names its schema, of MySQL the database, so nothing depends on the
// settings of a session, and poolers in transaction mode, such as PgBouncer, need none. In a transaction of the program the statements
// of PostgreSQL have arguments, so that pgx caches few: behind such a pooler it needs default_query_exec_mode=simple_protocol, as for the
// program's own statements. RDS Proxy keeps the connection of a program that writes. Each answer
// names its request. If there are more requests than connections, those of holders go first. Allow at least two connections, so that a renewal does not wait
// for the program's own transaction. pgx and go-sql-driver/mysql end a connection with the context of its request. lib/pq goes on reading: if packets get
// lost, its connection keeps its place in the pool. A driver around pgx, such as otelsql, may hide it: then set default_query_exec_mode=simple_protocol.
//
// What a request must not rest on is refused with its name: an encoding that is not UTF8, row security, a server or a session that only
// reads, of MySQL autocommit = 0, READ UNCOMMITTED, a clock that SET timestamp has changed, and Galera, and a file of SQLite on a network file system. So is
// a connection of the pool on which the program has left a transaction open. MySQL itself (other than MariaDB) and DSQL do not tell: a lock that is
// granted there ends with a rollback, and then two owners may hold the key. A request waits for a row that a transaction has for two seconds at
// most; on MySQL for innodb_lock_wait_timeout, and on SQLite for the file, five seconds. A wake-up that the server refuses, because its queue of
// notifications is full, costs no release.
//
// # Clock and consistency
//
// Only the server's clock decides which lease is live; that of SQLite shows milliseconds. On DSQL each statement has the time of the
// machine that runs it; these may differ by 0.5 s, so others wait for so long when a holder dies.
//
// A commit survives a crash of the server, unless a setting says otherwise: see the store's Check. With asynchronous replication a failover
// can lose the last leases and results; then two owners may hold the key for a while. A server's error has undone the statement. After a
// lost connection the outcome is unknown: repeat the same call to learn it.
//
// A key has one row, from its first use on. An operator may delete it if the key is free and nobody will use it in the next minute. A SQLite
// file is for the processes of one host, not on a network file system. On DSQL keys near 1,024 bytes may be too long.
//
// Tested: PostgreSQL 15 with lib/pq and pgx v5, PgBouncer 1.18, MariaDB 10.11, SQLite with modernc.org/sqlite. Never run: Aurora, Neon, RDS
// Proxy, MySQL, DSQL and CockroachDB; the statements for the last two run on PostgreSQL at REPEATABLE READ.
package sqlstore
