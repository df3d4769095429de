// Command webserver is a sample of httpguard. POST /deposits adds to the account of the user who asks. The client
// sends the header Idempotency-Key, and a repeat gets the first answer. To try it, in this folder:
//
//	redis-server --save '' --port 6379 &
//	LOCK_URL=redis://127.0.0.1 ACCOUNTS_URL=redis://127.0.0.1 PASSWORD=secret go run . &
//	curl -i 127.0.0.1:8080/deposits --user ada:secret -H 'Idempotency-Key: k1' -d '{"cents": 500}'
//
// Redis is for a try: a failover can lose that a deposit has begun. In production let LOCK_URL be a table of DynamoDB.
package main

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpguard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() {
	if boot.EnvVar("PASSWORD") == "" {
		boot.Must(0, errors.New("the environment variable PASSWORD is not set; want the password of all users"))
	}
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.HolderInfo = process }, dynamostore.Opener, redisstore.Opener)
	accounts := boot.Must(redisstore.Client(lockstore.Config{URL: boot.MustURLFromEnv("ACCOUNTS_URL"), Getenv: boot.EnvVar}))
	server := &http.Server{Addr: cmp.Or(boot.EnvVar("ADDRESS"), "127.0.0.1:8080"), Handler: handler(g, boot.EnvVar("PASSWORD"), accounts), ReadTimeout: 10 * time.Second}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = server.Shutdown(context.Background()) // requests at work come to their end, and release their locks
	})
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		boot.Must(0, err)
	}
	<-stopped
}

// process is what lockctl show says of this server.
func process(context.Context) lockstore.HolderInfo {
	host, _ := os.Hostname()
	return lockstore.HolderInfo{Name: host, ID: fmt.Sprint(os.Getpid())}
}

func handler(g *guard.Guard, password string, accounts redis.Scripter) http.Handler {
	results := boot.Must(idempotency.New(g, idempotency.Options{InDoubt: idempotency.AtMostOnce}))
	once := boot.Must(httpguard.Once(results, httpguard.OnceOptions{Caller: user, Lock: g, Key: account}))
	mux := http.NewServeMux()
	mux.Handle("POST /deposits", once(deposit(accounts)))
	return authenticated(password, mux)
}

type userKey struct{}

// authenticated lets in who has the password, and puts the user's name into the context. In production verify a token of
// your identity provider here. It is around the middleware of httpguard: whom it does not know costs no lock.
func authenticated(password string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, given, _ := r.BasicAuth()
		if name == "" || password == "" || subtle.ConstantTimeCompare([]byte(given), []byte(password)) == 0 {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "want a user and the password", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, name)))
	})
}

// user is whose keys these are: two users may choose the same Idempotency-Key.
func user(r *http.Request) (string, error) {
	name, _ := r.Context().Value(userKey{}).(string)
	return name, nil
}

// account is the key of the lock.
func account(r *http.Request) (string, error) {
	name, err := user(r)
	return lockstore.Key("account", name), err
}

// add refuses a fence smaller than the one stored in the account.
const add = `
if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return false end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return redis.call('HINCRBY', KEYS[1], 'balance', ARGV[2])`

func deposit(accounts redis.Scripter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Cents int }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Cents <= 0 {
			http.Error(w, `want {"cents": N}`, http.StatusBadRequest)
			return
		}
		lock, ok := httpguard.LockOf(r.Context())
		if !ok {
			panic("deposit needs a lock: put it into httpguard.Once, without Optional")
		}
		balance, err := accounts.Eval(r.Context(), add, []string{"balance:" + lock.Key}, int64(lock.Fence), in.Cents).Int()
		dial, ok := errors.AsType[*net.OpError](err)
		switch {
		case ok && dial.Op == "dial":
			// Nothing was sent, because the client sends once. A TLS handshake that fails has another error: the key is in doubt.
			http.Error(w, "the accounts cannot be reached, and nothing was added", http.StatusConflict)
		case errors.Is(err, redis.Nil):
			// Nothing was added. A 409 is not stored: the client may send the same key again.
			http.Error(w, "somebody else has written the account since", http.StatusConflict)
		case err != nil:
			slog.ErrorContext(r.Context(), "deposit", "key", lock.Key, "error", err)
			panic(http.ErrAbortHandler) // nobody knows whether it was added, so the key is in doubt
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"balance": %d}`, balance)
		}
	}
}
