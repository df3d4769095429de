package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const order = `{"ID": "7", "Shop": "acme"}`

// batch has the same body in a message of each id.
func batch(t *testing.T, body string, ids ...string) []byte {
	var in events.SQSEvent
	for _, id := range ids {
		in.Records = append(in.Records, events.SQSMessage{MessageId: id, ReceiptHandle: "receipt " + id, EventSource: "aws:sqs", Body: body})
	}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	return text
}

func TestAnOrderIsDoneOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := guard.New(memstore.New(nil), guard.Options{})
		require.NoError(t, err)
		once, err := idempotency.New(g, options)
		require.NoError(t, err)
		worked := 0
		h := handler(g, once, func(context.Context, guard.Lock, events.SQSMessage) error { worked++; return nil }, nil)
		send := func(body string, ids ...string) []events.SQSBatchItemFailure {
			out, err := h.Handle(t.Context(), batch(t, body, ids...))
			require.NoError(t, err)
			return out.BatchItemFailures
		}
		require.Empty(t, send(order, "1", "2"))
		<-time.After(28 * 24 * time.Hour) // in the queue, in the dead-letter queue
		require.Empty(t, send(order, "3"))
		require.Equal(t, 1, worked)
		require.Empty(t, send(`{"ID": "7", "Shop": "other"}`, "4"))
		require.Equal(t, 2, worked, "the other shop has an order 7 of its own")
		require.Len(t, send(`{"ID": "7", "Shop": "acme", "Text": "two desks"}`, "5"), 1, "the id is used for another order")
		require.Equal(t, 2, worked)
	})
}

func TestABusyMessageIsVisibleAgainSoon(t *testing.T) {
	var sent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = string(body)
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	client := sqs.New(sqs.Options{Region: "eu-central-1", BaseEndpoint: &server.URL, Credentials: aws.AnonymousCredentials{}})
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	once, err := idempotency.New(g, options)
	require.NoError(t, err)
	h := handler(g, once, work, delay(client, "queue"))
	err = g.Do(t.Context(), "shop/acme", func(context.Context, guard.Lock) error {
		out, err := h.Handle(t.Context(), batch(t, order, "1"))
		require.Equal(t, []events.SQSBatchItemFailure{{ItemIdentifier: "1"}}, out.BatchItemFailures)
		return err
	})
	require.NoError(t, err)
	require.JSONEq(t, `{"QueueUrl": "queue", "ReceiptHandle": "receipt 1", "VisibilityTimeout": 1}`, sent)
}
