package main

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// A unit test: the lock is in memory, and the accounts are in a small Redis in this process.
func TestHandle(t *testing.T) {
	a := cache{redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})}
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	order := Order{ID: "o-1", Account: "7", Amount: 500}
	receipt, err := guard.Wrap(g, key, handle(a)).Handle(t.Context(), order)
	if want := (Receipt{Order: "o-1", Balance: 500}); err != nil || receipt != want {
		t.Errorf("the handler answered %+v, %v; want %+v", receipt, err, want)
	}
	if _, err := a.add(t.Context(), guard.Lock{Key: "account/7", Fence: 1}, order); !errors.Is(err, lockstore.ErrLost) {
		t.Errorf("a write with an old fence: %v; want %v", err, lockstore.ErrLost)
	}
}

// A unit test of the write to DynamoDB, without DynamoDB: its answers are in the test.
func TestTable(t *testing.T) {
	newer := `{"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "Item": {"lock_fence": {"N": "9"}}}`
	for _, c := range []struct {
		status int
		body   string
		lost   bool // a newer holder has written
	}{
		{http.StatusBadRequest, newer, true},
		{http.StatusInternalServerError, `{}`, false}, // nobody knows whether the amount was added
	} {
		var requests []map[string]any
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var request map[string]any
			if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
				t.Error(err)
			}
			requests = append(requests, request)
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		}))
		defer server.Close()
		u, err := url.Parse("dynamodb://accounts?endpoint=" + server.URL)
		if err != nil {
			t.Fatal(err)
		}
		a, err := openAccounts(u, os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.add(t.Context(), guard.Lock{Key: "account/7", Fence: 8}, Order{Account: "7", Amount: 500})
		if err == nil || errors.Is(err, lockstore.ErrLost) != c.lost {
			t.Errorf("after status %d the error is %v", c.status, err)
		}
		if len(requests) != 1 {
			t.Fatalf("after status %d: %d requests; want 1, or the amount may be added twice", c.status, len(requests))
		}
		condition, _ := requests[0]["ConditionExpression"].(string)
		if want := "lock_fence <= :lock_fence"; !strings.Contains(condition, want) {
			t.Errorf("the condition of the write is %q; want %q in it", condition, want)
		}
	}
}

// Three real environments of the binary that is deployed, and ten orders for each at once.
func TestEnvironments(t *testing.T) {
	event, err := os.ReadFile("event.json")
	if err != nil {
		t.Fatal(err)
	}
	var order Order
	if err := json.Unmarshal(event, &order); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "bootstrap")
	if err := lambdatest.Build(t.Context(), ".", binary); err != nil {
		t.Fatal(err)
	}
	server := miniredis.RunT(t)
	url := "redis://" + server.Addr()
	const environments, orders = 3, 10
	all, err := lambdatest.StartAll(t.Context(), environments, lambdatest.Config{Binary: binary, Timeout: time.Minute,
		Env: []string{"LOCK_URL=" + url, "LOCK_WAIT=30s", "ACCOUNTS_URL=" + url}})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	var senders sync.WaitGroup
	for _, env := range all {
		senders.Go(func() {
			for range orders {
				if r, err := env.Invoke(t.Context(), event); err != nil || r.ErrorType != "" {
					t.Errorf("an order failed: %v %s %s", err, r.ErrorType, r.ErrorMessage)
				}
			}
		})
	}
	senders.Wait()
	a := cache{redis.NewClient(&redis.Options{Addr: server.Addr()})}
	balance, err := a.client.HGet(t.Context(), "account:"+order.Account, "balance").Int64()
	if want := environments * orders * order.Amount; err != nil || balance != want {
		t.Errorf("the balance is %d, %v; want %d", balance, err, want)
	}
}
