package lockstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// What package guard does for a handler, by hand. A lease is over when its TTL has passed, whatever its
// owner does, so a program that takes longer renews it.
func Example() {
	ctx := context.Background()
	store := memstore.New(nil)
	lease, err := store.Acquire(ctx, lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	_, err = store.Acquire(ctx, lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute})
	if refused, ok := errors.AsType[*lockstore.Refused](err); ok {
		fmt.Println("another owner:", refused.State)
	}
	if _, err := store.Renew(ctx, lease, time.Minute); err != nil {
		log.Fatal(err)
	}
	if err := store.Release(ctx, lease); err != nil {
		log.Fatal(err)
	}
	status, err := store.Inspect(ctx, "account/7")
	fmt.Println("released:", status.State, err)
	// Output:
	// another owner: held
	// released: free <nil>
}

// A program that chooses its store by a URL.
func ExampleOpen() {
	getenv := func(string) string { return "" } // os.Getenv, or boot.EnvVar in a function
	store, err := lockstore.Open(context.Background(), "memory://", getenv, memstore.Opener)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	fmt.Println(store.Name())
	_, err = lockstore.Open(context.Background(), "etcd://host", getenv, memstore.Opener)
	fmt.Println(err)
	// Output:
	// memstore
	// lockstore: no store for the scheme "etcd"; linked here: memory
}

// A lease that one program takes and another gives back, with a text between them. Who has the text
// has the lock.
func ExampleParseLease() {
	ctx := context.Background()
	store := memstore.New(nil)
	lease, err := store.Acquire(ctx, lockstore.Request{Key: "import/42", Owner: lockstore.NewOwner(), TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	text := lease.Encode()

	again, err := lockstore.ParseLease(text)
	if err != nil {
		log.Fatal(err)
	}
	again, err = store.Renew(ctx, again, time.Hour) // a parsed lease has no TTL
	fmt.Println(again.Key, again.TTL > 59*time.Minute, err)
	fmt.Println(store.Release(ctx, again))
	// Output:
	// import/42 true <nil>
	// <nil>
}

// The key of an S3 object, whose name somebody else has chosen.
func ExampleKeyOrHash() {
	fmt.Println(lockstore.KeyOrHash("bucket", "a/b.csv"))
	fmt.Println(len(lockstore.KeyOrHash("bucket", string(make([]byte, 2000)))) <= 512)
	// Output:
	// bucket/a%2Fb.csv
	// true
}
