package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// resultSizes are the bytes of a result's JSON. The last is the most that MaxResultBytes allows.
var resultSizes = []int{100, 1 << 10, 4 << 10, 32 << 10, lockstore.MaxResultBytes - 512}

// TestIdempotency counts what a call of idempotency.Do costs. The counts are the same in
// every run, so they are compared exactly.
func TestIdempotency(t *testing.T) {
	calls := []string{"bytes of the result", "first run", "with `AtMostOnce`", "repeat", "next run after `ResultTime`", "first run in a transaction"}
	part(t, "idempotency on DynamoDB Local", calls, testIdempotencyDynamoDB)
	part(t, "idempotency on Redis", calls[:5], testIdempotencyRedis)
	part(t, "a repeat on Redis", []string{"figure", "is", "budget", "", ""}, testRepeatRedis)
}

// cost is what one call costs.
type cost struct {
	requests int
	units    float64 // write units of DynamoDB
}

// work returns a result whose JSON has so many bytes.
func work(size int) func(context.Context, guard.Lock) (string, error) {
	return func(context.Context, guard.Lock) (string, error) { return strings.Repeat("x", size-2), nil }
}

// paid is one caller of idempotency.Do and what it pays.
type paid struct {
	*testing.T
	guard *guard.Guard
	spent func() cost // since the last time
}

func newPaid(t *testing.T, store *lockstore.Store, spent func() cost) paid {
	g, err := guard.New(store, guard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := paid{t, g, spent}
	for range 3 { // connections are made, scripts loaded
		p.first(100, idempotency.Options{InDoubt: idempotency.AtMostOnce}, work(100))
	}
	return p
}

func (p paid) do(key string, size int, opt idempotency.Options, replayed bool, work func(context.Context, guard.Lock) (string, error)) cost {
	p.Helper()
	opt.MaxResultBytes = size
	once, err := idempotency.New(p.guard, opt)
	if err != nil {
		p.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.Context(), 50*time.Second) // as Lambda sets it
	defer cancel()
	p.spent()
	out, replay, err := idempotency.Do(ctx, once, idempotency.Call{Key: key, Fingerprint: key}, work)
	spent := p.spent()
	if err != nil || len(out) != size-2 || (replay != nil) != replayed {
		p.Fatalf("a result of %d bytes, replay %v, %v; want one of %d bytes, a replay: %t", len(out)+2, replay, err, size, replayed)
	}
	return spent
}

// first is a first run and a repeat, which shows that the result was stored.
func (p paid) first(size int, opt idempotency.Options, work func(context.Context, guard.Lock) (string, error)) (first, repeat cost) {
	p.Helper()
	key := "charge/" + string(lockstore.NewOwner())
	first = p.do(key, size, opt, false, work)
	return first, p.do(key, size, opt, true, nothing)
}

// nothing is the work of a repeat.
func nothing(context.Context, guard.Lock) (string, error) {
	return "", errors.New("the work of a repeat ran")
}

// afterResultTime are first runs whose results are stored for a second, and the runs after that.
func (p paid) afterResultTime() map[int]cost {
	p.Helper()
	opt := idempotency.Options{ResultTime: lockstore.MinTTL}
	key := func(size int) string { return fmt.Sprint("charge/again/", size) }
	for _, size := range resultSizes {
		p.do(key(size), size, opt, false, work(size))
	}
	costs := map[int]cost{}
	for _, size := range resultSizes {
		for late := time.Now().Add(30 * time.Second); ; <-time.After(50 * time.Millisecond) {
			status, err := p.guard.Inspect(p.Context(), key(size))
			if err != nil {
				p.Fatal(err)
			}
			if !status.State.Done() {
				break
			}
			if time.Now().After(late) {
				p.Fatalf("a result is stored longer than for %v: %+v", opt.ResultTime, status)
			}
		}
		costs[size] = p.do(key(size), size, opt, false, work(size))
	}
	return costs
}

// pays keeps and prints the row of one size, and fails the test if a cost is not as wanted.
func (p paid) pays(size int, are, want []cost) {
	p.Helper()
	cells := []string{strconv.Itoa(size)}
	for i, c := range are {
		cell := strconv.Itoa(c.requests)
		if want[i].units > 0 {
			cell += fmt.Sprintf(" / %g", c.units)
		}
		cells = append(cells, cell)
		if c != want[i] {
			p.Errorf("a result of %d bytes, call %d: %+v; want %+v", size, i+1, c, want[i])
		}
	}
	row(cells...)
	fmt.Printf("%8s bytes: %s\n", cells[0], strings.Join(cells[1:], ", "))
}

// weighed counts the write units that DynamoDB Local does not tell, or not right. They are
// computed by DynamoDB's rules: a refused write costs as much as a write of the row, and a
// transaction costs twice as much as its writes alone.
type weighed struct{ *metered }

func (w weighed) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	out, err := w.metered.UpdateItem(ctx, in, opts...)
	if _, refused := errors.AsType[*types.ConditionalCheckFailedException](err); refused {
		if failed := w.weigh(ctx, 1, in.TableName, in.Key); failed != nil {
			return nil, failed
		}
	}
	return out, err
}

func (w weighed) transact(ctx context.Context, updates ...types.TransactWriteItem) error {
	_, err := w.Client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: updates})
	w.writes++
	for _, u := range updates {
		if err == nil {
			err = w.weigh(ctx, 2, u.Update.TableName, u.Update.Key)
		}
	}
	return err
}

