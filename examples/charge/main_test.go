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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// The test binary is also the function.
func TestMain(m *testing.M) {
	if os.Getenv("CHARGE_MODE") == "" {
		os.Exit(m.Run())
	}
	main()
}

const (
	long    = "LOCK_TTL=30s" // of a run that shall end well, on a busy machine too
	short   = "LOCK_TTL=5s"  // of one whose lease others wait for
	patient = "LOCK_WAIT=10s"
)

// effects counts the charges of each order, and stops requests before or after the charge.
type effects struct {
	mu     sync.Mutex
	counts map[string]int
	fences map[string]int64
	stops  map[string]*stop
}

// stop is where the first request of an order stops.
type stop struct {
	after   bool
	status  int           // what the request is answered after the stop; 0 is the real answer
	reached chan struct{} // closed when the request stops
	open    chan struct{} // closed to let it go on
	left    chan struct{} // closed when the first request goes on, or its client is gone
	every   bool          // stops every request: an SDK sends again
	used    bool
}

func newEffects() *effects {
	return &effects{counts: map[string]int{}, fences: map[string]int64{}, stops: map[string]*stop{}}
}

func (e *effects) stopAt(order string, after bool, status int) *stop {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &stop{after: after, status: status, reached: make(chan struct{}), open: make(chan struct{}), left: make(chan struct{})}
	e.stops[order] = s
	return s
}

// at stops the request if it is to be stopped here. It returns a status if the request is
// not to get its real answer.
func (e *effects) at(r *http.Request, order string, after bool) int {
	e.mu.Lock()
	s := e.stops[order]
	hit := s != nil && s.after == after && (s.every || !s.used)
	first := hit && !s.used
	if hit {
		s.used = true
	}
	e.mu.Unlock()
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

func (e *effects) add(order string, fence int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if fence < e.fences[order] {
		return false
	}
	e.fences[order] = fence
	e.counts[order]++
	return true
}

func (e *effects) count(order string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts[order]
}

// ServeHTTP is the payment provider.
func (e *effects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Order string
		Fence int64
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return // killed in the middle of its request
	}
	if status := e.at(r, in.Order, false); status != 0 || r.Context().Err() != nil {
		w.WriteHeader(max(status, 499))
		return
	}
	if !e.add(in.Order, in.Fence) {
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	if status := e.at(r, in.Order, true); status != 0 {
		w.WriteHeader(status)
	}
}

// database is a way to DynamoDB that stops the transactions of an order.
type database struct {
	*effects
	through http.Handler
}

func (d *database) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	order := orderIn(body)
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems") {
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
		return
	}
	d.through.ServeHTTP(w, r)
}

// orderIn finds the order in a request for its record.
func orderIn(body []byte) string {
	_, rest, _ := bytes.Cut(body, []byte(`"charge/`))
	order, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(order)
}

// world is one store with the processes on it.
type world struct {
	effects  *effects
	database *database // nil on Redis
	env      []string
	store    *lockstore.Store
	charged  func(t *testing.T, order string) int // of the row; nil on Redis
}

// newWorld starts a store, and a provider.
func newWorld(t *testing.T, kind string) *world {
	w := &world{effects: newEffects()}
	provider := httptest.NewServer(w.effects)
	t.Cleanup(provider.Close)
	w.env = []string{"PROVIDER_URL=" + provider.URL, long}
	getenv := func(string) string { return "local" }
	open := func(opener lockstore.Opener, raw string) *url.URL {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		w.store, err = opener.Open(t.Context(), lockstore.Config{URL: u, Getenv: getenv})
		require.NoError(t, err)
		return u
	}
	if kind == "redis" {
		raw := "redis://" + testservers.Redis(t)
		open(redisstore.Opener, raw)
		w.env = append(w.env, "LOCK_URL="+raw)
		return w
	}
	endpoint := testservers.DynamoDB(t)
	w.database = &database{effects: newEffects(), through: testservers.Forward(t, endpoint)}
	proxy := httptest.NewServer(w.database)
	t.Cleanup(proxy.Close)
	locks, charges := testservers.Table(t, endpoint, "locks", "key"), testservers.Table(t, endpoint, "charges", "order")
	open(dynamostore.Opener, locks)
	w.env = append(w.env, "LOCK_URL="+strings.Replace(locks, endpoint, proxy.URL, 1), "CHARGES_URL="+strings.Replace(charges, endpoint, proxy.URL, 1))
	u, err := url.Parse(charges)
	require.NoError(t, err)
	client, err := dynamostore.Client(lockstore.Config{URL: u, Getenv: getenv})
	require.NoError(t, err)
	w.charged = func(t *testing.T, order string) int {
		table := "charges"
		out, err := client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &table, Key: map[string]types.AttributeValue{"order": &types.AttributeValueMemberS{Value: order}}})
		require.NoError(t, err)
		n, ok := out.Item["charges"].(*types.AttributeValueMemberN)
		if !ok {
			return 0
		}
		count, err := strconv.Atoi(n.Value)
		require.NoError(t, err)
		return count
	}
	return w
}

