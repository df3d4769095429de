package pgstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Options are a store's settings. All programs that use one resource need the same Table.
type Options struct {
	// Table is the table of the locks; "" is DefaultTable.
	Table Table

	// Listen, if it is not nil, listens to a channel of the database, and calls woken with the payload of each
	// notification. It calls woken("") as soon as it listens, and whenever it listens again after the connection
	// was lost. It returns when ctx ends, or with an error when it cannot listen any more; the store calls it
	// again when the next run waits. It needs a connection of its own, for as long as it listens. The store calls it
	// when the first run of this process waits, and ends ctx when none has waited for some seconds.
	//
	// With Listen a run that waits is woken at once. Without it, it reads its key, with pauses.
	Listen func(ctx context.Context, channel string, woken func(payload string)) error

	// Unprepared sends each request without a prepared statement of the session, for a pooler in transaction or
	// statement mode. The driver has to send the statement and its arguments in one message: with lib/pq set
	// binary_parameters=yes in the URL, with pgx default_query_exec_mode=exec. Otherwise requests fail that meet
	// those of other clients of the pooler.
	Unprepared bool
}

// New returns a store that keeps its locks in a table of the database. It sends nothing. The caller closes the store,
// and then db. An error that it returns matches lockstore.ErrInvalid.
func New(db *sql.DB, o Options) (*lockstore.Store, error) {
	if db == nil {
		return nil, lockstore.Invalidf("pgstore: the *sql.DB is nil")
	}
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if err := o.Table.validate(); err != nil {
		return nil, err
	}
	s := &server{Options: o, db: db, statement: o.Table.statement()}
	if o.Listen != nil {
		s.channel = "lambdalock_" + strings.ToLower(rand.Text()[:16])
	}
	return lockstore.New("pgstore", s), nil
}

var parts = storeurl.Parts{
	Want: "postgres://USER:PASSWORD@HOST:PORT/DATABASE?table=TABLE, and parameters of the driver",
	User: true, Host: true, Port: true, Path: true, Params: []string{"table"}, OtherParams: true,
}

// Opener opens stores for URLs with the scheme postgres or postgresql. open makes the database of the URL: it is
// where the program chooses its driver. It gets the URL without the parameter table, which is Options.Table if it is there.
//
//	pgstore.Opener(func(url string) (*sql.DB, error) { return sql.Open("postgres", url) }, pgstore.Options{})
//
// A program that has a *sql.DB already returns it from open, whatever the URL is. The store does not close it.
func Opener(open func(url string) (*sql.DB, error), o Options) lockstore.SchemeOpener {
	return lockstore.SchemeOpener{Schemes: []string{"postgres", "postgresql"}, Open: func(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
		if open == nil {
			return nil, lockstore.Invalidf("pgstore: the function that opens the database is nil")
		}
		params, err := storeurl.Params(cfg.URL, parts)
		if err != nil {
			return nil, err
		}
		u, o := *cfg.URL, o
		if table := params["table"]; table != "" {
			o.Table = Table(table)
			if err := o.Table.validate(); err != nil {
				return nil, err
			}
			query := u.Query()
			query.Del("table")
			u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		}
		db, err := open(u.String())
		if err != nil {
			// The text of a driver may have the URL.
			return nil, lockstore.Invalidf("pgstore: the function that opens the database of the URL fails with a %T (not shown, it may hold a secret)", err)
		}
		return New(db, o)
	}}
}

// server is the driver.
type server struct {
	Options
	db        *sql.DB
	statement string // of all requests
	channel   string // where this process listens; "" without Listen

	mu   sync.Mutex
	stmt *sql.Stmt // nil before the first request

	wakeUps
}

// places is how many places a queue has, and marks how many owners that have ended a key remembers. The function has both numbers.
const (
	places = 128
	marks  = 8
)

// row is the answer of the function. What is NULL is zero.
type row struct {
	outcome, why, holder         string
	fence, ttl, remaining        int64
	seat, place, state           int
	waiting, parked              int
	started                      bool
	result                       []byte
	holders, handedOver, wakesUp string
	request                      string
}

const columns = "outcome, why, fence, seat, ttl, place, state, holder, remaining, waiting, parked, started, result, holders, handed, wake, request"

func (r *row) into() []any {
	return []any{orZero(&r.outcome), orZero(&r.why), orZero(&r.fence), orZero(&r.seat), orZero(&r.ttl), orZero(&r.place), orZero(&r.state), orZero(&r.holder),
		orZero(&r.remaining), orZero(&r.waiting), orZero(&r.parked), orZero(&r.started), &r.result, orZero(&r.holders), orZero(&r.handedOver), orZero(&r.wakesUp), orZero(&r.request)}
}

// nullable leaves a variable as it is if the column is NULL.
type nullable[T any] struct{ into *T }

func orZero[T any](into *T) nullable[T] { return nullable[T]{into} }

// Scan implements sql.Scanner.
func (n nullable[T]) Scan(value any) error {
	var v sql.Null[T]
	err := v.Scan(value)
	*n.into = v.V
	return err
}

