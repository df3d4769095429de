package withdrawalhttp

import (
	"context"
	"errors"

	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// Caller is for httpapi.OnceOptions: whom the gateway has authenticated. Without
// an authorizer, as in sam local, nobody knows who asks, and all requests are of one caller.
func Caller(_ context.Context, r httpapi.Request) (string, error) {
	switch {
	case r.Caller != "":
		return r.Caller, nil
	case r.Authorizer == nil:
		return "anonymous", nil
	}
	return "", errors.New("the caller is not known: the authorizer names nobody")
}
