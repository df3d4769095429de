package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// parse reads a request. Its error is for the caller to see.
func parse(r httpapi.Request) (accounts.Withdrawal, error) {
	w, err := accounts.Parse(string(r.Body), "id", "amount")
	if err != nil {
		return w, err
	}
	w.Account = r.PathParameters["id"]
	return w, w.Validate()
}

// caller is whom the gateway has authenticated. Without an authorizer, as in sam local, nobody knows who asks, and all
// requests are of one caller.
func caller(_ context.Context, r httpapi.Request) (string, error) {
	switch {
	case r.Caller != "":
		return r.Caller, nil
	case r.Authorizer == nil:
		return "anonymous", nil
	}
	return "", errors.New("the caller is not known: the authorizer names nobody")
}

// answer turns what Ledger.Withdraw returned into what the client gets. An error that is the service's own fault goes to
// Lambda, and the client sees a 500.
func answer(r accounts.Receipt, err error) (httpapi.Response, error) {
	switch {
	case err == nil:
		body, err := json.Marshal(made{r.Account, r.ID, r.Amount, r.Balance})
		return httpapi.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, err
	case errors.Is(err, accounts.ErrNotFound):
		return httpapi.NewProblem(http.StatusNotFound, "There is no such account.", nil), nil
	case errors.Is(err, accounts.ErrInsufficient):
		return httpapi.NewProblem(http.StatusUnprocessableEntity, "The account's balance is too low.", nil), nil
	case errors.Is(err, accounts.ErrReused):
		return httpapi.NewProblem(http.StatusUnprocessableEntity, "id: was used before, with another amount.", nil), nil
	case errors.Is(err, accounts.ErrStaleFence):
		busy := httpapi.NewProblem(http.StatusConflict, "Another request went ahead on the account. Try again with the same id: it withdraws once.", nil)
		busy.Header.Set("Retry-After", "1")
		return busy, nil
	}
	return httpapi.Response{}, err
}

type made struct {
	Account    string `json:"account"`
	Withdrawal string `json:"withdrawal"`
	Amount     int64  `json:"amount"`
	Balance    int64  `json:"balance"`
}
