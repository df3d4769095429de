// Command provider is a payment provider to try the sample with: it charges nobody, and each Idempotency-Key once.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sync"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("want an address, such as 127.0.0.1:8090")
	}
	log.Fatal(http.ListenAndServe(os.Args[1], charges()))
}

func charges() http.Handler {
	var mu sync.Mutex
	made := map[string]bool{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			return // the client has left
		}
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		made[key] = true
		mu.Unlock()
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"charge": %q}`, key)
	})
	mux.HandleFunc("GET /charges", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(w, "charges:", len(made))
	})
	return mux
}