// one is one order in one mode.
type one struct {
	*world
	t     *testing.T
	ctx   context.Context
	mode  string
	order string
	id    string // of the request: Lambda's retry has the id of the first try
}

func (o *one) start(config lambdatest.Config, env ...string) *lambdatest.Environment {
	o.t.Helper()
	binary, err := os.Executable()
	require.NoError(o.t, err)
	config.Binary, config.Name = binary, "charge"
	config.Env = slices.Concat(o.env, []string{"CHARGE_MODE=" + o.mode}, env)
	if config.Timeout == 0 {
		config.Timeout = 30 * time.Second
	}
	e, err := lambdatest.Start(o.ctx, config)
	require.NoError(o.t, err)
	o.t.Cleanup(func() { assert.NoError(o.t, e.Close()) })
	return e
}

func (o *one) send(e *lambdatest.Environment) lambdatest.Result {
	payload, err := json.Marshal(Order{ID: o.order, Cents: 700})
	assert.NoError(o.t, err)
	r, err := e.Send(o.ctx, lambdatest.Event{Payload: payload, ID: o.id})
	assert.NoError(o.t, err)
	return r
}

func (o *one) sending(e *lambdatest.Environment) func() lambdatest.Result {
	var r lambdatest.Result
	var done sync.WaitGroup
	done.Go(func() { r = o.send(e) })
	return func() lambdatest.Result { done.Wait(); return r }
}

// stop stops the first request that has an effect.
func (o *one) stop(after bool, status int) *stop {
	if o.mode == "transaction" {
		if status != 0 {
			status = http.StatusBadRequest // which an SDK takes for the last word
		}
		s := o.database.stopAt(o.order, after, status)
		s.every = true
		return s
	}
	return o.effects.stopAt(o.order, after, status)
}

func (o *one) reached(s *stop) { o.await(s.reached, "the charge was never asked for") }

func (o *one) await(happened <-chan struct{}, otherwise string) {
	o.t.Helper()
	select {
	case <-happened:
	case <-o.ctx.Done():
		require.Fail(o.t, otherwise)
	}
}

func (o *one) charges() int {
	if o.mode == "transaction" {
		return o.charged(o.t, o.order)
	}
	return o.effects.count(o.order)
}

func (o *one) receipt() Receipt { return Receipt{o.order, 700} }

// retry sends the event again and again, as Lambda does, until there is an answer, or an
// error that no retry changes.
func (o *one) retry(e *lambdatest.Environment) lambdatest.Result {
	for {
		r := o.send(e)
		if r.ErrorType != "LockBusy" && r.ErrorType != "LockStoreUnavailable" || o.ctx.Err() != nil {
			return r
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-o.ctx.Done():
		}
	}
}

// Each fault leaves a run that may or may not have charged, and the event comes again.
var faults = map[string]struct {
	run     func(*one) (then func())
	started bool // the run started its work and did not say how it ended
}{
	"F64 twice, one after the other": {run: func(o *one) func() {
		require.Empty(o.t, o.send(o.start(lambdatest.Config{})).ErrorType)
		return nil
	}},
	"F64 twice at once": {run: func(o *one) func() {
		stop, e := o.stop(false, 0), o.start(lambdatest.Config{})
		first := o.sending(e)
		o.reached(stop)
		require.NoError(o.t, e.Freeze()) // or its SDK gives up while the others start
		second := o.sending(o.start(lambdatest.Config{}, patient))
		third := o.send(o.start(lambdatest.Config{}))
		require.Equal(o.t, "LockBusy", third.ErrorType)
		require.NoError(o.t, e.Thaw())
		close(stop.open)
		require.Empty(o.t, first().ErrorType)
		require.Empty(o.t, second().ErrorType, "it has waited, and gets the result")
		return nil
	}},
	"F01 killed before the charge": {started: true, run: func(o *one) func() { return killed(o, false) }},
	"F03 killed after the charge":  {started: true, run: func(o *one) func() { return killed(o, true) }},
	"F63 timed out after the charge": {started: true, run: func(o *one) func() {
		stop := o.stop(true, 0)
		done := o.sending(o.start(lambdatest.Config{Timeout: 6 * time.Second}))
		o.reached(stop)
		require.NotEmpty(o.t, done().ErrorType)
		close(stop.open)
		return nil
	}},
	"F05 failed after the charge": {started: true, run: func(o *one) func() {
		close(o.stop(true, http.StatusBadGateway).open)
		require.NotEmpty(o.t, o.send(o.start(lambdatest.Config{}, short)).ErrorType)
		return nil
	}},
	"F07 F12 frozen before the charge": {started: true, run: func(o *one) func() { return frozen(o, false) }},
	"F07 frozen after the charge":      {started: true, run: func(o *one) func() { return frozen(o, true) }},
}

