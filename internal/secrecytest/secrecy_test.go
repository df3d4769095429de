package secrecytest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/httpguard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/guard/stream"
	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockhttp"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

// password is in every URL that may have one and in every credential.
const password = "hunter2hunter2hunter2"

// watch keeps all that was shown and all that must not be in it.
type watch struct {
	mu      sync.Mutex
	shown   bytes.Buffer
	secrets map[string]bool
	owners  int
	logs    *watch // nil, or the watch of the logs that several share
}

func newWatch() *watch { return &watch{secrets: map[string]bool{password: true}} }

// Write makes it the writer of logs.
func (w *watch) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown.Write(b)
}

// Printf makes it the Redis client's logger.
func (w *watch) Printf(_ context.Context, format string, args ...any) {
	fmt.Fprintf(w, format+"\n", args...)
}

func (w *watch) owner(o lockstore.Owner) {
	if w.logs != nil {
		w.logs.owner(o)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(o) > 8 && !w.secrets[string(o)] {
		w.secrets[string(o)] = true
		w.owners++
	}
}

// show prints a value in every way that Go has, an error with all that it wraps.
func (w *watch) show(what string, v any) {
	fmt.Fprintf(w, "\n%s: ", what)
	for _, verb := range []string{"%v", "%+v", "%#v"} {
		fmt.Fprintf(w, verb+"\n", v)
		fmt.Fprintf(w, verb+"\n", struct{ Inside any }{v})
	}
	// Of a pointer a wrong verb shows what vet warns of: all that is behind it, and
	// no method is asked.
	if _, isError := v.(error); isError || reflect.ValueOf(v).Kind() != reflect.Pointer {
		for _, verb := range []string{"%s", "%q", "%x", "%d"} {
			fmt.Fprintf(w, verb+"\n", v)
		}
	}
	text, err := json.Marshal(v)
	fmt.Fprintf(w, "%s %v\n", text, err)
	slog.New(slog.NewJSONHandler(w, nil)).Info("m", "v", v)
	slog.New(slog.NewTextHandler(w, nil)).Info("m", "v", v)
	switch e := v.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			w.show(what+" wraps", inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			w.show(what+" wraps", inner)
		}
	}
}

// found are the secrets in what was shown, in any of the ways to write them.
func (w *watch) found() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for secret := range w.secrets {
		numbers := strings.Trim(fmt.Sprint([]byte(secret)), "[]")
		forms := []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), numbers}
		for i := range 3 { // base64 is by three bytes, and what follows the secret changes the last four letters
			for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
				text := encoding.EncodeToString([]byte(secret[i:]))
				forms = append(forms, text[:len(text)-4])
			}
		}
		for _, form := range forms {
			if at := bytes.Index(w.shown.Bytes(), []byte(form)); at >= 0 {
				all = append(all, string(w.shown.Bytes()[max(0, at-300):at+len(form)]))
			}
		}
	}
	return all
}

// A secret is found behind any other text.
func TestASecretIsFound(t *testing.T) {
	for _, before := range []string{"", "u", "us", "user:"} {
		text := []byte(before + password + "!")
		for _, shown := range []string{string(text), fmt.Sprintf("%x", text), fmt.Sprint(text), base64.StdEncoding.EncodeToString(text), base64.RawURLEncoding.EncodeToString(text)} {
			w := newWatch()
			fmt.Fprint(w, shown)
			assert.NotEmpty(t, w.found(), shown)
		}
	}
}

func (w *watch) check(t *testing.T) {
	t.Helper()
	for _, text := range w.found() {
		t.Errorf("a secret is shown: …%s", text)
	}
}

// target is a store's server, which a test can break.
type target struct {
	url     func(addr, password string) string
	proxy   *testservers.CutProxy // nil: there is none to break
	request string                // what is in every request of a lock
	corrupt func(t *testing.T, key string)
}

func (on target) open(t *testing.T, addr, password string) *lockstore.Store {
	return open(t, on.url(addr, password), func(name string) string {
		return map[string]string{"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": password, "AWS_SESSION_TOKEN": password, "ZOOKEEPER_AUTH": "user:" + password}[name]
	})
}

