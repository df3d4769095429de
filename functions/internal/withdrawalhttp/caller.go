package withdrawalhttp

import (
	"context"
	"errors"
	"strings"

	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// Caller is for httpapi.OnceOptions: the user or the role whose signature API Gateway has checked, by its unique
// id. The session of a role is not part of it: a repeat may come in a later session. Without
// an authorizer, as in sam local, nobody knows who asks, and all requests are of one caller.
func Caller(_ context.Context, r httpapi.Request) (string, error) {
	a := r.RequestContext.Authorizer
	switch {
	case a == nil:
		return "anonymous", nil
	case a.IAM == nil:
		return "", errors.New("the caller is not known: the request has no IAM signature")
	}
	id, _, _ := strings.Cut(a.IAM.CallerID, ":")
	return id, nil
}
