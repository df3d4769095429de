package withdrawalhttp

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// Answer turns what Ledger.Withdraw returned into what the client gets.
func Answer(r accounts.Receipt, err error) (httpapi.Response, error) {
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
		answer := httpapi.NewProblem(http.StatusConflict, "Another request went ahead on the account. Try again with the same id: it withdraws once.", nil)
		answer.Header.Set("Retry-After", "1")
		return answer, nil
	}
	return httpapi.Response{}, err
}

type made struct {
	Account    string `json:"account"`
	Withdrawal string `json:"withdrawal"`
	Amount     int64  `json:"amount"`
	Balance    int64  `json:"balance"`
}