func open(t *testing.T, rawURL string, getenv func(string) string) *lockstore.Store {
	store, err := lockstore.Open(t.Context(), rawURL, getenv, redisstore.Opener, elasticache.Opener, dynamostore.Opener, zkstore.Opener)
	require.NoError(t, err)
	return store
}

func TestNothingShowsASecret(t *testing.T) {
	// What clients log goes to the same place for all targets.
	logs := newWatch()
	redis.SetLogger(logs)
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(logs, nil)))
	t.Cleanup(func() { // when the targets are done
		slog.SetDefault(before)
		logging.Disable()
		log.SetOutput(os.Stderr)
		logs.check(t)
		require.NotZero(t, logs.shown.Len(), "no client has logged anything")
	})
	for name, start := range map[string]func(t *testing.T) target{
		"memory":    func(*testing.T) target { return target{} },
		"Redis":     onRedis,
		"DynamoDB":  onDynamoDB,
		"ZooKeeper": onZooKeeper,
	} {
		t.Run("M40 "+name, func(t *testing.T) {
			t.Parallel()
			w := newWatch()
			w.logs = logs
			on := start(t)
			if on.proxy == nil {
				live(t, w, memstore.New(nil), on)
			} else {
				live(t, w, on.open(t, on.proxy.Addr, password), on)
				broken(t, w, on)
			}
			w.check(t)
			require.Greater(t, w.owners, 15)
			require.Greater(t, w.shown.Len(), 100_000)
			t.Logf("%d owners, %d bytes shown", w.owners, w.shown.Len())
		})
	}
}

// observed is a guard whose reports are shown and logged.
func observed(t *testing.T, w *watch, store *lockstore.Store) *guard.Guard {
	seen := storetest.NewFaulty(store, func(c storetest.Call) storetest.Fault {
		w.owner(c.Owner)
		return storetest.Fault{}
	})
	lines, text := guard.LogReports(slog.New(slog.NewJSONHandler(w, nil))), guard.LogReports(slog.New(slog.NewTextHandler(w, nil)))
	g, err := guard.New(seen.Store, guard.Options{
		HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{Name: "test", ID: "1"} },
		Observe: func(ctx context.Context, r guard.Report) {
			lines(ctx, r)
			text(ctx, r)
			w.show("report", r)
		},
	})
	require.NoError(t, err)
	return g
}

