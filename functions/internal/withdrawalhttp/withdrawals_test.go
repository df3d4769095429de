package withdrawalhttp

import (
	"errors"
	"fmt"
	"strings"
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
	const body = `{"id": "w-1", "amount": 500}`
	for name, r := range map[string]httpapi.Request{
		"plain":       request("7", body),
		"other order": request("7", ` { "amount":500 , "id":"w-1" } `+"\n"),
	} {
		got, err := Parse(r)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for _, body := range []string{
		`{"id":"` + strings.Repeat("x", 64) + `","amount":1}`,
		`{"id":"größe {}/..","amount":100000000000}`,
	} {
		_, err := Parse(request("A-z_9", body))
		assert.NoError(t, err, body)
	}
}

func TestBadInputIsRefusedByName(t *testing.T) {
	for _, account := range []string{"", "a/b", "a b", "ä", "..", "a\x00", "a\n", "{a}", strings.Repeat("a", 65)} {
		_, err := Parse(request(account, `{"id": "w", "amount": 1}`))
		assert.ErrorContains(t, err, "account: want 1 to 64", "%q", account)
	}
	_, err := Parse(httpapi.Request{Body: []byte(`{"id": "w", "amount": 1}`)})
	assert.ErrorContains(t, err, "account: ", "no path parameters")

	// What is no JSON object of these fields is refused by package strictjson, and its values by package accounts.
	for body, want := range map[string]string{
		``:                                 "body: want a JSON object",
		`{"id": "w"}`:                      "amount: is missing",
		`{"id": "w", "amount": 1, "x": 1}`: `"x": is unknown; want id and amount`,
		`{"id": "", "amount": 1}`:          "id: has 0 bytes; want 1 to 64",
		`{"id": "\ud800", "amount": 1}`:    "id: has a character that cannot be printed",
		`{"id": "w", "amount": 1` + strings.Repeat(" ", accounts.MaxTextBytes) + `}`: "body: want at most 1024 bytes",
	} {
		t.Run("F52 "+want, func(t *testing.T) {
			_, err := Parse(request("7", body))
			assert.ErrorContains(t, err, want, "%.80s", body)
		})
	}
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
