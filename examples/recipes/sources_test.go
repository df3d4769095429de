package recipes_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// objectKey is a key function: the key of the object that a notification of S3 is about. It has one record.
func objectKey(_ context.Context, e events.S3Event) (string, error) {
	if len(e.Records) != 1 || e.Records[0].S3.Object.Key == "" {
		return "", fmt.Errorf("the event has %d records of S3; want 1: it has to come from a notification of the bucket, and not from EventBridge, SNS or SQS", len(e.Records))
	}
	s3 := e.Records[0].S3
	return lockstore.KeyOrHash("object", s3.Bucket.Name, s3.Object.URLDecodedKey), nil
}

// recordKey is the key of a record of Kafka: the topic and the record's own key.
func recordKey(r events.KafkaRecord) (string, error) {
	key, err := base64.StdEncoding.DecodeString(r.Key)
	if err != nil || len(key) == 0 {
		return "", fmt.Errorf("record %d of %s-%d has no key in base64: let the producer set the key, to the id of what the record changes", r.Offset, r.Topic, r.Partition)
	}
	return lockstore.KeyOrHash(r.Topic, string(key)), nil
}

// records runs work for each record of an event of Kafka or MSK, in the order of its partition, under the lock of
// recordKey. At the first error it stops, and Lambda sends all records again, also those that are done.
func records(ctx context.Context, g *guard.Guard, e events.KafkaEvent, work func(context.Context, guard.Lock, events.KafkaRecord) error) error {
	if len(e.Records) == 0 {
		return &guard.LockBadRequest{Err: fmt.Errorf("the event (eventSource %q) has no records of Kafka; want one of MSK or Kafka", e.EventSource)}
	}
	for _, partition := range slices.Sorted(maps.Keys(e.Records)) {
		for _, r := range e.Records[partition] {
			key, err := recordKey(r)
			if err != nil {
				return &guard.LockBadRequest{Key: key, Err: err}
			}
			if err := g.Do(ctx, key, func(ctx context.Context, lock guard.Lock) error { return work(ctx, lock, r) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// event reads an event as Lambda sends it.
func event[E any](name string) (e E) {
	text := boot.Must(os.ReadFile("testdata/" + name + ".json"))
	boot.Must(0, json.Unmarshal(text, &e))
	return e
}

// A notification of S3 is an asynchronous event: after LockBusy Lambda repeats it.
func Example_s3() {
	store := memstore.New(nil)
	g := boot.Must(guard.New(store, guard.Options{}))
	handler := guard.Wrap(g, objectKey, func(_ context.Context, lock guard.Lock, e events.S3Event) (string, error) {
		return e.Records[0].EventName + " under " + lock.Key, nil
	})
	ctx, upload := context.Background(), event[events.S3Event]("s3")
	fmt.Println(handler.Handle(ctx, upload))
	_, err := handler.Handle(ctx, events.S3Event{}) // what an event of another source is in Go
	fmt.Println(err)

	other := boot.Must(store.Acquire(ctx, lockstore.Request{Key: "object/uploads/invoices%2FJune 2026.pdf", Owner: lockstore.NewOwner(), TTL: time.Minute}))
	_, err = handler.Handle(ctx, upload)
	fmt.Printf("%T %v\n", err, store.Release(ctx, other))
	// Output:
	// ObjectCreated:Put under object/uploads/invoices%2FJune 2026.pdf <nil>
	// lock "" is invalid: the event has 0 records of S3; want 1: it has to come from a notification of the bucket, and not from EventBridge, SNS or SQS
	// *guard.LockBusy <nil>
}

// A record without a key ends the batch. Lambda sends all records again.
func Example_kafka() {
	g := boot.Must(guard.New(memstore.New(nil), guard.Options{}))
	handler := guard.WrapUnlocked(func(ctx context.Context, e events.KafkaEvent) (string, error) {
		return "", records(ctx, g, e, func(_ context.Context, lock guard.Lock, r events.KafkaRecord) error {
			value, err := base64.StdEncoding.DecodeString(r.Value)
			fmt.Printf("%s under %s\n", value, lock.Key)
			return err
		})
	})
	_, err := handler.Handle(context.Background(), event[events.KafkaEvent]("kafka"))
	fmt.Println(err)
	_, err = handler.Handle(context.Background(), events.KafkaEvent{EventSource: "aws:mq"}) // what an event of another source is in Go
	fmt.Println(err)
	// Output:
	// {"cents": 500} under bookings/7
	// {"cents": 250} under bookings/9
	// lock "" is invalid: record 4 of bookings-1 has no key in base64: let the producer set the key, to the id of what the record changes
	// lock "" is invalid: the event (eventSource "aws:mq") has no records of Kafka; want one of MSK or Kafka
}
