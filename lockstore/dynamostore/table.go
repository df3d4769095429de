package dynamostore

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

const (
	// margin is for hosts of DynamoDB whose Dates differ.
	margin = 250 * time.Millisecond
	// dateStep is the step of the Date header: whole seconds, rounded down.
	dateStep = time.Second
	// clocksDiffer is how far two readings of a clock may be apart more than the time between them, if replies have corrected it meanwhile.
	clocksDiffer = 2*dateStep + 2*margin
	// idleRow is how long an unused row stays at least. Only late duplicates need the
	// row, because the next fence comes from the clock. DynamoDB refuses a request a few
	// minutes after its signature.
	idleRow = 24 * time.Hour
)

// table is the driver.
type table struct {
	api    API
	name   string
	names  names
	skew   time.Duration
	clock  clock
	memory memory
	sent   atomic.Int64 // the largest fence of an arrival of this process: noteSent sets it, raiseFence reads it

	random func(time.Duration) time.Duration // from 0 to the argument
}

// Do implements driver.Driver. It sends nothing itself.
func (t *table) Do(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	switch q.Kind {
	case driver.Acquire:
		a, err := t.acquire(ctx, key, q)
		a.TTL = min(a.TTL, q.TTL)
		return a, err
	case driver.Release:
		return t.release(ctx, key, q)
	default:
		return t.readAndChange(ctx, key, q)
	}
}

var done = driver.Answer{Outcome: driver.Done}

type (
	value  = types.AttributeValue
	values = map[string]value
)

// reply is DynamoDB's answer to a write or a read.
type reply struct {
	applied   bool
	ambiguous bool      // refused, but another attempt of the same call may have been applied
	item      values    // the row that the write returns, or at a refusal, or at a read
	sent      time.Time // local time before the request
	date      time.Time // DynamoDB's time in whole seconds; zero without a Date header
}

// update sends a write, with the attempts of the client. A refused condition is a reply, not an error. Nothing else here writes: acquire,
// release, change, correctTurn, unmark and the two methods for addresses call it. It corrects the clock by the reply (learn).
func (t *table) update(ctx context.Context, key string, w write) (reply, error) {
	i := t.encodeWrite(cmp.Or(w.row, key), w)
	in := &dynamodb.UpdateItemInput{
		TableName: i.TableName, Key: i.Key, UpdateExpression: i.UpdateExpression, ConditionExpression: i.ConditionExpression,
		ExpressionAttributeNames: i.ExpressionAttributeNames, ExpressionAttributeValues: i.ExpressionAttributeValues,
		ReturnValues: w.returns, ReturnValuesOnConditionCheckFailure: i.ReturnValuesOnConditionCheckFailure,
	}
	r := reply{sent: t.clock.local()}
	var opts []func(*dynamodb.Options)
	if w.yields {
		opts = append(opts, yields)
	}
	out, seen, err := call(ctx, t.api.UpdateItem, in, opts...)
	if refusal, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		r.item, r.ambiguous = refusal.Item, seen.ambiguous()
		r.date = failureDate(err)
	} else if err != nil {
		t.clock.learn(r.sent, failureDate(err))
		if seen.ambiguous() {
			return reply{}, t.unknown(ofKey(key), err, seen)
		}
		return reply{}, t.explain(ofKey(key), err, seen)
	} else {
		r.applied = true
		r.item = out.Attributes
		r.date = serverTime(out.ResultMetadata)
	}
	t.clock.learn(r.sent, r.date)
	return r, nil
}

// read sends a read of the row of a key. One that is not consistent costs half as much, and may bring
// an older row. It corrects the clock by the reply (learn). Nothing else here reads, besides List, Check and Extent. Those of
// readAndChange, Await and seeAgain are consistent; those of acquire (for the time, or after a throttled arrival) and the first one of
// lookForRoom are not.
func (t *table) read(ctx context.Context, key string, consistent bool) (row, reply, error) {
	r := reply{sent: t.clock.local()}
	out, seen, err := call(ctx, t.api.GetItem, &dynamodb.GetItemInput{
		TableName:      &t.name,
		Key:            t.names.row(key),
		ConsistentRead: aws.Bool(consistent),
	})
	if err != nil {
		t.clock.learn(r.sent, failureDate(err))
		return row{}, reply{}, t.explain(ofKey(key), err, seen)
	}
	r.date = serverTime(out.ResultMetadata)
	t.clock.learn(r.sent, r.date)
	entry, err := t.names.decode(key, out.Item)
	return entry, r, err
}

// serverTime is the Date header of a response; zero without one. update, table.read and List call it.
func serverTime(m middleware.Metadata) time.Time {
	date, _ := awsmiddleware.GetServerTime(m)
	return date
}

// failureDate is the Date header of an error's response; zero without one. After a call that failed, update, read and List correct the clock by it.
func failureDate(err error) time.Time {
	resp, ok := errors.AsType[*awshttp.ResponseError](err)
	if !ok || resp.Response == nil || resp.Response.Response == nil {
		return time.Time{}
	}
	date, _ := http.ParseTime(resp.Response.Header.Get("Date"))
	return date
}

// where names the table in errors. It adds the region and the endpoint if the client
// shows them. describe, unknown and explain call it.
func (t *table) where() string {
	name := "table " + t.name
	c, ok := t.api.(interface{ Options() dynamodb.Options })
	if !ok {
		return name
	}
	opt := c.Options()
	if opt.Region != "" {
		name += " in " + opt.Region
	}
	if u, err := url.Parse(aws.ToString(opt.BaseEndpoint)); err == nil && u.Host != "" {
		name += " at " + u.Host // the rest of the URL may be secret
	}
	return name
}
