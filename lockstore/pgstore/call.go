package pgstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// call is one request. It is also its argument owner: database/sql asks for its value each time just before the driver sends the
// request. So a request whose owner nobody has asked for was not sent, whatever the error is. database/sql
// sends a request again if the driver says that the connection was bad, and some drivers say so after a lost reply.
type call struct {
	key     string
	kind    driver.Kind
	owner   driver.Owner
	request string // what the answer has to name
	state   atomic.Uint32
}

// Bits of a call's state.
const (
	sent     = 1 << iota
	again    // it was sent more than once
	returned // the caller has returned, so it must not be sent
)

// Value implements driver.Valuer of database/sql.
func (c *call) Value() (sqldriver.Value, error) {
	for {
		before := c.state.Load()
		after := before | sent
		if before&sent != 0 {
			after |= again
		}
		if before&returned != 0 {
			return nil, context.Canceled
		}
		if c.state.CompareAndSwap(before, after) {
			return string(c.owner), nil
		}
	}
}

func (c *call) repeated() bool { return c.state.Load()&again != 0 }

// String hides the owner from drivers that log arguments.
func (c *call) String() string { return c.owner.String() }

// queries is a *sql.DB or a *sql.Tx.
type queries interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// send sends a request to the function. It returns when ctx ends. The error says whether the request may have been applied.
func (s *server) send(ctx context.Context, key string, r driver.Request) (*row, *call, error) {
	c, got := &call{owner: r.Owner, kind: r.Kind, key: key}, &row{}
	args, into := arguments(s.Table, r.Kind.String(), key, s.channel, c, r), got.into()
	err := s.detached(ctx, c, func() error {
		if s.Unprepared {
			return one(ctx, s.db, s.statement, args, into)
		}
		stmt, err := s.prepared(ctx)
		if err != nil {
			return err
		}
		err = one(ctx, prepared{stmt}, "", args, into)
		if code := sqlState(err); code == "26000" || code == "0A000" { // the session or the function has changed
			s.mu.Lock()
			if s.stmt == stmt {
				s.stmt = nil
			}
			s.mu.Unlock()
			_ = stmt.Close()
		}
		return err
	})
	return got, c, err
}

// query sends another statement that answers with one row, as send.
func (s *server) query(ctx context.Context, c *call, statement string, args []any, into ...any) error {
	return s.detached(ctx, c, func() error { return one(ctx, s.db, statement, args, into) })
}

// detached runs a call in another goroutine: not every driver returns when the context ends.
func (s *server) detached(ctx context.Context, c *call, f func() error) error {
	done := make(chan error, 1)
	if ctx.Done() == nil {
		done <- f()
	} else {
		go func() { done <- f() }()
	}
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done: // if both happen at the same time, the answer counts
		default:
			return s.outcome(c, c.state.Or(returned), ctx.Err())
		}
	}
	if err != nil {
		if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
		err = s.outcome(c, c.state.Load(), err)
	}
	return err
}

// prepared is the prepared statement of all requests. To prepare sends nothing that changes anything.
func (s *server) prepared(ctx context.Context) (*sql.Stmt, error) {
	s.mu.Lock()
	stmt := s.stmt
	s.mu.Unlock()
	if stmt != nil {
		return stmt, nil
	}
	stmt, err := s.db.PrepareContext(ctx, s.statement)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stmt == nil {
		s.stmt = stmt
	} else {
		defer stmt.Close()
	}
	return s.stmt, nil
}

type prepared struct{ *sql.Stmt }

func (p prepared) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	return p.Stmt.QueryContext(ctx, args...)
}

// one reads the only row of an answer, and what follows: the commit can fail after the row was sent.
func one(ctx context.Context, q queries, statement string, args, into []any) error {
	n := 0
	err := each(ctx, q, statement, args, func(rows *sql.Rows) error {
		n++
		return rows.Scan(into...)
	})
	if err == nil && n != 1 {
		err = fmt.Errorf("the answer has %d rows", n)
	}
	return err
}

func each(ctx context.Context, q queries, statement string, args []any, f func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}

// sqlState is the code of a server's error, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// outcome is the error of a failed request: either certainly not applied, or unknown. A server's error undoes the whole statement.
func (s *server) outcome(c *call, state uint32, err error) error {
	code := sqlState(err)
	refused := code != "" && !slices.ContainsFunc(unclear, func(prefix string) bool { return strings.HasPrefix(code, prefix) })
	if state&again != 0 || state&sent != 0 && !refused {
		return fmt.Errorf("pgstore: key %q: outcome unknown: %w%s", c.key, err, pooled(code))
	}
	return s.Table.refusal(fmt.Sprintf("key %q: not applied", c.key), err)
}

// unclear are the classes of errors that say nothing about the statement: the connection or the session has ended.
var unclear = []string{"08", "40003", "57P"}

// pooler is the advice if a request may have met what another client of a pooler has left on its connection.
const pooler = "; if a pooler gives the connections of this program to others in between: set Options.Unprepared, and let the driver send each request in one message, with lib/pq by binary_parameters=yes in the URL, with pgx by default_query_exec_mode=exec"

// pooled is that advice for an error with this code: a prepared statement is there already or is not there, or it is one of another
// table, or one with other arguments.
func pooled(code string) string {
	if !slices.Contains([]string{"42P05", "26000", "LL002", "08P01"}, code) {
		return ""
	}
	return pooler
}

// runSchema is what to do if the table or its functions are missing.
const runSchema = "run the SQL that lockctl schema prints (pgstore.Schema returns it)"

// refusal is the error of a statement that was certainly not applied.
func (t Table) refusal(what string, err error) error {
	code, kind, advice := sqlState(err), lockstore.ErrUnavailable, ""
	switch {
	case slices.Contains([]string{"42P01", "42883", "42703", "42704", "42804", "42809", "3F000", "LL001"}, code):
		kind, advice = lockstore.ErrCorrupt, "; the table or its functions are missing, of another version or another program's: "+runSchema+", in the database and the schema of this connection"
	case strings.HasPrefix(code, "22"):
		kind, advice = lockstore.ErrCorrupt, "; the row is damaged, or the database is not in UTF8"
	case code == "42501":
		advice = fmt.Sprintf("; the role needs: GRANT SELECT, INSERT, UPDATE ON %[1]s TO …, for parked places GRANT SELECT, INSERT, UPDATE, DELETE ON %[1]s_address TO …, and USAGE on the schema", t)
	case pooled(code) != "":
		advice = pooled(code)
	case code == "25006":
		advice = "; this server or this role only reads: want the primary's address, and no default_transaction_read_only"
	}
	return fmt.Errorf("pgstore: %s: %w: %w%s", what, kind, err, advice)
}
