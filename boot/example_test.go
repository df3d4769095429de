package boot_test

import (
	"context"
	"fmt"
	"os"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

type Order struct{ Account string }

func Example() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
	boot.Start(g, guard.Wrap(g, key, handle))
}

// A function with a setting of its own whose name begins with LOCK_, and with the URL of its data. A
// missing or wrong setting ends main with a message that names it.
func ExampleMustURLFromEnv() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
	stage := boot.EnvVar("LOCK_STAGE")
	data := boot.MustURLFromEnv("ACCOUNTS_URL")
	_, _ = stage, data // for handle
	boot.Start(g, guard.Wrap(g, key, handle))
}

// Must is for what main cannot do without.
func ExampleMust() {
	dir := boot.Must(os.Getwd())
	fmt.Println(dir != "")
	// Output: true
}

func key(_ context.Context, o Order) (string, error) {
	return lockstore.Key("account", o.Account), nil
}

func handle(ctx context.Context, lock guard.Lock, o Order) (string, error) {
	// ctx is cancelled before the lease ends, and before Lambda's deadline.
	return "done for " + o.Account, nil
}
