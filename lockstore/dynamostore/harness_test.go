package dynamostore_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const (
	table        = "locks"
	fakeEndpoint = "http://dynamo.invalid"

	key = "account/7"
	// takeoverDelay is how long other owners may have to wait after a dead holder's TTL.
	takeoverDelay = 2*dynamostore.DefaultSkew + 2*time.Second
)

type item = map[string]types.AttributeValue

// wire is the transport between a store and DynamoDB. It counts requests, looks at each of them and can lose
// replies.
type wire struct {
	t        testing.TB
	opt      dynamostore.Options
	next     http.RoundTripper
	requests atomic.Int64
	delay    storetest.Delayer
	lost     atomic.Bool
	hangs    atomic.Pointer[chan struct{}] // until it is closed no request arrives; nil while they do
	until    atomic.Int64                  // which request from now on is the one before which inside is called
	inside   func()
	cut      bool // the reply to the one before that is lost
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.requests.Add(1)
	if hangs := w.hangs.Load(); hangs != nil {
		select {
		case <-*hangs:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	n := w.until.Add(-1)
	if n == 0 {
		w.inside()
	}
	body := bodyOf(w.t, r)
	delay, lost := &storetest.Delayer{}, false // only what writes is delayed, or loses each reply
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".UpdateItem") {
		delay, lost = &w.delay, w.lost.Load()
		if !bytes.Contains(body, []byte("attribute_exists(#ttl)")) {
			w.t.Errorf("F50 a write that does not require the time to live: %s", body)
		}
	}
	var in struct {
		Key map[string]struct{ S string }
	}
	if err := json.Unmarshal(body, &in); err != nil {
		w.t.Errorf("%v: %s", err, body)
	}
	if name := in.Key[cmp.Or(w.opt.Key, "key")].S; in.Key != nil && !strings.HasPrefix(name, w.opt.Prefix) {
		w.t.Errorf("a permission with dynamodb:LeadingKeys would refuse the key %q", name)
	}
	resp, err := storetest.Send(r.Context(), delay, func(ctx context.Context) (*http.Response, error) {
		resp, err := w.next.RoundTrip(r.WithContext(ctx))
		if err == nil && ctx.Err() == nil && r.Context().Err() != nil { // it was delayed, and nobody reads it
			err = resp.Body.Close()
		}
		return resp, err
	})
	if err == nil && (lost || n == 1 && w.cut) {
		if err := resp.Body.Close(); err != nil {
			return nil, err
		}
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

// bodyOf returns the body of a request, and leaves it there.
func bodyOf(t testing.TB, r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// transport is an http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// refusing is a transport whose host accepts no connection.
var refusing = transport(func(*http.Request) (*http.Response, error) { return nil, errRefused })

// atOnce sends a request again without a pause, after one lost reply.
type atOnce struct {
	aws.RetryerV2
	w *wire
}

func (a atOnce) RetryDelay(attempt int, err error) (time.Duration, error) {
	if a.w.lost.Load() {
		return a.RetryerV2.RetryDelay(attempt, err)
	}
	return 0, nil
}

// harness opens a store on a transport and gives the suite access to its table.
func harness(t testing.TB, next http.RoundTripper, endpoint string, r rows) storetest.Harness {
	return harnessOf(t, next, endpoint, r, table, dynamostore.Options{})
}

func harnessOf(t testing.TB, next http.RoundTripper, endpoint string, r rows, table string, opt dynamostore.Options) storetest.Harness {
	w := &wire{t: t, opt: opt, next: next}
	sequences := 16 // each takes long; TestRuleBook has more
	if verifyrecord.WithRaceDetector {
		sequences = 4
	}
	var shift atomic.Int64
	open := func(transport http.RoundTripper, ahead time.Duration) *dynamostore.Store {
		client := dynamodb.New(dynamostore.ClientOver(transport, endpoint).Options(), func(o *dynamodb.Options) {
			o.Retryer = atOnce{o.Retryer.(aws.RetryerV2), w}
		})
		s, err := dynamostore.New(client, table, opt)
		require.NoError(t, err)
		s.SetNow(func() time.Time { return time.Now().Add(ahead + time.Duration(shift.Load())) })
		return s
	}
	change := func(f func(item)) func(*testing.T, string) {
		return func(t *testing.T, key string) {
			row := maps.Clone(r.get(t, key))
			f(row)
			r.put(t, key, row)
		}
	}
	set := func(row item) func(*testing.T, string) {
		return func(t *testing.T, key string) { r.put(t, key, row) }
	}
	return storetest.Harness{
		Parks:         true,
		Store:         open(w, 0).Store,
		Other:         func(*testing.T) *lockstore.Store { return open(w, time.Hour).Store },
		TakeoverDelay: takeoverDelay,
		Margin:        dynamostore.Margin,
		Sequences:     sequences,
		Requests:      func() int { return int(w.requests.Load()) },
		Delete:        func(t *testing.T, key string) { r.put(t, key, nil) },
		Snapshot: func(t *testing.T, key string) func() {
			row := r.get(t, key)
			return func() { r.put(t, key, row) }
		},
		Dump:      func(t *testing.T, key string) string { return dump(r.get(t, key)) },
		TurnDelay: 2 * time.Second, // a stamp that is a second off, and whole seconds
		DamageQueue: map[string]func(*testing.T, string){
			"a text":                change(func(row item) { row["queue"] = s("me") }),
			"a map":                 change(func(row item) { row["queue"] = &types.AttributeValueMemberM{Value: item{}} }),
			"a set":                 change(func(row item) { row["queue"] = &types.AttributeValueMemberSS{Value: []string{"me"}} }),
			"NULL":                  change(func(row item) { row["queue"] = &types.AttributeValueMemberNULL{Value: true} }),
			"a list of numbers":     change(func(row item) { row["queue"] = listOf(n("1")) }),
			"a list of empty texts": change(func(row item) { row["queue"] = listOf(s("")) }),
			"an empty list":         change(func(row item) { row["queue"] = listOf() }),
			"nothing":               change(func(row item) { delete(row, "queue") }),
			"a number at the end": change(func(row item) {
				if queue, ok := row["queue"].(*types.AttributeValueMemberL); ok {
					row["queue"] = listOf(append(slices.Clone(queue.Value), n("1"))...)
				}
			}),
			"a number behind the holder": change(func(row item) {
				if row["owner"] != nil {
					row["queue"] = listOf(row["owner"], n("1"))
				}
			}),
			"an owner alone": change(func(row item) { row["queue"] = listOf(s("me")) }),
			"a place without its map": change(func(row item) {
				row["queue"] = listOf(append(placeOf("me", nil), s("other"), s("since"))...)
			}),
		},
		Foreign: map[string]func(*testing.T, string){
			"nothing of ours":              set(item{"balance": n("7")}),
			"the key alone":                set(item{}),
			"a fence in a string":          set(item{"fence": s("12")}),
			"a fence that is NULL":         set(item{"fence": &types.AttributeValueMemberNULL{Value: true}}),
			"an owner without a fence":     set(item{"owner": s("me"), "expires": n("9")}),
			"another program's expiry":     set(item{"owner": s("me"), "expires": s("2026-01-01"), "fence": n("1")}),
			"another program's owner type": set(item{"owner": n("4"), "expires": n("9"), "fence": n("1")}),
		},
		Corrupt: map[string]func(*testing.T, string){
			"no fence":             change(func(row item) { delete(row, fenceOf(row)) }),
			"string in the fence":  change(func(row item) { row[fenceOf(row)] = s("7") }),
			"huge fence":           change(func(row item) { row[fenceOf(row)] = n("99999999999999999999999999999999999999") }),
			"a fence of nobody":    change(func(row item) { delete(row, "owner"); row["fence"] = n("7") }),
			"owner without expiry": change(func(row item) { keepOwner(row); delete(row, "expires") }),
			"string in the expiry": change(func(row item) { keepOwner(row); row["expires"] = s("soon") }),
			"huge expiry":          change(func(row item) { keepOwner(row); row["expires"] = n("9223372036854775807") }),
			"F50, says: the attribute of its time to live in this store's settings (ttl in the URL); it has \"other\"": change(func(row item) {
				ttl := cmp.Or(opt.TTL, "ttl")
				row["other"] = row[ttl]
				delete(row, ttl)
			}),
			"binary owner": change(func(row item) { row["owner"] = &types.AttributeValueMemberB{Value: []byte("me")} }),
			"says: two holders have one seat": change(func(row item) {
				delete(row, "lastFence")
				row["owner"], row["fence"], row["expires"] = s(dynamostore.SharedOwner), n("9"), n("4102444800000")
				row["holders"] = s(`[{"fence":8,"owner":"a","seat":1,"max":2},{"fence":9,"owner":"b","seat":1,"max":2}]`)
			}),
		},
		ShiftClock: func(_ *testing.T, d time.Duration) { shift.Store(int64(d)) },
		Unreachable: func(*testing.T) *lockstore.Store {
			return open(refusing, 0).Store
		},
		LoseReplies: func(*testing.T) func() {
			w.lost.Store(true)
			return func() { w.lost.Store(false) }
		},
		Hang: func(*testing.T) func() {
			hangs := make(chan struct{})
			w.hangs.Store(&hangs)
			return func() {
				w.hangs.Store(nil)
				close(hangs)
			}
		},
		Delay: w.delay.Delay,
		Inside: func(n int, lost bool, do func()) {
			w.inside, w.cut = do, lost
			w.until.Store(int64(n))
		},
	}
}

// bubble is t.Run in virtual time, beside other bubbles.
func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { inBubble(t, f) })
}

func inBubble(t *testing.T, f func(*testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

// newStore opens a store on the fake. Its local clock is wrong by offset.
func newStore(t testing.TB, service *fakedynamo.Service, offset time.Duration, opt dynamostore.Options) *dynamostore.Store {
	return newStoreOver(t, dynamostore.ClientOver(service, fakeEndpoint), offset, opt)
}

// newStoreOver opens a store on a client. A test that opens thousands of stores shares the
// client: to make one takes longer than a request.
func newStoreOver(t testing.TB, client dynamostore.API, offset time.Duration, opt dynamostore.Options) *dynamostore.Store {
	s, err := dynamostore.New(client, table, opt)
	require.NoError(t, err)
	s.SetNow(func() time.Time { return time.Now().Add(offset) })
	return s
}

// newFake opens a store on a new fake.
func newFake(t testing.TB) (*fakedynamo.Service, *dynamostore.Store) {
	service := fakedynamo.New(table)
	return service, newStore(t, service, 0, dynamostore.Options{})
}

func request(ttl time.Duration) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl}
}

// held is a lease of a minute.
func held(t testing.TB, s *dynamostore.Store) lockstore.Lease {
	t.Helper()
	return acquired(t, s, request(time.Minute))
}

func acquired(t testing.TB, s *dynamostore.Store, req lockstore.Request) lockstore.Lease {
	t.Helper()
	lease, err := s.Acquire(t.Context(), req)
	require.NoError(t, err)
	return lease
}

// sharing returns the leases of n owners who hold the key at once.
func sharing(t testing.TB, s *dynamostore.Store, n int) (leases []lockstore.Lease) {
	t.Helper()
	for range n {
		req := request(time.Minute)
		req.MaxHolders = n
		leases = append(leases, acquired(t, s, req))
	}
	return leases
}

func isRefused(t testing.TB, s *dynamostore.Store, req lockstore.Request) {
	t.Helper()
	_, err := s.Acquire(t.Context(), req)
	require.ErrorIs(t, err, lockstore.ErrRefused)
}

// pass lets d of virtual time pass.
var pass = leasesim.Pass

func number(t testing.TB, row item, name string) int64 {
	t.Helper()
	v, ok := row[name].(*types.AttributeValueMemberN)
	require.True(t, ok, "%s in %s", name, dump(row))
	i, err := strconv.ParseInt(v.Value, 10, 64)
	require.NoError(t, err)
	return i
}

// costs counts the writes and the reads of what do sends.
func costs(t testing.TB, service *fakedynamo.Service, writes, reads int, what string, do func()) {
	t.Helper()
	before := service.Actions()
	do()
	after := service.Actions()
	require.Equal(t, [2]int{writes, reads}, [2]int{after["UpdateItem"] - before["UpdateItem"], after["GetItem"] - before["GetItem"]}, "%s: writes and reads", what)
}

// refusal is the answer to a request that is refused.
func refusal(t testing.TB, s *dynamostore.Store, req lockstore.Request) *lockstore.Refused {
	t.Helper()
	_, err := s.Acquire(t.Context(), req)
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	return refused
}

// queued is a request that takes a place in the queue.
func queued(most int) lockstore.Request {
	req := request(time.Minute)
	req.MaxHolders, req.JoinQueue = most, true
	return req
}

func inspected(t testing.TB, s *dynamostore.Store) lockstore.Status {
	t.Helper()
	status, err := s.Inspect(t.Context(), key)
	require.NoError(t, err)
	return status
}

// beforeWrite calls do before the write of this number, counted from now on. The write has the fault that do returns.
func beforeWrite(service *fakedynamo.Service, number int, do func() fakedynamo.Fault) {
	service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
		if r.Action != "UpdateItem" {
			return f
		}
		if number--; number == 0 {
			service.Fault = nil
			f = do()
		}
		return f
	}
}

// listed is what all pages of a listing show.
func listed(t testing.TB, s *dynamostore.Store, prefix string) (all lockstore.Page) {
	t.Helper()
	require.NoError(t, s.List(t.Context(), prefix, func(p lockstore.Page) error {
		all.Keys = append(all.Keys, p.Keys...)
		all.Damaged += p.Damaged
		all.DamagedNames = append(all.DamagedNames, p.DamagedNames...)
		return nil
	}))
	return all
}

// keepOwner makes the owner that released the owner of the row again, so that a damaged
// end is the end of a lease.
func keepOwner(row item) {
	if row["owner"] == nil {
		row["owner"], row["fence"] = row["ended"], row["lastFence"]
		delete(row, "ended")
	}
}

// fenceOf is the attribute of the last fence.
func fenceOf(row item) string {
	if row["owner"] == nil {
		return "lastFence"
	}
	return "fence"
}

func listOf(v ...types.AttributeValue) types.AttributeValue {
	return &types.AttributeValueMemberL{Value: append([]types.AttributeValue{}, v...)}
}

// placeOf is a place in the queue of a row, with what else is known of it.
func placeOf(owner string, more item) []types.AttributeValue {
	all := item{"since": n("1000")}
	maps.Copy(all, more)
	return []types.AttributeValue{s(owner), &types.AttributeValueMemberM{Value: all}}
}

func s(v string) types.AttributeValue { return &types.AttributeValueMemberS{Value: v} }
func n(v string) types.AttributeValue { return &types.AttributeValueMemberN{Value: v} }

// dump is a text of a row: fmt prints a map in the order of its keys.
func dump(row item) string {
	text := map[string]string{}
	for name, v := range row {
		value, err := json.Marshal(v)
		if err != nil {
			panic(err) // it came from JSON
		}
		text[name] = fmt.Sprintf("%T%s", v, value)
	}
	return fmt.Sprint(text)
}

// rows are the rows of a table, without the store.
type rows struct {
	ctx    context.Context
	client *dynamodb.Client
	table  string
	key    func(string) item
}

// lockTable are the rows of the table for locks.
func lockTable(client *dynamodb.Client) rows {
	return rows{context.Background(), client, table, tableKey}
}

func tableKey(key string) item { return item{"key": s(key)} }

// direct is a client of the fake in its context. To make one takes longer than a request. It has its credentials, so nothing in it belongs to a bubble.
var direct = func() *dynamodb.Client {
	client := dynamostore.ClientOver(transport(func(r *http.Request) (*http.Response, error) {
		return r.Context().Value(servedBy{}).(*fakedynamo.Service).Direct(r)
	}), fakeEndpoint)
	_, _ = client.Options().Credentials.Retrieve(context.Background())
	return client
}()

type servedBy struct{}

// rowsOf are the rows of the fake.
func rowsOf(service *fakedynamo.Service) rows {
	return rows{context.WithValue(context.Background(), servedBy{}, service), direct, table, tableKey}
}

func (r rows) get(t testing.TB, key string) item {
	out, err := r.client.GetItem(r.ctx, &dynamodb.GetItemInput{TableName: &r.table, Key: r.key(key), ConsistentRead: aws.Bool(true)})
	require.NoError(t, err)
	return out.Item
}

// put stores a row; nil deletes it.
func (r rows) put(t testing.TB, key string, row item) {
	var err error
	if row == nil {
		_, err = r.client.DeleteItem(r.ctx, &dynamodb.DeleteItemInput{TableName: &r.table, Key: r.key(key)})
	} else {
		row = maps.Clone(row)
		maps.Copy(row, r.key(key))
		_, err = r.client.PutItem(r.ctx, &dynamodb.PutItemInput{TableName: &r.table, Item: row})
	}
	require.NoError(t, err)
}
