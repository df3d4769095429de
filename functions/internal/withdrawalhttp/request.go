// Package withdrawalhttp is the HTTP side of a withdrawal: it reads
//
//	POST /accounts/{id}/withdrawals
//	{"id": "w-1", "amount": 500}
//
// and writes the answers. amount is in whole cents. id is the caller's name
// for this withdrawal: repeating the request with the same id is safe.
//
//	200  made, now or by an earlier request with this id and amount
//	400  the request cannot be read; the detail names the field
//	404  no such account
//	409  another request is working on the account; try again
//	422  the balance is too low, or the id was used with another amount
//
// The body of a refusal is a problem of RFC 9457. An error that is the
// service's own fault goes to Lambda, and the client sees a 500. openapi.json beside the
// withdraw function describes this and the header Idempotency-Key, which that function
// reads by httpapi.Once.
package withdrawalhttp

import (
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// Parse reads a request. Its error is for the caller to see.
func Parse(r httpapi.Request) (accounts.Withdrawal, error) {
	w, err := accounts.Parse(string(r.Body), "id", "amount")
	if err != nil {
		return w, err
	}
	w.Account = r.PathParameters["id"]
	return w, w.Validate()
}
