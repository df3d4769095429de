package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func batch(t *testing.T, ids ...string) []byte {
	var in events.SQSEvent
	for _, id := range ids {
		in.Records = append(in.Records, events.SQSMessage{
			MessageId: id, ReceiptHandle: "receipt " + id, EventSource: "aws:sqs", Body: `{"ID": "7", "Shop": "acme"}`,
		})
	}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	return text
}

func TestAnOrderIsDoneOnce(t *testing.T) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	once, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	worked := 0
	h := handler(g, once, func(context.Context, guard.Lock, events.SQSMessage) error { worked++; return nil }, nil)
	for range 2 {
		out, err := h.Handle(t.Context(), batch(t, "1", "2"))
		require.NoError(t, err)
		require.Empty(t, out.BatchItemFailures)
	}
	require.Equal(t, 1, worked)
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
	once, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	h := handler(g, once, work, delay(client, "queue"))
	err = g.Do(t.Context(), "shop/acme", func(context.Context, guard.Lock) error {
		out, err := h.Handle(t.Context(), batch(t, "1"))
		require.Equal(t, []events.SQSBatchItemFailure{{ItemIdentifier: "1"}}, out.BatchItemFailures)
		return err
	})
	require.NoError(t, err)
	require.JSONEq(t, `{"QueueUrl": "queue", "ReceiptHandle": "receipt 1", "VisibilityTimeout": 1}`, sent)
}
