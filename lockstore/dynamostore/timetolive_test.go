package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// states are rows that one program has made, with the lease that its owner has or had.
var states = map[string]func(*testing.T, *dynamostore.Store) lockstore.Lease{
	"free": func(t *testing.T, s *dynamostore.Store) lockstore.Lease {
		lease := held(t, s)
		require.NoError(t, s.Release(t.Context(), lease))
		return lease
	},
	"held": held,
	"held, others wait": func(t *testing.T, s *dynamostore.Store) lockstore.Lease {
		lease := held(t, s)
		wait(t, s)
		return lease
	},
	"expired": func(t *testing.T, s *dynamostore.Store) lockstore.Lease {
		lease := held(t, s)
		pass(time.Minute + takeoverDelay)
		return lease
	},
	"free, others wait": func(t *testing.T, s *dynamostore.Store) lockstore.Lease {
		lease := held(t, s)
		wait(t, s)
		require.NoError(t, s.Release(t.Context(), lease))
		return lease
	},
	"revoked": func(t *testing.T, s *dynamostore.Store) lockstore.Lease {
		lease := held(t, s)
		_, err := s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: lease.Fence})
		require.NoError(t, err)
		return lease
	},
	"started": started,
	"in doubt": func(t *testing.T, s *dynamostore.Store) lockstore.Lease {
		lease := started(t, s)
		pass(time.Minute + takeoverDelay)
		return lease
	},
	"completed": func(t *testing.T, s *dynamostore.Store) lockstore.Lease {
		lease := held(t, s)
		require.NoError(t, s.Complete(t.Context(), lease, []byte("result"), lockstore.MaxResultTime))
		return lease
	},
}

func held(t *testing.T, s *dynamostore.Store) lockstore.Lease {
	lease, err := s.Acquire(t.Context(), request(time.Minute))
	require.NoError(t, err)
	return lease
}

func started(t *testing.T, s *dynamostore.Store) lockstore.Lease {
	lease := held(t, s)
	require.NoError(t, s.MarkStarted(t.Context(), lease))
	return lease
}

func wait(t *testing.T, s *dynamostore.Store) {
	req := request(time.Minute)
	req.JoinQueue = true
	_, err := s.Acquire(t.Context(), req)
	require.ErrorIs(t, err, lockstore.ErrRefused)
}

// transact sends one item of the store's in a transaction.
func transact(service *fakedynamo.Service, it types.TransactWriteItem) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := dynamostore.ClientOver(service, fakeEndpoint, 0).TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{it}})
		return err
	}
}

// Two programs use one table, and name its time to live differently. Each would move its own
// attribute only, and DynamoDB could delete the row by the other. So each refuses the other's
// rows, at the first request, and leaves them as they are.
func TestAnotherNameOfTheTimeToLive(t *testing.T) {
	named := dynamostore.Options{TTL: "expires_at"}
	for _, c := range []struct {
		wrote, asks dynamostore.Options
		says        string
	}{
		{named, dynamostore.Options{}, `has no "ttl", the attribute of its time to live in this store's settings (ttl in the URL); it has "expires_at"`},
		{dynamostore.Options{}, named, `has no "expires_at", the attribute of its time to live in this store's settings (ttl in the URL); it has "ttl"`},
		{named, dynamostore.Options{TTL: "a", OtherTTL: "b"}, `it has "expires_at"`},
	} {
		for name, makes := range states {
			bubble(t, fmt.Sprintf("F50 %s of %q, %s", c.asks.TTL, c.wrote.TTL, name), func(t *testing.T) {
				service := fakedynamo.New(table)
				lease := makes(t, newStore(t, service, 0, c.wrote))
				before := service.Row(table, key)
				asks := newStore(t, service, 0, c.asks)
				calls := methods(asks, lease)
				calls["Acquire again"] = func(ctx context.Context) error {
					_, err := asks.Acquire(ctx, lockstore.Request{Key: key, Owner: lease.Owner, TTL: time.Minute})
					return err
				}
				calls["Leave"] = func(ctx context.Context) error { return asks.Leave(ctx, key, lease.Owner) }
				for _, now := range []bool{false, true} {
					calls[fmt.Sprint("Revoke at once ", now)] = func(ctx context.Context) error {
						_, err := asks.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: lease.Fence, OpenAtOnce: now})
						return err
					}
				}
				for method, call := range calls {
					for range 2 { // also when the store knows DynamoDB's time and has sent fences
						sent := service.Requests()
						err := call(t.Context())
						require.ErrorIs(t, err, lockstore.ErrCorrupt, method)
						require.ErrorContains(t, err, c.says, method)
						require.NotErrorIs(t, err, lockstore.ErrLost, method)
						require.Equal(t, sent+1, service.Requests(), method)
						require.Equal(t, before, service.Row(table, key), method)
					}
				}
				for what, call := range map[string]func(context.Context) error{
					"StillHeld":    transact(service, asks.StillHeld(key, lease.Fence)),
					"CompleteItem": transact(service, asks.CompleteItem(key, lease.Fence, nil, time.Hour)),
				} {
					err := call(t.Context())
					_, cancelled := errors.AsType[*types.TransactionCanceledException](err)
					require.True(t, cancelled, "%s: %v", what, err)
					require.False(t, asks.IsStale(err, lease.Fence), what)
					require.Equal(t, before, service.Row(table, key), what)
				}
				require.NoError(t, asks.List(t.Context(), "", func(p lockstore.Page) error {
					require.Equal(t, 1, p.Damaged)
					require.Empty(t, p.Keys)
					return nil
				}))
			})
		}
	}
}