// live makes every outcome of a store that works.
func live(t *testing.T, w *watch, store *lockstore.Store, on target) {
	ctx := t.Context()
	g := observed(t, w, store)
	do := func(key string, work func(context.Context, guard.Lock) error) (err error) {
		defer func() {
			if p := recover(); p != nil {
				w.show("panic", p)
			}
		}()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err = g.Do(ctx, key, work)
		w.show("Do's error", err)
		return err
	}
	fine := func(context.Context, guard.Lock) error { return nil }

	require.NoError(t, do("ok", func(ctx context.Context, lock guard.Lock) error {
		w.show("lock", lock)
		w.show("context", ctx)
		w.show("guard while it runs", g)
		w.show("nested in itself", do("ok", fine))
		return nil
	}))
	require.Error(t, do("error", func(context.Context, guard.Lock) error { return errors.New("its own") }))
	require.NoError(t, do("panic", func(context.Context, guard.Lock) error { panic("boom") }))
	for _, key := range []string{"", "a\nb", strings.Repeat("k", 2000)} {
		require.IsType(t, &guard.LockBadRequest{}, do(key, fine))
	}
	hurried, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	w.show("no time", g.Do(hurried, "k", fine))

	// Long-lived leases, and the adapters at a key that is busy.
	lease, err := g.Acquire(ctx, guard.LeaseRequest{Key: "busy", TTL: time.Minute})
	require.NoError(t, err)
	w.show("lease request", guard.LeaseRequest{Key: "busy", TTL: time.Minute, Owner: lease.Owner})
	w.show("lease", lease)
	require.IsType(t, &guard.LockBusy{}, do("busy", fine))
	park(ctx, w, store, "busy")
	answers(ctx, w, g, "busy")
	status, err := g.Inspect(ctx, "busy")
	require.NoError(t, err)
	w.show("status", status)
	_, err = g.Renew(ctx, lease, time.Minute)
	require.NoError(t, err)
	other := lease
	other.Owner = lockstore.NewOwner()
	_, err = g.Renew(ctx, other, time.Minute)
	require.IsType(t, &guard.LockLost{}, err)
	w.show("Renew", err)
	w.show("Release", g.Release(ctx, other))
	for _, bad := range []lockstore.Lease{
		{Key: "busy", Owner: lockstore.Owner(lease.Owner + " \n"), Fence: 1}, {Key: "busy", Owner: lease.Owner, Fence: -1},
		{Key: "busy", Owner: lockstore.Owner(strings.Repeat(string(lease.Owner), 5))},
	} {
		w.owner(bad.Owner)
		err := g.Release(ctx, bad)
		require.ErrorIs(t, err, lockstore.ErrInvalid)
		w.show("a bad lease's", err)
	}
	require.NoError(t, g.Release(ctx, lease))
	require.NoError(t, g.Release(ctx, lease), "again")
	lease, err = g.Acquire(ctx, guard.LeaseRequest{Key: "completed", TTL: time.Minute})
	require.NoError(t, err)
	require.NoError(t, store.MarkStarted(ctx, lease))
	w.show("MarkStarted", store.MarkStarted(ctx, other))
	require.NoError(t, store.Complete(ctx, lease, []byte("a result"), time.Minute))
	w.show("Complete", store.Complete(ctx, other, nil, time.Minute))
	w.show("completed", do("completed", fine))

	require.IsType(t, &guard.LockLost{}, do("lost", func(ctx context.Context, lock guard.Lock) error {
		status, err := store.Revoke(ctx, lockstore.RevokeRequest{Key: "lost", Fence: lock.Fence, OpenAtOnce: true})
		w.show("Revoke's answer", status)
		return err
	}))
	if on.corrupt != nil {
		require.NoError(t, do("corrupt", fine))
		on.corrupt(t, "corrupt")
		require.IsType(t, &guard.LockCorrupt{}, do("corrupt", fine))
		answers(ctx, w, g, "corrupt")
		findings, err := store.Check(ctx)
		w.show("findings", findings)
		w.show("Check's error", err)
	}
	answers(ctx, w, g, "answered")
	w.show("guard", g)
	g.Shutdown()
	w.show("after the shutdown", do("k", fine))
}

// park asks for a parked place, and takes its address.
func park(ctx context.Context, w *watch, store *lockstore.Store, key string) {
	token := "token" + string(lockstore.NewOwner())
	w.owner(lockstore.Owner(token))
	r := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true, Parked: lockstore.MaxParkedTurn, Address: lockstore.TaskToken(token)}
	w.owner(r.Owner)
	w.show("parked", r)
	_, err := store.Acquire(ctx, r)
	w.show("parked Acquire", err)
	address, err := store.TakeAddress(ctx, key, r.Owner)
	w.show("address", address)
	w.show("TakeAddress", err)
	w.show("Leave", store.Leave(ctx, key, r.Owner))
}

// answers shows what every adapter answers for a key.
func answers(ctx context.Context, w *watch, g *guard.Guard, key string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	say := func(what string, out any, err error) {
		w.show(what+"'s answer", out)
		w.show(what+"'s error", err)
	}
	name := func(context.Context, httpapi.Request) (string, error) { return key, nil }
	out, err := httpapi.Wrap(g, name, func(context.Context, guard.Lock, httpapi.Request) (httpapi.Response, error) {
		return httpapi.Response{StatusCode: 200}, nil
	}).Handle(ctx, httpapi.Request{})
	say("HTTP", out, err)
	batch, err := sqsbatch.Wrap(g, func(context.Context, events.SQSMessage) (string, error) { return key, nil },
		func(context.Context, guard.Lock, events.SQSMessage) error { return nil }).Handle(ctx, []byte(`{"Records": [{"eventSource": "aws:sqs", "messageId": "m"}]}`))
	say("SQS", batch, err)
	records, err := stream.WrapDynamoDB(g, func(context.Context, events.DynamoDBEventRecord) (string, error) { return key, nil },
		func(context.Context, guard.Lock, events.DynamoDBEventRecord) error { return nil }).Handle(ctx, []byte(`{"Records": [{"eventSource": "aws:dynamodb", "dynamodb": {"SequenceNumber": "1"}}]}`))
	say("a stream", records, err)
	skip, err := schedule.Wrap(g, key, func(context.Context, guard.Lock, string) error { return nil }).Handle(ctx, []byte(`""`))
	say("a schedule", skip, err)
}

