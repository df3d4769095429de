package boot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	lambdaevents "github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/guard/stream"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// heard notes the events of the acquires that coalesce, as a store gets them.
type heard struct {
	driver.Driver
	mu     sync.Mutex
	events []string
}

func (h *heard) Unwrap() driver.Driver { return h.Driver }

func (h *heard) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if r.Work != "" {
		h.mu.Lock()
		h.events = append(h.events, r.Event)
		h.mu.Unlock()
	}
	return h.Driver.Do(ctx, key, r)
}

// Each adapter takes as the id of an event what the source of the event sends unchanged when it sends the event again, and nothing that is new in each try.
func TestEventIDs(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/aws-lambda-go").Output()
	require.NoError(t, err)
	ours, theirs := "../events", filepath.Join(strings.TrimSpace(string(out)), "events", "testdata")
	tests := map[string]struct {
		files []string
		keeps string // the field that is the id, of each record or of the request; "" is Lambda's request id
		wrap  func(g *guard.Guard) any
	}{
		"sqsbatch": {[]string{ours + "/settle*.json", theirs + "/sqs-event.json"}, "messageId", func(g *guard.Guard) any {
			return entry(g, sqsbatch.Wrap(g, every[lambdaevents.SQSMessage](), done))
		}},
		"stream, Kinesis": {[]string{theirs + "/kinesis-event.json"}, "sequenceNumber", func(g *guard.Guard) any {
			return entry(g, stream.WrapKinesis(g, every[lambdaevents.KinesisEventRecord](), done))
		}},
		"stream, DynamoDB": {[]string{theirs + "/dynamodb-event.json"}, "SequenceNumber", func(g *guard.Guard) any {
			return entry(g, stream.WrapDynamoDB(g, every[lambdaevents.DynamoDBEventRecord](), done))
		}},
		"httpapi": {[]string{ours + "/withdraw*.json"}, "idempotency-key", func(g *guard.Guard) any {
			return entry(g, httpapi.Wrap(g, every[httpapi.Request](), func(context.Context, guard.Lock, httpapi.Request) (httpapi.Response, error) {
				return httpapi.Response{StatusCode: http.StatusNoContent}, nil
			}))
		}},
		"schedule": {[]string{ours + "/nightly*.json"}, "", func(g *guard.Guard) any {
			return entry(g, schedule.Wrap(g, "nightly", done[json.RawMessage]))
		}},
		"guard.Wrap": {[]string{theirs + "/s3-event.json", theirs + "/sns-event.json"}, "", func(g *guard.Guard) any {
			return entry(g, guard.Wrap(g, every[json.RawMessage](), func(context.Context, guard.Lock, json.RawMessage) (string, error) { return "", nil }))
		}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			ids := 0
			for _, pattern := range c.files {
				files, err := filepath.Glob(pattern)
				require.NoError(t, err)
				require.NotEmpty(t, files, pattern)
				for _, file := range files {
					if strings.HasSuffix(file, ".out.json") {
						continue
					}
					event, err := os.ReadFile(file)
					require.NoError(t, err)
					var fields any
					require.NoError(t, json.Unmarshal(event, &fields))
					again, want := "r-2", values(fields, c.keeps)
					if c.keeps == "" {
						again, want = "r-1", []string{"r-1"} // Lambda sends the same event again, with the same request id
					}
					for i, id := range want {
						sum := sha256.Sum256([]byte(id))
						want[i] = hex.EncodeToString(sum[:8])
					}
					ids += len(want)
					require.ElementsMatch(t, want, hear(t, c.wrap, event, "r-1"), file)
					if c.keeps != "" {
						event, err = json.Marshal(inAnotherTry(fields))
						require.NoError(t, err)
					}
					require.ElementsMatch(t, want, hear(t, c.wrap, event, again), "%s, sent again", file)
				}
			}
			require.NotZero(t, ids)
		})
	}
}

// hear returns the ids of the events in one invocation. Each record has a key of its own, so each acquires.
func hear(t *testing.T, wrap func(*guard.Guard) any, event []byte, request string) []string {
	var h *heard
	store := memstore.New(nil).WrapDriver(func(d driver.Driver) driver.Driver { h = &heard{Driver: d}; return h })
	g, err := guard.New(store, guard.Options{EventID: eventID, Coalesce: "index", Wait: time.Minute})
	require.NoError(t, err)
	_, _ = lambda.NewHandler(wrap(g)).Invoke(lambdacontext.NewContext(t.Context(), &lambdacontext.LambdaContext{AwsRequestID: request}), event)
	return h.events
}

// every is a key function that gives each record another key.
func every[In any]() guard.KeyFunc[In] {
	var mu sync.Mutex
	n := 0
	return func(context.Context, In) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		return fmt.Sprint("k", n), nil
	}
}

func done[In any](context.Context, guard.Lock, In) error { return nil }

// values are the texts with that name.
func values(in any, name string) (all []string) {
	switch in := in.(type) {
	case map[string]any:
		for n, v := range in {
			if text, ok := v.(string); ok && strings.EqualFold(n, name) {
				all = append(all, text)
			}
			all = append(all, values(v, name)...)
		}
	case []any:
		for _, v := range in {
			all = append(all, values(v, name)...)
		}
	}
	return all
}

// fresh are the fields that are new in each try: of SQS, of API Gateway, and of a client that sends its request again.
var fresh = []string{"receiptHandle", "ApproximateReceiveCount", "requestId", "extendedRequestId", "time", "timeEpoch", "requestTime", "requestTimeEpoch", "x-amzn-trace-id", "content-length"}

// inAnotherTry is the event as its source sends it again.
func inAnotherTry(in any) any {
	switch in := in.(type) {
	case map[string]any:
		for n, v := range in {
			if text, ok := v.(string); ok && slices.ContainsFunc(fresh, func(f string) bool { return strings.EqualFold(f, n) }) {
				in[n] = text + "2"
			} else {
				in[n] = inAnotherTry(v)
			}
		}
	case []any:
		for i, v := range in {
			in[i] = inAnotherTry(v)
		}
	}
	return in
}
