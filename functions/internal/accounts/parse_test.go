package accounts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What else a text may be is in the tests of package strictjson.
func TestParse(t *testing.T) {
	fields := []string{"account", "id", "amount"}
	w, err := Parse(`{"amount": 500, "account": "7", "id": "s-1"}`, fields...)
	require.NoError(t, err)
	require.Equal(t, Withdrawal{"7", "s-1", 500}, w)
	require.NoError(t, w.Validate())
	_, err = Parse(`{"account": "7", "id": "s", "amount": 1.5}`, fields...)
	require.EqualError(t, err, `amount: is "1.5"; want a whole number of cents, 1 to 100000000000`)
	_, err = Parse(`{"account": 7}`, fields...)
	require.EqualError(t, err, "account: want a string")
	_, err = Parse(`{"account": "7", "id": "s", "amount": 1}`, "id", "amount")
	require.ErrorContains(t, err, `"account": is unknown; want id and amount`)
}

func TestValidate(t *testing.T) {
	good := Withdrawal{strings.Repeat("a", 64), strings.Repeat("x", 64), maxAmount}
	require.NoError(t, good.Validate())
	require.NoError(t, Withdrawal{"A-z_9", "größe {}/..", 1}.Validate())
	for _, c := range []struct {
		w    Withdrawal
		want string
	}{
		{Withdrawal{}, "account: want 1 to 64"},
		{Withdrawal{"a/b", "w", 1}, "account: "},
		{Withdrawal{"a\n", "w", 1}, "account: "},
		{Withdrawal{strings.Repeat("a", 65), "w", 1}, "account: "},
		{Withdrawal{"7", "", 1}, "id: has 0 bytes; want 1 to 64"},
		{Withdrawal{"7", strings.Repeat("x", 65), 1}, "id: has 65 bytes"},
		{Withdrawal{"7", "a\x00", 1}, "id: has a character"},
		{Withdrawal{"7", "a\xff", 1}, "id: has a character"},
		{Withdrawal{"7", "w", 0}, `amount: is "0"; want a whole number of cents, 1 to 100000000000`},
		{Withdrawal{"7", "w", -1}, `amount: is "-1"`},
		{Withdrawal{"7", "w", maxAmount + 1}, `amount: is "100000000001"`},
	} {
		t.Run("F52 "+c.want, func(t *testing.T) { assert.ErrorContains(t, c.w.Validate(), c.want) })
	}
}
