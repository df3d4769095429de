package locallambda

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"

	"github.com/alicebob/miniredis/v2"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// target is where the locks are.
type target struct {
	name  string   // for people
	url   string   // for the functions
	env   []string // what the functions need besides, to reach it
	redis string   // URL of the embedded Redis, if it runs
	empty func()   // the embedded Redis
	close func()
}

var awsVariables = []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}

// forFunctions is the part of the caller's environment that the functions get: what
// ZooKeeper or a store on AWS needs. DynamoDB Local takes everything, but keeps the tables of
// different regions and credentials apart, so it gets what lambdatest gives.
func forFunctions(u *url.URL, getenv func(string) string) map[string]string {
	env := map[string]string{}
	switch {
	case storeurl.IsLocalDynamoDB(u):
		return map[string]string{"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
	case u.Scheme == "zookeeper":
		env[stores.AuthVariable] = getenv(stores.AuthVariable)
	case u.Scheme == "dynamodb" || u.Scheme == "elasticache":
		for _, name := range awsVariables {
			env[name] = getenv(name)
		}
		region := cmp.Or(env["AWS_REGION"], env["AWS_DEFAULT_REGION"])
		env["AWS_REGION"], env["AWS_DEFAULT_REGION"] = region, region
	}
	return env
}

// openTarget opens the store that lockURL names. It starts an embedded Redis if lockURL is
// "", or if something else needs one.
func openTarget(ctx context.Context, lockURL string, needsRedis bool, getenv func(string) string) (target, error) {
	t := target{url: lockURL, empty: func() {}, close: func() {}}
	if lockURL == "" || needsRedis {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.StartAddr("127.0.0.1:0"); err != nil {
			return t, fmt.Errorf("the embedded Redis cannot start: %w", err)
		}
		t.redis, t.empty, t.close = "redis://"+embedded.Addr(), embedded.FlushAll, embedded.Close
	}
	if lockURL == "" {
		t.name, t.url = "an embedded Redis at\n"+t.redis, t.redis
		return t, nil
	}
	err := t.reach(ctx, getenv)
	if err != nil {
		t.close()
	}
	return t, err
}

// reach opens a store and uses it once. A store that lockctl does not have may be in the
// function. A store in memory may not: each environment would have its own.
func (t *target) reach(ctx context.Context, getenv func(string) string) error {
	u, err := lockstore.ParseURL(t.url)
	if err != nil {
		return exit.Errorf(exit.Config, "--store, %s: %w", stores.Variable, err)
	}
	t.name = stores.Address(t.url)
	if !stores.Has(u.Scheme) && !slices.Contains(memstore.Opener.Schemes, u.Scheme) {
		return nil
	}
	env := forFunctions(u, getenv)
	for name, value := range env {
		if value != "" {
			t.env = append(t.env, name+"="+value)
		}
	}
	store, err := stores.Reach(ctx, t.url, func(name string) string { return env[name] })
	if err != nil {
		return err
	}
	return store.Close()
}
