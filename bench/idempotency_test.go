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
	calls := []string{"bytes of the result", "first run", "with `AtMostOnce`", "repeat"}
	part(t, "idempotency on DynamoDB Local", calls, testIdempotencyDynamoDB)
	part(t, "idempotency on Redis", calls, testIdempotencyRedis)
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
	fatal(t, err)
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

// pays keeps and prints the row of one size, and fails the test if a cost is not as wanted.
func (p paid) pays(size int, want []cost) {
	p.Helper()
	first, repeat := p.first(size, idempotency.Options{}, work(size))
	refuse, _ := p.first(size, idempotency.Options{InDoubt: idempotency.AtMostOnce}, work(size))
	cells := []string{strconv.Itoa(size)}
	for i, c := range []cost{first, refuse, repeat} {
		cell := strconv.Itoa(c.requests)
		if want[i].units > 0 {
			cell += fmt.Sprintf(" / %g", c.units)
		}
		cells = append(cells, cell)
		if c != want[i] {
			p.Errorf("a result of %d bytes, call %d: %+v; want %+v", size, i+1, c, want[i])
		}
	}
	tell(cells...)
}

// weighed counts the write units that DynamoDB Local does not tell: by DynamoDB's rules a refused write costs as much as a
// write of the row.
type weighed struct{ *metered }

func (w weighed) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	out, err := w.metered.UpdateItem(ctx, in, opts...)
	if _, refused := errors.AsType[*types.ConditionalCheckFailedException](err); refused {
		row, failed := w.Client.UpdateItem(ctx, &dynamodb.UpdateItemInput{ // writes the row as it is
			TableName: in.TableName, Key: in.Key, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		if failed != nil {
			return nil, failed
		}
		w.units += *row.ConsumedCapacity.CapacityUnits
	}
	return out, err
}

// testIdempotencyDynamoDB counts requests and write units. n are the units of a row with an
// result: one for each KiB, and the rest of the row has less than a KiB.
func testIdempotencyDynamoDB(t *testing.T) {
	const table = "locks"
	meter := weighed{&metered{Client: dynamoClient(t, testservers.Table(t, testservers.DynamoDB(t), table, "key"))}}
	store, err := dynamostore.New(meter, table, dynamostore.Options{})
	fatal(t, err)
	p := newPaid(t, store.Store, func() cost {
		used := meters{meter.metered}.sum()
		return cost{used.reads + used.writes + used.refused, used.units}
	})
	fmt.Println("(requests / write units)")
	for _, size := range resultSizes {
		n := math.Ceil(float64(size+300) / 1024)
		p.pays(size, []cost{
			{2, 1 + n}, // the grant, and the result
			{3, 2 + n}, // the grant, the mark, and the result
			{1, n},     // refused
		})
	}
}

// testIdempotencyRedis counts requests.
func testIdempotencyRedis(t *testing.T) {
	var n count
	client := redisClient(t, testservers.Redis(t))
	client.AddHook(&n)
	p := newPaid(t, redisStore(t, client), func() cost { return cost{requests: int(n.requests.Swap(0))} })
	fmt.Println("(requests)")
	for _, size := range resultSizes {
		p.pays(size, []cost{{requests: 2}, {requests: 3}, {requests: 1}})
	}
}
