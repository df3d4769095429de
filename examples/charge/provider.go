package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/lambdalock/lambdalock/guard"
)

// provider is a payment provider over HTTP. Most providers take an Idempotency-Key
// themselves; this one takes none, so each request is a charge. It refuses a smaller fence.
type provider struct{ url string }

// client follows no redirect: it would send the charge again.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (p provider) charge(ctx context.Context, lock guard.Lock, o Order) (Receipt, error) {
	body, err := json.Marshal(map[string]any{"order": o.ID, "cents": o.Cents, "fence": lock.Fence})
	if err != nil {
		return Receipt{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/charges", bytes.NewReader(body))
	if err != nil {
		return Receipt{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return Receipt{}, err
	}
	if err := response.Body.Close(); err != nil {
		return Receipt{}, err
	}
	if response.StatusCode != http.StatusOK {
		return Receipt{}, fmt.Errorf("the provider answered %s", response.Status)
	}
	return Receipt{o.ID, o.Cents}, nil
}
