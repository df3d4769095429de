package boot_test

import (
	"fmt"
	"os"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

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
