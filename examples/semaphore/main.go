// Command semaphore lets at most 3 runs at a time call a slow provider of translations, counted over all
// environments. It is a sample of guard.WithMaxHolders, and is not in the template.
//
// What protects the provider:
//
//   - The lock lets at most 3 runs call at once, each with a seat of its own, 0 to 2. The others wait, in the
//     order of their arrival. The seat of a run that was killed comes back at the end of its lease.
//   - The context of a call ends before its lease may end, so a run whose lease cannot be renewed stops. So does
//     a run that was frozen, when it goes on.
//   - While a run is frozen, its request is still at the provider, and after the end of its lease another run
//     gets its seat. No lock can end this request. So each request has its seat and its fence, and
//     the provider serves one request for each seat, the one with the largest fence: see seats. The same
//     ends a request that the provider still serves when its run has given up.
//
// With the first two alone 3 leases are live at once, and the provider may serve more requests than
// that: those of frozen and dead machines, each for as long as the provider serves a request at all.
// If the provider is somebody else's, put seats into a proxy before it, or live with that.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// atOnce is how many calls the provider allows at once.
const atOnce = 3

// Text is the event.
type Text struct {
	ID string `json:"id"`
}

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener)
	boot.Start(g, limited(g, boot.MustURLFromEnv("PROVIDER_URL")))
}

// limited is the handler. All texts have one key: the limit is the provider's.
func limited(g *guard.Guard, provider *url.URL) guard.Wrapped[Text, string] {
	key := func(context.Context, Text) (string, error) { return "translations", nil }
	return guard.Wrap(g.WithMaxHolders(atOnce), key, translate(provider))
}

func translate(provider *url.URL) guard.Handler[Text, string] {
	return func(ctx context.Context, lock guard.Lock, t Text) (string, error) {
		body, err := json.Marshal(t)
		if err != nil {
			return "", err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.JoinPath("translations").String(), bytes.NewReader(body))
		if err != nil {
			return "", err
		}
		request.Header.Set(seatHeader, strconv.Itoa(lock.Seat))
		request.Header.Set(fenceHeader, strconv.FormatInt(int64(lock.Fence), 10))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
			result, err := io.ReadAll(response.Body)
			return string(result), err
		case http.StatusConflict:
			return "", fmt.Errorf("a later run has seat %d: %w", lock.Seat, lockstore.ErrLost)
		}
		return "", fmt.Errorf("the provider answered %s", response.Status)
	}
}