// arguments are those of the function, with what the kind of the request reads. The owner is the call itself, see call.
func arguments(t Table, kind, key, channel string, c *call, r driver.Request) []any {
	flag := r.Join || r.AtOnce || r.Effect
	c.request = requestText(kind, c.owner, key)
	return []any{t.asked(), kind, key, c, int64(r.Fence), micros(r.TTL), r.MaxHolders, r.Holder, flag, micros(r.Parked), channel, []byte(r.Result)}
}

// requestText is what the function puts into its answer to a request.
func requestText(kind string, owner driver.Owner, key string) string {
	return kind + " " + string(owner) + " " + key
}

// micros rounds up, so that a lease is not shorter than requested.
func micros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

func duration(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

// Do implements driver.Driver.
func (s *server) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	got, c, err := s.send(ctx, key, r)
	if err != nil {
		return driver.Answer{}, err
	}
	for line := range strings.Lines(got.handedOver) {
		_, news, _ := strings.Cut(strings.TrimSpace(line), " ")
		s.woken(news) // the owner may wait in this process
	}
	return got.answer(c)
}

var outcomes = map[string]driver.Outcome{
	"granted": driver.Granted, "done": driver.Done, "refused": driver.Refused, "": driver.Lost, "holding": driver.Holding,
	"exclusive": driver.Exclusive, "not yet": driver.NotYet, "ask": driver.Ask,
}

// answer is a row in the words of a driver. A row that is no answer is an error.
func (r *row) answer(c *call) (driver.Answer, error) {
	a := driver.Answer{Outcome: outcomes[r.outcome], Why: r.why, Seat: r.seat, TTL: duration(r.ttl), Position: r.place}
	state := driver.State(r.state)
	switch {
	case r.request != c.request:
		return a, fmt.Errorf("pgstore: key %q: outcome unknown: the answer is that to another request%s", c.key, pooler)
	case r.outcome == "corrupt":
		return a, fmt.Errorf("pgstore: key %q: the row is damaged: %w", c.key, lockstore.ErrCorrupt)
	case a.Outcome == 0 || state < driver.Free || state > driver.InDoubt:
		return a, fmt.Errorf("pgstore: key %q: the function has the unknown answer %.40q with the state %d, outcome unknown", c.key, r.outcome, r.state)
	case a.Outcome == driver.Lost && c.repeated() && forgets(c.kind):
		// The other attempt may have been applied, and other owners may have had the key since. Lost would say
		// that the request had no effect.
		return a, fmt.Errorf("pgstore: key %q: outcome unknown: a reply was lost, and the row does not show this lease", c.key)
	case a.Outcome == driver.Granted || a.Outcome == driver.Holding:
		a.Fence = driver.Fence(r.fence)
	default:
		a.Status = driver.Status{
			State: state, Fence: driver.Fence(r.fence), Holder: r.holder, Remaining: duration(r.remaining), Waiting: r.waiting, Parked: r.parked,
			Result: r.result, Started: r.started,
		}
		for line := range strings.Lines(r.holders) {
			words := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 6)
			var n [5]int64
			for i := range min(len(words), len(n)) {
				n[i], _ = strconv.ParseInt(words[i], 10, 64)
			}
			h := driver.LiveLease{Fence: driver.Fence(n[0]), Seat: int(n[1]), MaxHolders: int(n[2]), State: driver.State(n[3]), Remaining: duration(n[4])}
			h.Text = words[len(words)-1]
			a.Status.Holders = append(a.Status.Holders, h)
		}
	}
	if a.Outcome == driver.Refused {
		a.Hint = note{fence: driver.Fence(r.fence), place: r.place}.text()
	}
	for line := range strings.Lines(r.handedOver) {
		owner, _, _ := strings.Cut(line, " ")
		a.HandedOver = append(a.HandedOver, driver.Owner(owner))
	}
	for line := range strings.Lines(r.wakesUp) {
		a.Wake = append(a.Wake, driver.Owner(strings.TrimSpace(line)))
	}
	return a, nil
}

// note is what a waiter has seen: the last fence, and its place.
type note struct {
	fence driver.Fence
	place int
}

func (n note) text() driver.Hint {
	return driver.Hint(strconv.FormatInt(int64(n.fence), 10) + " " + strconv.Itoa(n.place))
}

func readNote(text driver.Hint) (n note, ok bool) {
	fence, place, _ := strings.Cut(string(text), " ")
	f, err := strconv.ParseInt(fence, 10, 64)
	n.fence = driver.Fence(f)
	n.place, _ = strconv.Atoi(place)
	return n, err == nil
}

// forgets reports whether a second attempt of a request, after other owners had the key, may be lost although the
// first attempt was applied.
func forgets(k driver.Kind) bool {
	switch k {
	case driver.Release, driver.MarkStarted, driver.Complete, driver.Resolve, driver.Revoke:
		return true
	}
	return false
}
