package withdrawals

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
		return respond(http.StatusOK, "application/json", made{r.Account, r.ID, r.Amount, r.Balance})
	case errors.Is(err, accounts.ErrNotFound):
		return refuse(http.StatusNotFound, "There is no such account.")
	case errors.Is(err, accounts.ErrInsufficient):
		return refuse(http.StatusUnprocessableEntity, "The account's balance is too low.")
	case errors.Is(err, accounts.ErrReused):
		return refuse(http.StatusUnprocessableEntity, "id: was used before, with another amount.")
	case errors.Is(err, accounts.ErrStaleFence):
		answer, err := refuse(http.StatusConflict, "Another request went ahead on the account, and nothing was withdrawn. Try again.")
		answer.Headers["Retry-After"] = "1"
		return answer, err
	}
	return httpapi.Response{}, err
}

type made struct {
	Account    string `json:"account"`
	Withdrawal string `json:"withdrawal"`
	Amount     int64  `json:"amount"`
	Balance    int64  `json:"balance"`
}

func refuse(status int, detail string) (httpapi.Response, error) {
	return respond(status, "application/problem+json", struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"about:blank", http.StatusText(status), status, detail})
}

func respond(status int, contentType string, body any) (httpapi.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return httpapi.Response{}, err
	}
	return httpapi.Response{
		StatusCode: status,
		Headers:    map[string]string{"Content-Type": contentType},
		Body:       string(b),
	}, nil
}
