// Package pgstore keeps locks in a table of PostgreSQL (14 or later), through database/sql. One function of the
// database makes all decisions. A free key takes one statement to acquire and one to release. The package is a
// module of its own, and has no driver.
//
// # Set-up
//
// The program chooses a driver, such as github.com/lib/pq or github.com/jackc/pgx/v5/stdlib:
//
//	db, err := sql.Open("postgres", url)
//	store, err := pgstore.New(db, pgstore.Options{})
//
// or, for a URL such as LOCK_URL:
//
//	pgstore.Opener(func(url string) (*sql.DB, error) { return sql.Open("postgres", url) }, pgstore.Options{})
//
//	postgres://user:password@host:port/database?sslmode=verify-full&table=lambdalock_locks
//
// The parameter table is the store's, all others are the driver's. No error of the store shows the URL.
//
// Before the first use, somebody with the rights to create tables runs the statements of [Schema] in the database.
// They make the table, a table of addresses, a view for people and functions, and they may run again. The
// store makes nothing.
//
//	GRANT SELECT, INSERT, UPDATE ON lambdalock_locks TO app                          for locks
//	GRANT SELECT, INSERT, UPDATE, DELETE ON lambdalock_locks_address TO app          for parked places
//	GRANT SELECT ON lambdalock_locks_held TO people                                  who holds which key; it has no owner
//
// Who may read lambdalock_locks knows the owners, and can release their leases. So does who reads a log of the server that
// has the parameters of statements: set log_parameter_max_length = 0. If search_path has several schemas, name the schema
// in the parameter table, or two programs may use two tables. Nobody else may create objects in these schemas.
//
// # Connections
//
// Each request is one statement, and a transaction of its own. So a process that is frozen or dies between two
// requests leaves nothing open. The store prepares its statement once for each connection. A *sql.DB should allow
// at least two connections, so that a renewal does not wait for the program's own transaction.
//
// Behind a pooler such as PgBouncer:
//
//	session mode             works as without a pooler
//	transaction, statement   set Options.Unprepared, and let the driver send each request in one message:
//	mode                     lib/pq with binary_parameters=yes in the URL, pgx with
//	                         default_query_exec_mode=exec or simple_protocol
//
// Without these settings a pooler in transaction mode may mix the messages of two clients. Each request names its
// table, and each answer its request, so no request is applied to another table, and no answer is taken for that
// to another request: such a request fails, and the error names the settings. In statement mode there are no
// transactions, so no [StillHeld] and [Complete] with a transaction.
//
// # Waiting
//
// With [Options.Listen] whoever hands the key over sends a notification, and the run that has waited starts
// without a further request. The function needs a connection of its own while runs of this process wait. RDS Proxy
// pins a connection that listens, and PgBouncer has no notifications in transaction mode: there it needs the
// address of the server itself. The server wakes every session of the database that listens, whoever a
// notification is for. So with a hundred processes that wait and hundreds of hand-overs a second, reading costs
// less.
//
// Without it, a run reads its key: after 10 ms for each place up to its own and a 20th of the time for which it
// has waited, at least every 0.5 s.
//
// A run whose key is handed over by another run of its process learns that at once. A notification has neither the
// key nor the owner, and who does not know the owner cannot make one that is believed.
//
// # Clock
//
// Only the server's clock decides which lease is live, which has expired, and what the next fence is. The function
// reads it when it has the row of the key:
//
//		fence = max(last fence + 1, server's time in microseconds)
//
//	  - If the server's clock jumps ahead, leases end early. Then only fences protect the resource from late writes.
//	  - If it steps back, a lease that began in the future begins now: the next request of anybody writes that.
//
// # Transactions
//
// With [StillHeld] or [Complete] in a transaction of the program the effect is committed only if no other owner
// was granted the key, and with Complete exactly once. From this call to the end of the transaction the row of the
// key is locked: other requests for the key wait, the renewal of this lease among them. So call it last. Everybody
// waits if the program stops there, as a frozen Lambda environment does. Set idle_in_transaction_session_timeout
// for its role: Check asks for that. lib/pq sees the end of a context only when the server answers: in a
// transaction of the program the calls then return late. Requests of the store itself return when their context
// ends.
//
// The isolation level is READ COMMITTED. In REPEATABLE READ or SERIALIZABLE the call fails with SQLSTATE 40001 if
// the row has changed since the transaction's first statement, by a renewal for example, and matches
// lockstore.ErrLost if there was no row. A savepoint in front of the call must not be rolled back to: that gives
// the row free, although the call has returned nil.
//
// # Consistency
//
// A commit survives a crash of the server, unless fsync or synchronous_commit is off: see Check. With asynchronous
// replication a failover can lose the last leases and results, as the effects that were committed with them. Then
// two owners may hold the key for a while, and the next fence may be smaller than the lost one if the new
// primary's clock is behind. Amazon RDS Multi-AZ and Aurora lose no commit. A replica refuses every request, also
// those that only read. An old primary that the others have cut off does not know it, and goes on answering,
// unless it needs a synchronous replica for a commit.
//
// # Outcomes
//
// Every call returns when its context ends. An error matches lockstore.ErrUnavailable if the request was not sent,
// or if the server's answer is an error: it has undone the statement then. It matches lockstore.ErrCorrupt if the
// table or the function is missing or another one, or if the row is damaged; the text says what to do. After a
// lost connection, and SQLSTATE 08xxx, 40003 and 57Pxx, the outcome is unknown: repeat the same call to learn it.
//
// # Rows
//
// A key has one row, from its first use on. It has the last fence, who holds the key, the queue of 128 places, and
// the last 8 owners that have ended. The store deletes no row. The column until says when a row is not needed any
// more; it is infinity while work that has started is not resolved. An operator may run
//
//	DELETE FROM lambdalock_locks WHERE until < now() - interval '1 day';
//	DELETE FROM lambdalock_locks_address WHERE until < now();
//
// at any time. The next fence of such a key is larger unless the clock has stepped back by more than a day.
//
// Each request that changes something writes a new version of the row. Autovacuum removes the old ones; a
// transaction anywhere in the database that stays open for long keeps it from doing so, and then requests become
// slow.
//
// # Limits
//
//   - Tested: with PostgreSQL 15, PgBouncer 1.18 and the driver lib/pq. All tests passed once with pgx v5, and those
//     behind PgBouncer with v5.10; they are not repeated with it.
//   - Never tested: with Amazon RDS, Aurora, RDS Proxy, and databases that are like PostgreSQL.
package pgstore
