package main

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// database is a way to DynamoDB.
type database struct {
	through http.Handler

	mu   sync.Mutex
	next func(forward func()) (status int) // happens to the next transaction; 0 is its own answer
}

func (d *database) set(next func(forward func()) int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = next
}

func (d *database) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems") {
		d.through.ServeHTTP(w, r)
		return
	}
	d.mu.Lock()
	next := d.next
	d.next = nil
	d.mu.Unlock()
	answer := httptest.NewRecorder()
	forward := sync.OnceFunc(func() { d.through.ServeHTTP(answer, r) })
	if next != nil {
		if status := next(forward); status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	forward()
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// Whatever happens to a run that may or may not have charged, the event comes again, and there is one charge.
func TestChargesAreCounted(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	d := &database{through: testservers.Forward(t, endpoint)}
	proxy := httptest.NewServer(d)
	defer proxy.Close()
	local := func(string) string { return "local" }
	open := func(table, key string) *url.URL {
		u, err := url.Parse(strings.Replace(testservers.Table(t, endpoint, table, key), endpoint, proxy.URL, 1))
		require.NoError(t, err)
		return u
	}
	locks, charges := open("locks", "key"), open("charges", "order")
	l, err := openLedger(charges, locks, local)
	require.NoError(t, err)
	store, err := lockstore.Open(t.Context(), locks.String(), local, dynamostore.Opener)
	require.NoError(t, err)
	g, err := guard.New(store, guard.Options{Wait: 30 * time.Second})
	require.NoError(t, err)
	once, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	handler := idempotency.Wrap(once, call, l.charge)

	for name, fault := range map[string]func(o Order, send func() error){
		"F03 F05 charged, and the answer is lost": func(_ Order, send func() error) {
			d.set(func(forward func()) int { forward(); return http.StatusBadRequest }) // which the SDK takes for the last word
			require.Error(t, send())
		},
		"F64 twice at once": func(_ Order, send func() error) {
			first, goOn := held(d, send)
			second := make(chan error)
			go func() { second <- send() }()
			close(goOn)
			require.NoError(t, <-first)
			require.NoError(t, <-second, "it has waited, and gets the result")
		},
		"F07 F12 a charge that arrives after the next run's": func(o Order, send func() error) {
			first, goOn := held(d, send)
			c, err := call(t.Context(), o)
			require.NoError(t, err)
			status, err := store.Inspect(t.Context(), c.Key)
			require.NoError(t, err)
			_, err = store.Revoke(t.Context(), lockstore.RevokeRequest{Key: c.Key, Fence: status.Fence, OpenAtOnce: true})
			require.NoError(t, err)
			require.NoError(t, send())
			close(goOn)
			require.Error(t, <-first)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Order{ID: strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(name), Cents: 700}
			send := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := handler.Handle(ctx, o)
				return err
			}
			fault(o, send)
			for range 2 {
				receipt, err := handler.Handle(t.Context(), o)
				require.NoError(t, err)
				require.Equal(t, Receipt{o.ID, 700}, receipt)
			}
			out, err := l.client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &l.charges, Key: map[string]types.AttributeValue{"order": &types.AttributeValueMemberS{Value: o.ID}}})
			require.NoError(t, err)
			require.Equal(t, &types.AttributeValueMemberN{Value: "1"}, out.Item["charges"])
		})
	}
}

// held sends the event, and returns when its transaction waits to go on.
func held(d *database, send func() error) (done chan error, goOn chan struct{}) {
	done, goOn = make(chan error, 1), make(chan struct{})
	arrived := make(chan struct{})
	d.set(func(func()) int {
		close(arrived)
		<-goOn
		return 0
	})
	go func() { done <- send() }()
	<-arrived
	return done, goOn
}