// The error names numbers that are not a lock's own, and no more than four of them.
func TestNamesInTheErrorOfAnotherTimeToLive(t *testing.T) {
	service := fakedynamo.New(table)
	store := newStore(t, service, 0, dynamostore.Options{})
	row := item{"last": n("1"), "released": s("ME"), "note": s("7"), "balance": n("5")}
	fakeRows{service}.put(t, key, row)
	_, err := store.Inspect(t.Context(), key)
	require.ErrorContains(t, err, `it has "balance":`)
	for i := range 9 {
		row[fmt.Sprint("n", i)] = n("1")
	}
	fakeRows{service}.put(t, key, row)
	_, err = store.Inspect(t.Context(), key)
	require.ErrorContains(t, err, `it has "balance", "n0", "n1", "n2":`)
	fakeRows{service}.put(t, key, item{"last": n("1")})
	_, err = store.Inspect(t.Context(), key)
	require.ErrorContains(t, err, "it has no other number that could be it")
}

// In the middle of a change each write that sets the time to live leaves one attribute in the
// row, also if it had both.
func TestOneTimeToLiveInARow(t *testing.T) {
	changes := dynamostore.Options{TTL: "expires_at", OtherTTL: "ttl"}
	var writes atomic.Int64
	for name, makes := range states {
		for method := range methods(nil, lockstore.Lease{}) {
			bubble(t, name+", "+method, func(t *testing.T) {
				service := fakedynamo.New(table)
				lease := makes(t, newStore(t, service, 0, dynamostore.Options{}))
				row := fakeRows{service}.get(t, key)
				row["expires_at"] = n("1")
				fakeRows{service}.put(t, key, row)
				err := methods(newStore(t, service, 0, changes), lease)[method](t.Context())
				require.NotErrorIs(t, err, lockstore.ErrCorrupt)
				now := fakeRows{service}.get(t, key)
				if !assert.ObjectsAreEqual(row, now) {
					require.NotContains(t, now, "ttl")
					require.Greater(t, number(t, now, "expires_at"), time.Now().Add(23*time.Hour).Unix())
					writes.Add(1)
				}
			})
		}
	}
	require.Greater(t, writes.Load(), int64(15))
}

// The steps of docs/stores.md: programs of two neighbouring steps run at once, for as long as it
// pleases. No call is refused for the name of the time to live, and DynamoDB, which deletes each
// row as early as it may, deletes none that is used, whichever of the two attributes its time
// to live is on.
func TestChangeOfTheNameOfTheTimeToLive(t *testing.T) {
	const before, after = "ttl", "expires_at"
	steps := []dynamostore.Options{
		{TTL: before},
		{TTL: before, OtherTTL: after},
		{TTL: after, OtherTTL: before},
		{TTL: after},
	}
	for seed := range uint64(2) {
		bubble(t, fmt.Sprint("F50 seed ", seed), func(t *testing.T) {
			c := &change{service: fakedynamo.New(table), rng: rand.New(rand.NewPCG(seed, 5)), rows: map[string]*used{}}
			for i := range steps {
				c.table = []string{before, after, ""}
				switch i {
				case 0:
					c.table = []string{before} // nothing has changed yet
				case 3:
					// What the page says to wait for.
					c.table = []string{before}
					for c.left(before) > 0 {
						c.run(t, steps[2])
					}
					c.table = []string{after, ""}
					c.run(t, steps[2], steps[3])
				default:
					c.run(t, steps[i-1], steps[i])
				}
				c.run(t, steps[i])
			}
			require.Greater(t, c.deleted, 10, "the test has rows to delete")
			require.Greater(t, c.done, 300)
		})
	}
}

