package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// The test binary is also the function.
func TestMain(m *testing.M) {
	if os.Getenv("CHARGES_URL") == "" {
		os.Exit(m.Run())
	}
	main()
}

const (
	long    = "LOCK_TTL=30s" // of a run that shall end well, on a busy machine too
	short   = "LOCK_TTL=5s"  // of one whose lease others wait for
	patient = "LOCK_WAIT=10s"
)

// database is a way to DynamoDB that stops the transaction of an order.
type database struct {
	through http.Handler

	mu    sync.Mutex
	stops map[string]*stop // by order
}

// stop is where the transactions of an order stop.
type stop struct {
	after   bool          // they are written
	status  int           // what they are answered after the stop; 0 is the real answer
	once    bool          // only the first one
	reached chan struct{} // closed when the first one stops
	open    chan struct{} // closed to let them go on
	left    chan struct{} // closed when the first one goes on, or its client is gone
	used    bool
}

// at stops the request if it is to be stopped here. It returns a status if the request is
// not to get its real answer.
func (d *database) at(r *http.Request, order string, after bool) int {
	d.mu.Lock()
	s := d.stops[order]
	hit := s != nil && s.after == after && !(s.once && s.used)
	first := hit && !s.used
	if hit {
		s.used = true
	}
	d.mu.Unlock()
	if !hit {
		return 0
	}
	if first {
		close(s.reached)
		defer close(s.left)
	}
	select {
	case <-s.open:
	case <-r.Context().Done():
	}
	return s.status
}

