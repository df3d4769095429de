// Package counter is the smallest function: each task is one more for a counter behind COUNTER_URL. Its folders have
// the mains, one for each store that is a module of its own.
package counter

import (
	"context"
	"fmt"
	"net/http"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Run is the function with locks in one store.
func Run(opener lockstore.SchemeOpener) {
	g := boot.MustGuardFromEnv(opener)
	boot.Start(g, guard.Wrap(g, key, handle(boot.MustURLFromEnv("COUNTER_URL").String())))
}

type task struct {
	Account string `json:"account"`
}

// key names what is locked.
func key(_ context.Context, in task) (string, error) {
	return lockstore.Key("account", in.Account), nil
}

// handle is where the work stands. Every write takes the fence of the lock, so that the counter can refuse
// one that comes too late.
func handle(counter string) guard.Handler[task, string] {
	return func(ctx context.Context, lock guard.Lock, _ task) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, counter, nil)
		if err != nil {
			return "", err
		}
		request.Header.Set("Fence", fmt.Sprint(int64(lock.Fence)))
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer reply.Body.Close()
		if reply.StatusCode != http.StatusOK {
			return "", fmt.Errorf("the counter answered %s", reply.Status)
		}
		return reply.Status, nil
	}
}