// weigh adds the units of so many writes of a row. It writes the row as it is.
func (w weighed) weigh(ctx context.Context, writes float64, table *string, key map[string]types.AttributeValue) error {
	out, err := w.Client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: table, Key: key, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	})
	if err == nil {
		w.units += writes * *out.ConsumedCapacity.CapacityUnits
	}
	return err
}

// testIdempotencyDynamoDB counts requests and write units. n are the units of a row with an
// result: one for each KiB, and the rest of the row has less than a KiB.
func testIdempotencyDynamoDB(t *testing.T) {
	const table, orders = "locks", "orders"
	endpoint := testservers.DynamoDB(t)
	testservers.Table(t, endpoint, orders, "id")
	meter := weighed{&metered{Client: dynamoClient(t, testservers.Table(t, endpoint, table, "key"))}}
	store, err := dynamostore.New(meter, table, dynamostore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := newPaid(t, store.Store, func() cost {
		used := meters{meter.metered}.sum()
		return cost{used.reads + used.writes + used.refused, used.units}
	})
	transaction := func(size int) func(context.Context, guard.Lock) (string, error) {
		return func(ctx context.Context, lock guard.Lock) (string, error) {
			out, err := work(size)(ctx, lock)
			if err != nil {
				return "", err
			}
			result, err := idempotency.Prepare(ctx, out)
			if err != nil {
				return "", err
			}
			return out, meter.transact(ctx, types.TransactWriteItem{Update: &types.Update{
				TableName:                 aws.String(orders),
				Key:                       map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: lock.Key}},
				UpdateExpression:          aws.String("SET amount = :amount"),
				ExpressionAttributeValues: map[string]types.AttributeValue{":amount": &types.AttributeValueMemberN{Value: "100"}},
			}}, store.CompleteItem(result.Lock.Key, result.Lock.Fence, result.Data, result.Time))
		}
	}
	fmt.Println("(requests / write units)")
	again := p.afterResultTime()
	for _, size := range resultSizes {
		first, repeat := p.first(size, idempotency.Options{}, work(size))
		refuse, _ := p.first(size, idempotency.Options{InDoubt: idempotency.AtMostOnce}, work(size))
		together, _ := p.first(size, idempotency.Options{}, transaction(size))
		n := math.Ceil(float64(size+300) / 1024)
		p.pays(size, []cost{first, refuse, repeat, again[size], together}, []cost{
			{2, 1 + n},           // the grant, and the result
			{3, 2 + n},           // the grant, the mark, and the result
			{1, n},               // refused
			{3, 3 * n},           // refused, the takeover, and the result
			{3, 1 + 2 + 2*n + n}, // the grant, two items twice, and the guard's own Complete, refused
		})
	}
}

// testIdempotencyRedis counts requests. There a takeover is no request of its own.
func testIdempotencyRedis(t *testing.T) {
	var n count
	client := redisClient(t, testservers.Redis(t))
	client.AddHook(&n)
	p := newPaid(t, redisStore(t, client), func() cost { return cost{requests: int(n.requests.Swap(0))} })
	fmt.Println("(requests)")
	again := p.afterResultTime()
	for _, size := range resultSizes {
		first, repeat := p.first(size, idempotency.Options{}, work(size))
		refuse, _ := p.first(size, idempotency.Options{InDoubt: idempotency.AtMostOnce}, work(size))
		p.pays(size, []cost{first, refuse, repeat, again[size]}, []cost{{requests: 2}, {requests: 3}, {requests: 1}, {requests: 2}})
	}
}

// testRepeatRedis compares a repeat, and the store's part of it, with a GET of as many bytes.
// The rest is the guard, and the JSON.
func testRepeatRedis(t *testing.T) {
	addr := testservers.Redis(t)
	client := redisClient(t, addr)
	store := redisStore(t, client)
	p := newPaid(t, store, func() cost { return cost{} })
	// The ratios are larger on a machine that other work keeps awake, because a GET is faster
	// then: about 2.5, 3, 4, 9 and 15.
	limits := []float64{4.5, 5, 7, 14, 22}
	for i, size := range resultSizes {
		key := fmt.Sprint("charge/", size)
		opt := idempotency.Options{}
		p.do(key, size, opt, false, work(size))
		if err := client.Set(t.Context(), "raw:"+key, strings.Repeat("x", size), 0).Err(); err != nil {
			t.Fatal(err)
		}
		repeat := func() { p.do(key, size, opt, true, nothing) }
		refused := func() {
			_, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl})
			if r, ok := errors.AsType[*lockstore.Refused](err); !ok || len(r.Result) < size {
				t.Fatal(err)
			}
		}
		get := func() {
			if text, err := client.Get(t.Context(), "raw:"+key).Bytes(); err != nil || len(text) != size {
				t.Fatal(len(text), err)
			}
		}
		judge(t, func() [][]time.Duration {
			return contest(30, min(200, 4<<20/size), contestant{"repeat", repeat}, contestant{"refused", refused}, contestant{"GET", get})
		},
			figure{fmt.Sprintf("a repeat of %d bytes : GET", size), limits[i], "x", compare(0, 2)},
			figure{"  the store's part : GET", 0, "x", compare(1, 2)},
		)
	}
}
