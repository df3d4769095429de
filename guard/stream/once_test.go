package stream

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func TestOnce(t *testing.T) {
	ctx := context.Background()
	store := memstore.New(nil)
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	o, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	runs := map[string]int{}
	own := errors.New("own")
	call := func(_ context.Context, r events.KinesisEventRecord) (idempotency.Call, error) {
		return idempotency.NewCall("stream", r.Kinesis.SequenceNumber), nil
	}
	handle := WrapKinesis(g, func(_ context.Context, r events.KinesisEventRecord) (string, error) {
		return r.Kinesis.PartitionKey, nil
	}, Once(o, call, func(_ context.Context, lock guard.Lock, r events.KinesisEventRecord) error {
		require.Equal(t, "p", lock.Key)
		runs[r.Kinesis.SequenceNumber]++
		if r.Kinesis.SequenceNumber == "3" && runs["3"] == 1 {
			return own
		}
		return nil
	}))
	send := func(sequences ...string) string {
		var in events.KinesisEvent
		for _, s := range sequences {
			in.Records = append(in.Records, events.KinesisEventRecord{EventSource: "aws:kinesis", Kinesis: events.KinesisRecord{SequenceNumber: s, PartitionKey: "p"}})
		}
		out, err := handle.Handle(ctx, event(in))
		require.NoError(t, err)
		if len(out.BatchItemFailures) == 0 {
			return ""
		}
		return out.BatchItemFailures[0].ItemIdentifier
	}
	require.Equal(t, "3", send("1", "2", "3", "4"))
	require.Empty(t, send("1", "2", "3", "4"), "all of them again, as after a timeout")
	require.Equal(t, map[string]int{"1": 1, "2": 1, "3": 2, "4": 1}, runs)
	_, err = store.Acquire(ctx, lockstore.Request{Key: "stream/6", Owner: "another", TTL: time.Minute})
	require.NoError(t, err)
	require.Equal(t, "6", send("5", "6", "7"), "another run works on it")
	require.Zero(t, runs["7"])
}
