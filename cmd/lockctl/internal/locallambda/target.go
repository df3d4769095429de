package locallambda

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// target is where the locks are.
type target struct {
	name  string   // for people
	note  string   // what was done to reach it, for people, in lines
	url   string   // for the functions
	env   []string // what the functions need besides, to reach it
	redis string   // URL of the embedded Redis, if it runs
	close func()
}

// awsVariables are the variables with which a function reaches AWS.
var awsVariables = []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}

// forFunctions is the part of the caller's environment that the functions get: what
// ZooKeeper or a store on AWS needs. DynamoDB Local takes everything, but keeps the tables of
// different regions and credentials apart, so it gets what lambdatest gives.
func forFunctions(u *url.URL, getenv func(string) string) func(string) string {
	local := map[string]string{"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
	region := cmp.Or(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION"))
	return func(name string) string {
		switch {
		case stores.IsLocalDynamoDB(u):
			return local[name]
		case u.Scheme == "zookeeper" && name == stores.AuthVariable:
			return getenv(name)
		case u.Scheme != "dynamodb" && u.Scheme != "elasticache" || !slices.Contains(awsVariables, name):
			return ""
		case strings.HasSuffix(name, "REGION"):
			return region
		}
		return getenv(name)
	}
}

func passedOn(getenv func(string) string) (env []string) {
	for _, name := range append(awsVariables, stores.AuthVariable) {
		if value := getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// openTarget opens the store that lockURL names. It starts an embedded Redis if lockURL is
// "", or if something else needs one.
func openTarget(ctx context.Context, lockURL string, needsRedis bool, getenv func(string) string) (t target, err error) {
	stopRedis, redisURL := func() {}, ""
	if lockURL == "" || needsRedis {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.StartAddr("127.0.0.1:0"); err != nil {
			return target{}, fmt.Errorf("the embedded Redis cannot start: %w", err)
		}
		stopRedis, redisURL = embedded.Close, "redis://"+embedded.Addr()
	}
	if lockURL == "" {
		return target{name: "an embedded Redis at\n" + redisURL, url: redisURL, redis: redisURL, close: stopRedis}, nil
	}
	t, err = reach(ctx, lockURL, getenv)
	t.redis, t.close = redisURL, stopRedis
	if err != nil {
		t.close()
	}
	return t, err
}

// reach opens a store and uses it once. A store that lockctl does not have may be in the
// function. A store in memory may not: each environment would have its own.
func reach(ctx context.Context, lockURL string, getenv func(string) string) (target, error) {
	u, err := lockstore.ParseURL(lockURL)
	if err != nil {
		return target{}, &exit.Error{Status: exit.Config, Err: fmt.Errorf("--store, %s: %w", stores.Variable, err)}
	}
	if !stores.Has(u.Scheme) && !slices.Contains(memstore.Opener.Schemes, u.Scheme) {
		return target{name: u.Scheme + "://" + u.Host, url: lockURL}, nil
	}
	getenv, note := forFunctions(u, getenv), ""
	store, err := stores.Open(ctx, lockURL, getenv)
	if err != nil {
		return target{}, err
	}
	defer store.Close()
	if stores.IsLocalDynamoDB(u) {
		made, err := stores.MakeLocalTable(ctx, u)
		if err != nil {
			return target{}, &exit.Error{Status: exit.Unavailable, Err: err}
		}
		if made {
			note = fmt.Sprintf("The table %s was not there, and was made.\n", u.Host)
		}
	}
	t := target{name: u.Scheme + "://" + u.Host, note: note, url: lockURL, env: passedOn(getenv)}
	err = stores.Try(ctx, store)
	if err == nil && stores.IsLocalDynamoDB(u) {
		t.note += warm(ctx, store)
	}
	return t, err
}

const (
	warmCalls = 10 // at least
	warmTime  = 50 * time.Millisecond
	coldTime  = 30 * time.Second
)

// warm takes and releases a lock until the store answers fast, or for coldTime, and says how long that
// took. A DynamoDB Local that has just started is so slow that guards give up.
func warm(ctx context.Context, store *lockstore.Store) (note string) {
	began := time.Now()
	for calls := 1; ; calls++ {
		sent := time.Now()
		lease, err := store.Acquire(ctx, lockstore.Request{Key: "lockctl", Owner: lockstore.NewOwner(), TTL: lockstore.MinTTL})
		if err == nil {
			err = store.Release(ctx, lease)
		}
		took := time.Since(sent)
		switch cold := time.Since(began); {
		case calls >= warmCalls && took < warmTime && cold > time.Second:
			return fmt.Sprintf("The store was cold: after %s it answers fast.\n", seconds(cold))
		case calls >= warmCalls && took < warmTime || ctx.Err() != nil:
			return ""
		case cold > coldTime:
			return fmt.Sprintf("The store is slow: to take a lock and release it takes %s. So events may fail by LockStoreUnavailable.\n", milliseconds(took))
		case err != nil: // the events will show what is wrong; or another lockctl has the lock
			_ = pause.For(ctx, retryPause)
		}
	}
}
