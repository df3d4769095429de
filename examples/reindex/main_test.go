package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/aws/aws-lambda-go/events"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// batch is an event of the queue with these bodies.
func batch(t *testing.T, id string, bodies ...string) []byte {
	var in events.SQSEvent
	for i, body := range bodies {
		in.Records = append(in.Records, events.SQSMessage{MessageId: fmt.Sprint(id, "-", i), EventSource: "aws:sqs", Body: body})
	}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	return text
}

func indexOf(t *testing.T, c cache, customer string) (titles []string) {
	text, err := c.client.HGet(t.Context(), "index:"+customer, "titles").Result()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(text), &titles))
	return titles
}

// A batch has one run for each customer in it.
func TestABatch(t *testing.T) {
	c := cache{redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})}
	require.NoError(t, c.client.HSet(t.Context(), "documents:7", "b", "Bees", "a", "Ants").Err())
	require.NoError(t, c.client.HSet(t.Context(), "documents:8", "c", "Crabs").Err())
	runs := 0
	g, err := guard.New(memstore.New(nil), guard.Options{Wait: time.Second, Coalesce: "reindex"})
	require.NoError(t, err)
	var mu sync.Mutex
	work := reindex(c)
	h := sqsbatch.Wrap(g, key, func(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
		mu.Lock()
		runs++
		mu.Unlock()
		return work(ctx, lock, m)
	})
	out, err := h.Handle(t.Context(), batch(t, "m", `{"customer": "7"}`, `{"customer": "7"}`, `{"customer": "8"}`, `{"customer": "7"}`, `{}`))
	require.NoError(t, err)
	require.Equal(t, []events.SQSBatchItemFailure{{ItemIdentifier: "m-4"}}, out.BatchItemFailures)
	require.Equal(t, 2, runs)
	require.Equal(t, []string{"Ants", "Bees"}, indexOf(t, c, "7"))
	require.Equal(t, []string{"Crabs"}, indexOf(t, c, "8"))
	require.ErrorIs(t, c.putIndex(t.Context(), guard.Lock{Fence: 1}, "7", nil), lockstore.ErrLost)
}

// The requests to DynamoDB, without DynamoDB: its answers are in the test.
func TestTable(t *testing.T) {
	var requests []string
	answers := []string{
		`{"Items": [{"name": {"S": "document/a"}, "title": {"S": "Ants"}}], "LastEvaluatedKey": {"name": {"S": "document/a"}}}`,
		`{"Items": [{"name": {"S": "document/b"}, "title": {"S": "Bees"}}]}`,
		`{"Items": [{"name": {"S": "document/c"}}]}`,
		`{"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "Item": {"lock_fence": {"N": "9"}}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		requests = append(requests, string(body))
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		if len(requests) == 4 {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(w, answers[len(requests)-1])
	}))
	defer server.Close()
	u, err := url.Parse("dynamodb://documents?endpoint=" + server.URL)
	require.NoError(t, err)
	d, err := openDocuments(u, os.Getenv)
	require.NoError(t, err)
	titles, err := d.titles(t.Context(), "7")
	require.NoError(t, err)
	require.Equal(t, []string{"Ants", "Bees"}, titles)
	require.Contains(t, requests[0], `"ConsistentRead":true`)
	_, err = d.titles(t.Context(), "7")
	require.ErrorContains(t, err, "a document has no title")
	require.ErrorIs(t, d.putIndex(t.Context(), guard.Lock{Key: "index/7", Fence: 8}, "7", titles), lockstore.ErrLost)
	require.Contains(t, requests[3], "lock_fence <= :lock_fence")
}

// 60 documents are written one after the other, each with a message, while three environments make the index. In the end it has all, after a few runs.
func TestManyChanges(t *testing.T) {
	const documents = 60
	server := miniredis.RunT(t)
	c := cache{redis.NewClient(&redis.Options{Addr: server.Addr()})}
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), ".", binary))
	envs, err := lambdatest.StartAll(t.Context(), 3, lambdatest.Config{Binary: binary, Name: "reindex", Timeout: time.Minute, Env: []string{
		"LOCK_URL=redis://" + server.Addr(), "LOCK_WAIT=25s", "LOCK_COALESCE=true", "DOCUMENTS_URL=redis://" + server.Addr(),
	}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, envs.Close()) }()
	changes := make(chan int)
	var all sync.WaitGroup
	for _, env := range envs {
		all.Go(func() {
			for n := range changes {
				r, err := env.Invoke(t.Context(), batch(t, fmt.Sprint("m", n), `{"customer": "7"}`))
				assert.NoError(t, err)
				assert.JSONEq(t, `{"batchItemFailures": []}`, string(r.Payload), "%s %s", r.ErrorType, r.ErrorMessage)
			}
		})
	}
	for n := range documents {
		require.NoError(t, c.client.HSet(t.Context(), "documents:7", fmt.Sprintf("%03d", n), fmt.Sprint("Title ", n)).Err())
		changes <- n
	}
	close(changes)
	all.Wait()
	require.Len(t, indexOf(t, c, "7"), documents)
	runs := 0
	for _, env := range envs {
		for _, line := range env.Logs() {
			if strings.Contains(line, `"outcome":"ok"`) {
				runs++
			}
		}
	}
	require.Less(t, runs, documents/2)
}