// killed kills a run whose charge is under way, or done.
func killed(o *one, after bool) func() {
	stop, e := o.stop(after, 0), o.start(lambdatest.Config{}, short)
	done := o.sending(e)
	o.reached(stop)
	require.NoError(o.t, e.Kill())
	require.Equal(o.t, lambdatest.ErrorExit, done().ErrorType)
	// The provider learns from its connection that the client is gone. A request that may go
	// on before that is a charge.
	o.await(stop.left, "the request of a killed run has not ended")
	close(stop.open)
	return nil
}

// frozen stops a run whose charge is under way, or done, until another run has its answer. That one waits for
// the end of the lease, unless the result is there.
func frozen(o *one, after bool) func() {
	stop, e := o.stop(after, 0), o.start(lambdatest.Config{}, short)
	stop.every = false // the other one charges meanwhile
	done := o.sending(e)
	o.reached(stop)
	require.NoError(o.t, e.Freeze())
	return func() {
		close(stop.open)
		require.NoError(o.t, e.Thaw())
		done() // an answer or an error
	}
}

func TestChargesAreCounted(t *testing.T) {
	// To the work both stores are one. AtLeastOnce is simulated in guard, and its processes are killed in verify.
	for kind, mode := range map[string]string{"redis": "refuse", "dynamodb": "transaction"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, kind)
			// The cases wait most of the time, so more of them run than there are processors.
			slots := make(chan struct{}, 8)
			var all sync.WaitGroup
			for name, fault := range faults {
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					t.Run(mode+": "+name, func(t *testing.T) {
						ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
						defer cancel()
						o := &one{world: w, t: t, ctx: ctx, mode: mode, order: strings.NewReplacer(" ", "-", ",", "").Replace(mode + " " + name), id: lambdatest.NewRequestID()}
						then := fault.run(o)
						r := o.retry(o.start(lambdatest.Config{}, patient))
						inDoubt := mode == "refuse" && fault.started
						if inDoubt {
							require.Equal(t, "RepeatInDoubt", r.ErrorType, r.ErrorMessage)
						}
						if then != nil {
							then()
							r = o.retry(o.start(lambdatest.Config{}, patient))
						}
						// The result of a run that was frozen may be stored when it goes on.
						if inDoubt && r.ErrorType != "" {
							require.LessOrEqual(t, o.charges(), 1)
							o.resolve(o.charges() == 1)
							r = o.retry(o.start(lambdatest.Config{}, patient))
						}
						require.Empty(t, r.ErrorType, r.ErrorMessage)
						var receipt Receipt
						require.NoError(t, json.Unmarshal(r.Payload, &receipt))
						require.Equal(t, o.receipt(), receipt)
						require.Equal(t, 1, o.charges())
						require.Empty(t, o.retry(o.start(lambdatest.Config{})).ErrorType)
						require.Equal(t, 1, o.charges(), "and no more, however often it comes")
					})
				})
			}
			all.Wait()
		})
	}
}

// resolve is what an operator does who has looked at the provider's list of charges.
func (o *one) resolve(done bool) {
	o.t.Helper()
	key := idempotency.NewCall("charge", o.order).Key
	status, err := o.store.Inspect(o.ctx, key)
	require.NoError(o.t, err)
	require.Equal(o.t, lockstore.InDoubt, status.State)
	require.Equal(o.t, o.id, status.Holder.ID)
	if !done {
		// The run had no effect, and will have none: it was killed.
		require.NoError(o.t, o.store.ResolveNoEffect(o.ctx, key, status.Fence))
		return
	}
	result, err := json.Marshal(o.receipt())
	require.NoError(o.t, err)
	require.NoError(o.t, idempotency.ResolveEffect(o.ctx, o.store, key, status.Fence, result, idempotency.Options{}))
}

// What the provider answers, it gets one request.
func TestRedirect(t *testing.T) {
	for status := 300; status < 400; status++ {
		charges := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			charges++
			w.Header().Set("Location", "/charges")
			w.WriteHeader(status)
		}))
		_, err := provider{server.URL}.charge(t.Context(), guard.Lock{Fence: 1}, Order{ID: "7"})
		server.Close()
		require.ErrorContains(t, err, "the provider answered")
		require.Equal(t, 1, charges, status)
	}
}