// broken asks a store whose server, or the way to it, does not work.
func broken(t *testing.T, w *watch, on target) {
	fine := func(context.Context, guard.Lock) error { return nil }
	ask := func(what string, store *lockstore.Store) {
		t.Helper()
		g := observed(t, w, store)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := g.Do(ctx, "k-"+what, fine)
		if assert.IsType(t, &guard.LockStoreUnavailable{}, err, what) {
			w.show(what, err)
		}
		lease := lockstore.Lease{Key: "k-" + what, Owner: lockstore.NewOwner(), Fence: 1}
		w.owner(lease.Owner)
		_, err = g.Renew(ctx, lease, time.Minute)
		w.show(what, err)
		w.show(what, g.Release(ctx, lease))
		answers(ctx, w, g, "k-"+what)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		park(ctx, w, store, "k-"+what)
		_, err = store.Check(ctx)
		w.show(what, err)
	}
	store := on.open(t, on.proxy.Addr, password)
	for what, set := range map[string]func(){
		"lost replies": func() { on.proxy.CutReplies(on.request) }, "cut requests": func() { on.proxy.CutRequests(on.request) }, "silence": on.proxy.Swallow,
	} {
		set()
		ask(what, store)
		on.proxy.Forward()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	ask("refused", on.open(t, l.Addr().String(), password))
	const wrong = "another-" + password
	if on.request != dynamoRequest { // DynamoDB Local takes any
		ask("wrong password", on.open(t, on.proxy.Addr, wrong))
	}
	ask("not a server of this kind", on.open(t, quoting(t), password))
}

// quoting is a server that answers everything with what it was sent.
func quoting(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			go func() {
				defer conn.Close()
				for b := make([]byte, 8<<10); ; {
					n, err := conn.Read(b)
					if err != nil {
						return
					}
					sent := strings.NewReplacer("\r", " ", "\n", " ").Replace(string(b[:n]))
					if _, err := fmt.Fprintf(conn, "-ERR unknown command, with args beginning with: %s\r\n", sent); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func onRedis(t *testing.T) target {
	addr := testservers.Redis(t, "--requirepass", password)
	admin := redis.NewClient(&redis.Options{Addr: addr, Password: password})
	t.Cleanup(func() { assert.NoError(t, admin.Close()) })
	return target{
		url:     func(addr, password string) string { return "redis://:" + password + "@" + addr },
		proxy:   testservers.Proxy(t, addr),
		request: "eval",
		corrupt: func(t *testing.T, key string) {
			require.NoError(t, admin.SetRange(t.Context(), redisstore.DefaultPrefix+key, 12, "X").Err())
		},
	}
}

const dynamoRequest = "DynamoDB_20120810."

func onDynamoDB(t *testing.T) target {
	name, endpoint := "locks", testservers.DynamoDB(t)
	u, err := url.Parse(testservers.Table(t, endpoint, name, "key"))
	require.NoError(t, err)
	admin, err := dynamostore.Client(lockstore.Config{URL: u, Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	return target{
		url:     func(addr, _ string) string { return "dynamodb://" + name + "?region=us-east-1&endpoint=http://" + addr },
		proxy:   testservers.Proxy(t, strings.TrimPrefix(endpoint, "http://")),
		request: dynamoRequest,
		corrupt: func(t *testing.T, key string) {
			update := "SET fence = :text"
			_, err := admin.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{TableName: &name, Key: map[string]types.AttributeValue{"key": &types.AttributeValueMemberS{Value: key}}, UpdateExpression: &update,
				ExpressionAttributeValues: map[string]types.AttributeValue{":text": &types.AttributeValueMemberS{Value: "soon"}}})
			require.NoError(t, err)
		},
	}
}

func onZooKeeper(t *testing.T) target {
	addr := testservers.ZooKeeper(t).Addr
	admin, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	require.NoError(t, admin.AddAuth("digest", []byte("user:"+password)))
	node := func(key string) string { return zkstore.DefaultPrefix + "/locks/" + url.PathEscape(key) }
	return target{
		url:     func(addr, _ string) string { return "zookeeper://" + addr },
		proxy:   testservers.Proxy(t, addr),
		request: zkstore.DefaultPrefix,
		corrupt: func(t *testing.T, key string) {
			_, err := admin.Set(node(key), []byte("hello"), -1)
			require.NoError(t, err)
		},
	}
}

// Every exported type that can be printed is printed, with secrets in it. A new type
// needs a value here.
func TestNoTypeShowsASecret(t *testing.T) {
	w := newWatch()
	owner := lockstore.NewOwner()
	w.owner(owner)
	u, err := lockstore.ParseURL("redis://user:" + password + "@127.0.0.1/0?prefix=p")
	require.NoError(t, err)
	getenv := func(string) string { return password }
	config := lockstore.Config{URL: u, Getenv: getenv}
	redisStore := open(t, u.String(), getenv)
	cacheStore := open(t, "elasticache://user@cache?cache=name", getenv)
	zkStore := open(t, "zookeeper://127.0.0.1", func(string) string { return "user:" + password })
	table, err := lockstore.ParseURL("dynamodb://table")
	require.NoError(t, err)
	dynamoStore, err := dynamostore.Open(t.Context(), lockstore.Config{URL: table, Getenv: getenv})
	require.NoError(t, err)
	g, err := guard.New(redisStore, guard.Options{})
	require.NoError(t, err)
	service, err := lockhttp.Open(g, &url.URL{Scheme: "text", Path: "/" + password + password}, func(string) string { return `{"*": ["shared/"]}` })
	require.NoError(t, err)
	once, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	lease := lockstore.Lease{Key: "k", Owner: owner, Fence: 7}
	inner := fmt.Errorf("about %v: %w", lease, lockstore.ErrLost)
	_, err = json.Marshal(lease)
	require.Error(t, err)
	for _, damaged := range []string{lease.Encode() + " ", lease.Encode() + "=", lease.Encode()[1:], string(owner)} {
		_, err := lockstore.ParseLease(damaged)
		require.ErrorIs(t, err, lockstore.ErrInvalid)
		w.show("a damaged lease's", err)
	}
	result := lockstore.HiddenBytes(lockstore.NewOwner())
	w.owner(lockstore.Owner(result))
	refused := &lockstore.Refused{Result: result}
	address := lockstore.TaskToken(string(owner))

	shown := map[string]bool{}
	for _, v := range []any{
		config, &config, redisstore.Opener, lockstore.Finding{}, lockstore.Fence(7), lockstore.HolderInfo{Name: "n"},
		lockstore.Request{Key: "k", Owner: owner}, &lockstore.Request{Owner: owner}, lockstore.Status{Key: "k"}, lockstore.LiveLease{Fence: 7}, lockstore.RevokeRequest{Key: "k"}, lockstore.Page{}, lockstore.Extent{}, &lockstore.Refused{Key: "k"},
		refused, *refused, result, &result, []lockstore.HiddenBytes{result}, fmt.Errorf("busy: %w", refused),
		lease, &lease, []lockstore.Lease{lease}, map[string]lockstore.Lease{"k": lease}, owner, []lockstore.Owner{owner},

		address, &address, []lockstore.WakeAddress{address}, lockstore.WakeAddress(owner), lockstore.Request{Address: address}, &lockstore.Request{Address: address},
		&lockstore.StillHolds{Key: "k"}, lockstore.AwaitedTurn{Lease: lease, Hint: lockstore.Hint(owner)}, driver.Hint(owner),

		g, guard.Options{}, guard.Lock{Key: "k", Fence: 7}, guard.OutcomeOK, guard.Report{Key: "k", Err: inner, ReleaseErr: inner},
		guard.LeaseRequest{Key: "k", Owner: owner}, &guard.LeaseRequest{Owner: owner},
		&guard.LockBusy{Key: "k"}, &guard.LockCovered{Key: "k"}, &guard.LockLost{Key: "k", WorkErr: inner, Cause: inner}, &guard.LockNoTime{Key: "k", Err: inner},
		&guard.LockBadRequest{Key: "k", Err: inner}, &guard.LockCorrupt{Key: "k", Err: inner}, &guard.LockStoreUnavailable{Key: "k", Err: inner},

		doonce.Options{}, doonce.Completion{Result: result, Err: inner}, guard.Wrapped[string, string]{}, once, idempotency.Options{}, idempotency.AtMostOnce, idempotency.Call{Key: "k"},
		idempotency.Replay{}, idempotency.Result{Data: result}, &idempotency.RepeatMismatch{}, &idempotency.RepeatInDoubt{}, &idempotency.RepeatNoAnswer{},

		redisstore.Options{Prefix: "p"}, redisStore, cacheStore, dynamostore.Options{}, dynamoStore, service,
		zkstore.Options{Credentials: func() (string, string) { return "user", password }}, zkStore,
		casstore.Options{}, casstore.Entry{Version: "v"}, casstore.Page{}, casstore.Listed{},
		driver.Request{Kind: driver.Acquire, Owner: owner, Result: result}, &driver.Request{Owner: owner}, driver.Acquire, driver.Owner(owner), driver.Fence(7), driver.HiddenBytes(result),
		driver.Answer{HandedOver: []driver.Owner{owner}, Wake: []driver.Owner{owner}}, driver.Granted, driver.Held, driver.Status{Result: result}, driver.Page{}, driver.Listed{}, driver.LiveLease{Text: "n"},
		schedule.Result{Skipped: true}, httpapi.Request{Method: "GET"}, httpapi.Response{StatusCode: 200}, httpapi.OnceOptions{}, httpguard.Options{}, httpguard.OnceOptions{},
	} {
		name, _, _ := strings.Cut(strings.TrimPrefix(fmt.Sprintf("%T", v), "*"), "[") // without type arguments
		shown[name] = true
		w.show(name, v)
	}
	for _, name := range printable(t) {
		assert.True(t, shown[name], "add a value of the type %s", name)
	}
	w.check(t)
}

// public are the folders of the packages that users read.
var public = []string{"lockstore", "lockstore/*", "lockstore/*store/*", "guard", "guard/*", "boot", "lockhttp", "lambdatest"}

// forTests are public packages for tests, which have no secrets.
var forTests = []string{"lockstore/memstore", "lockstore/storetest", "lockstore/casstore/castest", "lambdatest"}

// printable are the exported types of the public packages, without the stores that are
// modules of their own and look for secrets in their own tests, without interfaces, funcs,
// and other names of types from elsewhere.
func printable(t *testing.T) (names []string) {
	const root = "../.."
	for _, pattern := range public {
		folders, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, folder := range folders {
			below, err := filepath.Rel(root, folder)
			require.NoError(t, err)
			_, err = os.Stat(filepath.Join(folder, "go.mod"))
			if ownModule := err == nil; !ownModule && !slices.Contains(forTests, filepath.ToSlash(below)) {
				names = append(names, typesIn(t, folder)...)
			}
		}
	}
	require.Greater(t, len(names), 50)
	return names
}

// declared is the declaration of an exported type, and what it is.
var declared = regexp.MustCompile(`(?m)^type ([A-Z]\w*)(?:\[[^\n]*\])? (=|interface|func|\S)`)

// typesIn are those of one folder.
func typesIn(t *testing.T, folder string) (names []string) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		_, name, _ := strings.Cut("\n"+string(text), "\npackage ")
		name, _, _ = strings.Cut(name, "\n")
		for _, d := range declared.FindAllStringSubmatch(string(text), -1) {
			if !strings.HasSuffix(path, "_test.go") && !slices.Contains([]string{"=", "interface", "func"}, d[2]) {
				names = append(names, name+"."+d[1])
			}
		}
	}
	return names
}
