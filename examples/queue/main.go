// Command queue works on the orders of an SQS queue: on one of each shop at a time, and on each order once.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

type Order struct{ ID, Shop string }

// options: the queue keeps a message for at most 14 days, and the dead-letter queue, too. So a redrive may come after 28 days.
var options = idempotency.Options{ResultTime: lockstore.MaxResultTime} // 31 days

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener)
	once := boot.Must(idempotency.New(g, options))
	client := sqs.NewFromConfig(boot.Must(config.LoadDefaultConfig(context.Background())))
	boot.Start(g, handler(g, once, work, delay(client, boot.MustURLFromEnv("QUEUE_URL").String())))
}

// handler takes the lock of a shop first, and looks then if an order is done.
func handler(g *guard.Guard, once *idempotency.Once, work guard.Work[events.SQSMessage], delay delayFunc) guard.Wrapped[json.RawMessage, events.SQSEventResponse] {
	return sqsbatch.WrapDelay(g, key, sqsbatch.Once(once, call, work), delay)
}

func parse(m events.SQSMessage) (o Order, err error) {
	err = json.Unmarshal([]byte(m.Body), &o)
	return o, err
}

// key names what is locked: the batch's messages of one shop run one after the other under this lock.
func key(_ context.Context, m events.SQSMessage) (string, error) {
	o, err := parse(m)
	return lockstore.Key("shop", o.Shop), err
}

// call names what is done once: two shops may choose the same id. It stays the same when the order's sender, SQS or a
// redrive sends the order again. Another order with the same id is an error.
func call(_ context.Context, m events.SQSMessage) (idempotency.Call, error) {
	o, err := parse(m)
	c := idempotency.NewCall("order", o.Shop, o.ID)
	c.Fingerprint = m.Body
	return c, err
}

// work is yours. An error leaves the message in the queue. Give lock.Fence to each write.
func work(_ context.Context, lock guard.Lock, m events.SQSMessage) error {
	o, err := parse(m)
	if err != nil {
		return err
	}
	fmt.Printf("order %s under %s, fence %d\n", o.ID, lock.Key, lock.Fence)
	return nil
}

type delayFunc func(context.Context, events.SQSMessage, time.Duration) error

// delay makes a message whose lock was busy visible again after d, in place of the queue's visibility timeout.
func delay(client *sqs.Client, queue string) delayFunc {
	return func(ctx context.Context, m events.SQSMessage, d time.Duration) error {
		_, err := client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
			QueueUrl: &queue, ReceiptHandle: &m.ReceiptHandle, VisibilityTimeout: int32(d / time.Second),
		})
		return err
	}
}
