package httpguard_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpguard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func newGuard() *guard.Guard {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return g
}

// Only one request of an account is in the handler at a time.
func ExampleWrap() {
	key := func(r *http.Request) (string, error) {
		return lockstore.Key("account", r.PathValue("account")), nil
	}
	locked, err := httpguard.Wrap(newGuard(), key, httpguard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux() // for http.Server
	mux.Handle("POST /accounts/{account}/deposits", locked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := httpguard.LockOf(r.Context())
		// Write lock.Fence with the balance, and let the database refuse a smaller one.
		fmt.Fprintf(w, "%s, fence above 0: %t", lock.Key, lock.Fence > 0)
	})))

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/accounts/7/deposits", strings.NewReader("30")))
	fmt.Println(answer.Code, answer.Body)
	// Output: 200 account/7, fence above 0: true
}

// A handler that streams takes its lock itself, and answers as Wrap does if it does not get it.
func ExampleWriteProblem() {
	g := newGuard()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := false
		err := g.Do(r.Context(), "export", func(ctx context.Context, lock guard.Lock) error {
			began = true
			fmt.Fprintln(w, "first line")
			return http.NewResponseController(w).Flush()
		})
		if !began && httpguard.WriteProblem(w, err) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client sees that its answer is not whole
		}
	})

	_ = g.Do(context.Background(), "export", func(context.Context, guard.Lock) error {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/export", nil))
		fmt.Println(answer.Code, answer.Header().Get("Content-Type"), answer.Header().Get("Retry-After") != "")
		return nil
	})
	// Output: 409 application/problem+json true
}

// A request that comes again with the same header Idempotency-Key gets the first answer.
func ExampleOnce() {
	results, err := idempotency.New(newGuard(), idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	user := func(r *http.Request) (string, error) { return "ada", nil } // of the token; see examples/webserver
	once, err := httpguard.Once(results, httpguard.OnceOptions{Caller: user})
	if err != nil {
		log.Fatal(err)
	}
	deposits := 0
	handler := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deposits++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "deposit ", deposits)
	}))
	for range 2 {
		request := httptest.NewRequest(http.MethodPost, "/deposits", strings.NewReader("30"))
		request.Header.Set("Idempotency-Key", "k1")
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		fmt.Printf("%d %s, replayed %q\n", answer.Code, answer.Body, answer.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 deposit 1, replayed ""
	// 201 deposit 1, replayed "true"
}