// change is a table in which the name of the time to live changes.
type change struct {
	service *fakedynamo.Service
	rng     *rand.Rand
	table   []string // the attributes that the table's time to live may be on, "" for none
	rows    map[string]*used
	deleted int // rows that DynamoDB deleted
	done    int // calls that changed a row
}

// used is a key whose row must stay.
type used struct {
	lease     lockstore.Lease
	until     time.Time // the row may be deleted after it
	completed bool
}

// run lets programs of these settings work for longer than any result is stored.
func (c *change) run(t *testing.T, settings ...dynamostore.Options) {
	end := time.Now().Add(40 * 24 * time.Hour)
	for n := 0; time.Now().Before(end); n++ {
		pass(time.Duration(c.rng.Int64N(int64(24 * time.Hour))))
		c.sweep(t)
		s := newStore(t, c.service, 0, settings[c.rng.IntN(len(settings))])
		k := strconv.Itoa(c.rng.IntN(8))
		if c.rng.IntN(4) == 0 {
			k = strconv.Itoa(n) + "/" + strconv.Itoa(c.done) // a key that is used once or twice
		}
		c.use(t, s, k)
	}
}

func (c *change) use(t *testing.T, s *dynamostore.Store, k string) {
	ctx, u := t.Context(), c.rows[k]
	lease, err := s.Acquire(ctx, lockstore.Request{Key: k, Owner: lockstore.NewOwner(), TTL: lockstore.MaxTTL})
	if u != nil {
		require.ErrorIs(t, err, lockstore.ErrRefused, "the row is deleted, or another program's write was not seen")
		switch refused, _ := errors.AsType[*lockstore.Refused](err); {
		case refused.State == lockstore.Completed:
			require.True(t, u.completed)
			require.Equal(t, "result", string(refused.Result))
			return
		case c.rng.IntN(3) == 0 && !u.completed:
			if _, err := s.Renew(ctx, u.lease, lockstore.MaxTTL); !errors.Is(err, lockstore.ErrLost) {
				require.NoError(t, err)
				u.until = later(u.until, time.Now().Add(lockstore.MaxTTL))
			}
		}
		c.done++
		return
	}
	require.NoError(t, err)
	c.done++
	u = &used{lease: lease, until: time.Now().Add(lockstore.MaxTTL)}
	switch c.rng.IntN(6) {
	case 0:
		require.NoError(t, s.Release(ctx, lease))
		return
	case 1:
		require.NoError(t, s.Release(ctx, lockstore.Lease{Key: k, Owner: lease.Owner}))
		return
	case 2:
		require.NoError(t, s.MarkStarted(ctx, lease))
		u.until = time.Now().Add(lockstore.StartedFor)
	case 3:
		require.NoError(t, s.Complete(ctx, lease, []byte("result"), lockstore.MaxResultTime))
		u.completed, u.until = true, time.Now().Add(lockstore.MaxResultTime)
	case 4:
		require.NoError(t, transact(c.service, s.CompleteItem(k, lease.Fence, []byte("result"), lockstore.MaxResultTime))(ctx))
		u.completed, u.until = true, time.Now().Add(lockstore.MaxResultTime)
	}
	c.rows[k] = u
}

// left is how many rows have this time to live.
func (c *change) left(name string) (rows int) {
	for _, row := range c.service.Rows(table) {
		if row[name] != nil {
			rows++
		}
	}
	return rows
}

// sweep is DynamoDB's time to live on one of the attributes.
func (c *change) sweep(t *testing.T) {
	attribute := c.table[c.rng.IntN(len(c.table))]
	for k, row := range c.service.Rows(table) {
		ends, named := row[attribute]["N"].(string)
		over := false
		if named {
			at, err := strconv.ParseInt(ends, 10, 64)
			require.NoError(t, err)
			over = at < time.Now().Unix()
		}
		u := c.rows[k]
		if over {
			c.service.SetRow(table, k, nil)
			c.deleted++
			require.False(t, u != nil && time.Now().Before(u.until), "a row that is used is deleted: %v", row)
		}
		if u != nil && !time.Now().Before(u.until.Add(takeoverDelay)) {
			delete(c.rows, k)
			if !over && row["begun"] != nil {
				c.service.SetRow(table, k, nil) // an operator resolves it
			}
		}
	}
}