func (d *database) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // killed in the middle of its request
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems") {
		d.through.ServeHTTP(w, r)
		return
	}
	_, rest, _ := strings.Cut(string(body), `"charge/`) // the key of the lock
	order, _, _ := strings.Cut(rest, `"`)
	if status := d.at(r, order, false); status != 0 || r.Context().Err() != nil {
		w.WriteHeader(max(status, 499))
		return
	}
	answer := httptest.NewRecorder()
	// The database applies what it has received, also if the client is gone.
	d.through.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context())))
	if status := d.at(r, order, true); status != 0 {
		w.WriteHeader(status)
		return
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// one is one order.
type one struct {
	*testing.T
	ctx      context.Context
	database *database
	client   *dynamodb.Client
	env      []string
	order    string
	id       string // of the request: Lambda's retry has the id of the first try
}

func (o *one) start(timeout time.Duration, env ...string) *lambdatest.Environment {
	o.Helper()
	binary, err := os.Executable()
	require.NoError(o, err)
	e, err := lambdatest.Start(o.ctx, lambdatest.Config{Binary: binary, Name: "charge", Timeout: timeout, Env: slices.Concat(o.env, env)})
	require.NoError(o, err)
	o.Cleanup(func() { assert.NoError(o, e.Close()) })
	return e
}

func (o *one) send(e *lambdatest.Environment) lambdatest.Result {
	payload, err := json.Marshal(Order{ID: o.order, Cents: 700})
	assert.NoError(o, err)
	r, err := e.Send(o.ctx, lambdatest.Event{Payload: payload, ID: o.id})
	assert.NoError(o, err)
	return r
}

func (o *one) sending(e *lambdatest.Environment) func() lambdatest.Result {
	var r lambdatest.Result
	var done sync.WaitGroup
	done.Go(func() { r = o.send(e) })
	return func() lambdatest.Result { done.Wait(); return r }
}

// retry sends the event again and again to a new environment, as Lambda does, until there is an answer, or an
// error that no retry changes.
func (o *one) retry() lambdatest.Result {
	e := o.start(usual, patient)
	for {
		r := o.send(e)
		if r.ErrorType != "LockBusy" && r.ErrorType != "LockStoreUnavailable" || o.ctx.Err() != nil {
			return r
		}
		<-time.After(200 * time.Millisecond)
	}
}

// stopped sends the event, and returns when its transaction stops. If the SDK sends it again, it stops again, unless it
// stops once.
func (o *one) stopped(s stop, e *lambdatest.Environment) (*stop, func() lambdatest.Result) {
	s.reached, s.open, s.left = make(chan struct{}), make(chan struct{}), make(chan struct{})
	o.database.mu.Lock()
	o.database.stops[o.order] = &s
	o.database.mu.Unlock()
	done := o.sending(e)
	o.await(s.reached)
	return &s, done
}

func (o *one) await(happened <-chan struct{}) {
	o.Helper()
	select {
	case <-happened:
	case <-o.ctx.Done():
		require.Fail(o, "it did not happen")
	}
}

// charges is how often the order was charged.
func (o *one) charges() string {
	table := "charges"
	out, err := o.client.GetItem(o.ctx, &dynamodb.GetItemInput{TableName: &table, Key: map[string]types.AttributeValue{"order": &types.AttributeValueMemberS{Value: o.order}}})
	require.NoError(o, err)
	n, ok := out.Item["charges"].(*types.AttributeValueMemberN)
	require.True(o, ok, "there is no charge")
	return n.Value
}

const usual = 30 * time.Second

// Each fault leaves a run that may or may not have charged, and the event comes again. What the fault returns is done after that.
var faults = map[string]func(*one) (then func()){
	"F64 twice, one after the other": func(o *one) func() {
		require.Empty(o, o.send(o.start(usual)).ErrorType)
		return nil
	},
	"F64 twice at once": func(o *one) func() {
		e := o.start(usual)
		stop, first := o.stopped(stop{}, e)
		require.NoError(o, e.Freeze()) // or its SDK gives up while the others start
		second := o.sending(o.start(usual, patient))
		require.Equal(o, "LockBusy", o.send(o.start(usual)).ErrorType)
		require.NoError(o, e.Thaw())
		close(stop.open)
		require.Empty(o, first().ErrorType)
		require.Empty(o, second().ErrorType, "it has waited, and gets the result")
		return nil
	},
	"F01 killed before the charge": func(o *one) func() { return killed(o, stop{}) },
	"F03 killed after the charge":  func(o *one) func() { return killed(o, stop{after: true}) },
	"F63 timed out after the charge": func(o *one) func() {
		stop, done := o.stopped(stop{after: true}, o.start(6*time.Second))
		require.NotEmpty(o, done().ErrorType)
		close(stop.open)
		return nil
	},
	"F05 failed after the charge": func(o *one) func() {
		stop, done := o.stopped(stop{after: true, status: http.StatusBadRequest}, o.start(usual, short)) // a status that an SDK takes for the last word
		close(stop.open)
		require.NotEmpty(o, done().ErrorType)
		return nil
	},
	"F07 F12 frozen before the charge": func(o *one) func() { return frozen(o, stop{once: true}) },
	"F07 frozen after the charge":      func(o *one) func() { return frozen(o, stop{once: true, after: true}) },
}

// killed kills a run whose charge is under way, or done.
func killed(o *one, s stop) func() {
	e := o.start(usual, short)
	stop, done := o.stopped(s, e)
	require.NoError(o, e.Kill())
	require.Equal(o, lambdatest.ErrorExit, done().ErrorType)
	// The database learns from its connection that the client is gone. A request that may go on before that is a charge.
	o.await(stop.left)
	close(stop.open)
	return nil
}

// frozen stops a run whose charge is under way, or done, until another run has its answer. That one waits for
// the end of the lease, unless the result is there.
func frozen(o *one, s stop) func() {
	e := o.start(usual, short)
	stop, done := o.stopped(s, e)
	require.NoError(o, e.Freeze())
	return func() {
		close(stop.open)
		require.NoError(o, e.Thaw())
		done() // an answer or an error
	}
}

func TestChargesAreCounted(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	d := &database{through: testservers.Forward(t, endpoint), stops: map[string]*stop{}}
	proxy := httptest.NewServer(d)
	defer proxy.Close()
	locks, charges := testservers.Table(t, endpoint, "locks", "key"), testservers.Table(t, endpoint, "charges", "order")
	env := []string{long, "LOCK_URL=" + strings.Replace(locks, endpoint, proxy.URL, 1), "CHARGES_URL=" + strings.Replace(charges, endpoint, proxy.URL, 1)}
	u, err := url.Parse(charges)
	require.NoError(t, err)
	client, err := dynamostore.Client(lockstore.Config{URL: u, Getenv: func(string) string { return "local" }})
	require.NoError(t, err)
	// The cases wait most of the time, so more of them run than there are processors.
	var all sync.WaitGroup
	for name, fault := range faults {
		all.Go(func() {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				o := &one{T: t, ctx: ctx, database: d, client: client, env: env, order: strings.NewReplacer(" ", "-", ",", "").Replace(name), id: lambdatest.NewRequestID()}
				then := fault(o)
				r := o.retry()
				if then != nil {
					then()
					r = o.retry()
				}
				require.Empty(t, r.ErrorType, r.ErrorMessage)
				var receipt Receipt
				require.NoError(t, json.Unmarshal(r.Payload, &receipt))
				require.Equal(t, Receipt{o.order, 700}, receipt)
				require.Equal(t, "1", o.charges())
				require.Empty(t, o.retry().ErrorType)
				require.Equal(t, "1", o.charges(), "and no more, however often it comes")
			})
		})
	}
	all.Wait()
}
