package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// pageSize is how many keys one request lists.
const pageSize = 500

// List implements driver.Lister, by one request for each page.
func (s *server) List(ctx context.Context, prefix string, page func(driver.Page) error) error {
	// The first function refuses a request that is for another table, also if this one is empty.
	statement := "SELECT l.* FROM " + string(s.Table) + "_asked($1) LEFT JOIN LATERAL (SELECT l.key, " + columns + " FROM (SELECT key FROM " + string(s.Table) +
		" WHERE key > $13 AND starts_with(key, $14) ORDER BY key LIMIT $15) l, LATERAL " +
		string(s.Table) + "_do(" + parameters("l.key || ") + ")) l ON true ORDER BY l.key"
	for last := ""; ; {
		p, read := driver.Page{}, 0
		c := &call{}
		args := append(arguments(s.Table, driver.Inspect.String(), "", "", c, driver.Request{}), last, prefix, pageSize)
		err := s.detached(ctx, c, func() error {
			return each(ctx, s.db, statement, args, func(rows *sql.Rows) error {
				var got row
				var key string
				if err := rows.Scan(append([]any{orZero(&key)}, got.into()...)...); err != nil || key == "" {
					return err // without a key the page is empty
				}
				last = key
				read++
				a, err := got.answer(&call{key: last, request: requestText(driver.Inspect.String(), "", last)})
				if errors.Is(err, lockstore.ErrCorrupt) || lockstore.ValidateKey(last) != nil {
					p.Damaged++
					p.DamagedNames = append(p.DamagedNames, last)
					return nil
				}
				p.Keys = append(p.Keys, driver.Listed{Key: last, Status: a.Status})
				return err
			})
		})
		if err != nil {
			return err
		}
		if err := page(p); err != nil || read < pageSize {
			return err
		}
	}
}

// Extent implements driver.Lister by what the server knows of the table since it has last looked. If it never has, it counts.
func (s *server) Extent(ctx context.Context) (e driver.Extent, err error) {
	err = s.query(ctx, &call{}, "SELECT CASE WHEN reltuples < 0 THEN (SELECT count(*) FROM "+string(s.Table)+") ELSE reltuples::bigint END, pg_total_relation_size(oid) FROM pg_class WHERE oid = '"+string(s.Table)+"'::regclass", nil, &e.Entries, &e.Bytes)
	if err != nil {
		return driver.Extent{}, err // the statement may go on, and set e
	}
	return e, nil
}

// Check implements driver.Checker. It finds a table that is missing or of another version, rights that the role does not have, a server that only
// reads, a server that forgets what it has said, and transactions that may wait without end.
func (s *server) Check(ctx context.Context) ([]driver.Finding, error) {
	var version, comment, isolation, encoding, commit, flush, idle string
	var reads, sees, inserts, updates bool
	err := s.query(ctx, &call{}, `SELECT current_setting('server_version_num'), coalesce(obj_description(t, 'pg_class'), ''),
		current_setting('default_transaction_isolation'), current_setting('server_encoding'), current_setting('synchronous_commit'), current_setting('fsync'),
		current_setting('idle_in_transaction_session_timeout'), pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on',
		coalesce(has_table_privilege(t, 'SELECT'), true), coalesce(has_table_privilege(t, 'INSERT'), true), coalesce(has_table_privilege(t, 'UPDATE'), true)
		FROM (SELECT to_regclass($1)::oid) o (t)`,
		[]any{string(s.Table)}, &version, &comment, &isolation, &encoding, &commit, &flush, &idle, &reads, &sees, &inserts, &updates)
	if err != nil {
		return nil, err
	}
	number, _ := strconv.Atoi(version)
	var all []driver.Finding
	find := func(is bool, problem, fix string) {
		if is {
			all = append(all, driver.Finding{Problem: problem, Fix: fix})
		}
	}
	find(number < oldest*10000, fmt.Sprintf("the server is PostgreSQL %d: the store was never tested there", number/10000), fmt.Sprintf("use PostgreSQL %d or later", oldest))
	find(comment != tableComment, fmt.Sprintf("%s is no table of locks of this version, so every request fails", s.Table), runSchema+", in this database")
	find(!(sees && inserts && updates), "this role may not use the table, so every request fails", fmt.Sprintf("GRANT SELECT, INSERT, UPDATE ON %s TO this role", s.Table))
	find(reads, "this server or this role only reads: it refuses every request", "use the primary's address, and no default_transaction_read_only")
	find(encoding != "UTF8", "the database is in "+encoding+": requests for some keys fail", "use a database in UTF8")
	find(isolation != "read committed", "default_transaction_isolation is "+isolation+": requests that meet for one key fail, and have to be repeated", "set it to read committed for this role")
	find(commit == "off" || flush == "off", "synchronous_commit or fsync is off: after a crash the server may not know its last leases and results, and then two owners may hold the same key", "set both to on")
	find(idle == "0", "idle_in_transaction_session_timeout is 0: a program that stops in a transaction with StillHeld or Complete, as a frozen Lambda environment does, keeps the row of its key locked", "set it for the role, to some seconds more than its longest transaction waits")
	if comment == tableComment && sees && inserts && updates && !reads {
		_, err := s.Do(ctx, "check", driver.Request{Kind: driver.Inspect})
		missing := errors.Is(err, lockstore.ErrCorrupt) || sqlState(err) == "42501"
		find(missing, fmt.Sprintf("every request fails: %v", err), runSchema+", in this database, and let this role execute its functions")
		if err != nil && !missing {
			return nil, err
		}
	}
	return all, nil
}

const (
	oldest       = 14
	tableComment = "locks of lambdalock, version 1"
)

// PutAddress implements driver.Parker, by one request, and by a second one if it replaces an address.
func (s *server) PutAddress(ctx context.Context, key string, owner driver.Owner, address driver.HiddenBytes, d time.Duration) error {
	var was driver.HiddenBytes
	for range 4 {
		there, err := s.park(ctx, &call{key: key, kind: driver.Acquire, owner: owner}, address, d, was)
		if err != nil || there == nil {
			return err
		}
		if was = there; len(there) == 0 {
			was = nil
		}
	}
	return fmt.Errorf("pgstore: key %q: not applied: others have replaced the address of the parked owner meanwhile: %w", key, lockstore.ErrUnavailable)
}

// TakeAddress implements driver.Parker. If its reply is lost, so is the address.
func (s *server) TakeAddress(ctx context.Context, key string, owner driver.Owner) (driver.HiddenBytes, error) {
	c := &call{key: key, kind: driver.Leave, owner: owner}
	taken, err := s.park(ctx, c, nil, 0, nil)
	if err == nil && taken == nil && c.repeated() {
		err = fmt.Errorf("pgstore: key %q: outcome unknown: a reply was lost, and the address of the parked owner is gone", key)
	}
	return taken, err
}

func (s *server) park(ctx context.Context, c *call, address driver.HiddenBytes, d time.Duration, was driver.HiddenBytes) (there driver.HiddenBytes, err error) {
	err = s.query(ctx, c, "SELECT "+string(s.Table)+"_park($1::text, $2::text, $3::text, $4::bytea, $5::bigint, $6::bytea)", []any{s.Table.asked(), c.key, c, []byte(address), micros(d), []byte(was)}, (*[]byte)(&there))
	if err != nil {
		return nil, err // the statement may go on, and set there
	}
	return there, nil
}
