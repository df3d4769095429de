package withdrawalhttp

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

func request(account, body string) httpapi.Request {
	return httpapi.Request{PathParameters: map[string]string{"id": account}, Body: []byte(body)}
}

func TestParse(t *testing.T) {
	want := accounts.Withdrawal{Account: "7", ID: "w-1", Amount: 500}
	got, err := Parse(request("7", ` { "amount":500 , "id":"w-1" } `+"\n"))
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// What is no JSON object of these fields is refused by package strictjson, and its values by package accounts.
func TestBadInputIsRefusedByName(t *testing.T) {
	_, err := Parse(httpapi.Request{Body: []byte(`{"id": "w", "amount": 1}`)})
	assert.ErrorContains(t, err, "account: want 1 to 64", "no path parameters")
	_, err = Parse(request("7", `{"id": "w", "amount": 1, "x": 1}`))
	assert.ErrorContains(t, err, `"x": is unknown; want id and amount`)
}

func TestAnswer(t *testing.T) {
	w := accounts.Withdrawal{Account: "7", ID: "w-1", Amount: 500}
	made, err := Answer(accounts.Receipt{Withdrawal: w, Balance: 99500}, nil)
	require.NoError(t, err)
	assert.Equal(t, 200, made.StatusCode)
	assert.JSONEq(t, `{"account":"7","withdrawal":"w-1","amount":500,"balance":99500}`, string(made.Body))

	for _, c := range []struct {
		err    error
		status int
		detail string
	}{
		{accounts.ErrNotFound, 404, "There is no such account."},
		{accounts.ErrInsufficient, 422, "The account's balance is too low."},
		{accounts.ErrReused, 422, "id: was used before, with another amount."},
		{accounts.ErrStaleFence, 409, "Another request went ahead on the account. Try again with the same id: it withdraws once."},
	} {
		r, err := Answer(accounts.Receipt{}, fmt.Errorf("account 7: %w", c.err))
		require.NoError(t, err)
		assert.Equal(t, c.status, r.StatusCode)
		assert.Equal(t, "application/problem+json", r.Header.Get("Content-Type"))
		assert.Contains(t, string(r.Body), fmt.Sprintf("%q", c.detail))
		assert.Equal(t, c.status == 409, r.Header.Get("Retry-After") != "", "only a conflict is worth a retry")
	}

	unknown := errors.New("connection reset")
	_, err = Answer(accounts.Receipt{}, unknown)
	require.Equal(t, unknown, err, "an unknown outcome is never dressed up as an answer")
}
