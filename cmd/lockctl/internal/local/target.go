package local

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

// target is where the locks are.
type target struct {
	name  string   // for people
	url   string   // for the functions
	env   []string // what the functions need besides, to reach it
	store lockstore.Store
	close func()
}

// awsVariables are the variables with which a function reaches AWS.
var awsVariables = []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}

// forFunctions is the part of the caller's environment that the functions get: what
// a store on AWS needs. DynamoDB Local takes everything, but keeps the tables of
// different regions and credentials apart, so it gets what lambdatest gives.
func forFunctions(u *url.URL, getenv func(string) string) func(string) string {
	local := map[string]string{"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
	region := cmp.Or(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION"))
	return func(name string) string {
		switch {
		case stores.IsLocalDynamoDB(u):
			return local[name]
		case u.Scheme != "dynamodb" && u.Scheme != "elasticache" || !slices.Contains(awsVariables, name):
			return ""
		case strings.HasSuffix(name, "REGION"):
			return region
		}
		return getenv(name)
	}
}

func awsEnvironment(getenv func(string) string) (env []string) {
	for _, name := range awsVariables {
		if value := getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// openTarget opens the store that lockURL names, or an embedded one.
func openTarget(ctx context.Context, lockURL string, getenv func(string) string) (target, error) {
	if lockURL != "" {
		t, err := reach(ctx, lockURL, getenv)
		t.close = func() {}
		return t, err
	}
	embedded := miniredis.NewMiniRedis()
	if err := embedded.StartAddr("127.0.0.1:0"); err != nil {
		return target{}, fmt.Errorf("the embedded Redis cannot start: %w", err)
	}
	t, err := reach(ctx, "redis://"+embedded.Addr(), getenv)
	if err != nil {
		embedded.Close()
	}
	t.name, t.close = "an embedded Redis", embedded.Close
	return t, err
}

// reach opens a store and uses it once.
func reach(ctx context.Context, lockURL string, getenv func(string) string) (target, error) {
	u, err := lockstore.ParseURL(lockURL)
	if err != nil {
		return target{}, &exit.Error{Status: exit.Config, Err: fmt.Errorf("--store, %s: %w", stores.Variable, err)}
	}
	getenv = forFunctions(u, getenv)
	store, err := stores.Open(ctx, lockURL, getenv)
	if err != nil {
		return target{}, err
	}
	if stores.IsLocalDynamoDB(u) {
		if err := stores.MakeLocalTable(ctx, u); err != nil {
			return target{}, &exit.Error{Status: exit.Unavailable, Err: err}
		}
	}
	t := target{name: u.Scheme + "://" + u.Host, url: lockURL, env: awsEnvironment(getenv), store: store}
	return t, stores.Try(ctx, store)
}
