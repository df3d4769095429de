// Command webserver is a sample of httpguard. POST /deposits adds to the account of the user whom the request's
// JWT names. The client sends the header Idempotency-Key, and a repeat gets the first answer. To try it, in this folder:
//
//	redis-server --save '' --port 6379 &
//	export LOCK_URL=redis://127.0.0.1 ACCOUNTS_URL=redis://127.0.0.1 JWT_SECRET=$(openssl rand -hex 32)
//	TOKEN=$(go run . token ada)
//	go run . &
//	curl -i 127.0.0.1:8080/deposits -H "Authorization: Bearer $TOKEN" -H 'Idempotency-Key: k1' -d '{"cents": 500}'
//
// Redis is for a try: a failover can lose that a deposit has begun. In production let LOCK_URL be a table of DynamoDB.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/golang-jwt/jwt/v5"
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
	secret := boot.Must(secretFrom(boot.EnvVar("JWT_SECRET")))
	if len(os.Args) > 1 {
		fmt.Println(boot.Must(token(secret, os.Args[1:]...)))
		return
	}
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.HolderInfo = process }, dynamostore.Opener, redisstore.Opener)
	accounts := boot.Must(redisstore.Client(lockstore.Config{URL: boot.MustURLFromEnv("ACCOUNTS_URL"), Getenv: boot.EnvVar}))
	server := &http.Server{Addr: cmp.Or(boot.EnvVar("ADDRESS"), "127.0.0.1:8080"), Handler: handler(g, secret, accounts), ReadTimeout: 10 * time.Second}

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

func handler(g *guard.Guard, secret []byte, accounts redis.Scripter) http.Handler {
	results := boot.Must(idempotency.New(g, idempotency.Options{InDoubt: idempotency.AtMostOnce}))
	once := boot.Must(httpguard.Once(results, httpguard.OnceOptions{Caller: user, Lock: g, Key: account}))
	mux := http.NewServeMux()
	mux.Handle("POST /deposits", once(deposit(accounts)))
	return authenticated(secret, mux)
}

type userKey struct{}

// authenticated lets in who has a token, and puts the token's claim sub into the context. It is around the
// middleware of httpguard: who has no token costs no lock.
func authenticated(secret []byte, next http.Handler) http.Handler {
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"HS256"}), jwt.WithExpirationRequired())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		var claims jwt.RegisteredClaims
		_, err := parser.ParseWithClaims(text, &claims, func(*jwt.Token) (any, error) { return secret, nil })
		if err != nil || claims.Subject == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "want a token of a user", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, claims.Subject)))
	})
}

// user is whose keys these are: two users may choose the same Idempotency-Key.
func user(r *http.Request) (string, error) {
	sub, _ := r.Context().Value(userKey{}).(string)
	return sub, nil
}

// account is the key of the lock.
func account(r *http.Request) (string, error) {
	sub, err := user(r)
	return lockstore.Key("account", sub), err
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
		switch {
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

func secretFrom(text string) ([]byte, error) {
	if len(text) < 32 {
		return nil, fmt.Errorf("JWT_SECRET has %d bytes; want at least 32", len(text))
	}
	return []byte(text), nil
}

// token is one to try the server with. In production your identity provider makes it: then verify it with the
// provider's public key, and its issuer and audience with jwt.WithIssuer and jwt.WithAudience.
func token(secret []byte, args ...string) (string, error) {
	if len(args) != 2 || args[0] != "token" {
		return "", errors.New("want no arguments, or: token NAME")
	}
	claims := jwt.RegisteredClaims{Subject: args[1], ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
}
