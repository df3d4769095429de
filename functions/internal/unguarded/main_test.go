package main

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

func TestHandle(t *testing.T) {
	ledger, err := accounts.Open(&url.URL{Scheme: "redis", Host: miniredis.RunT(t).Addr()}, nil)
	require.NoError(t, err)
	var reports []guard.Report
	f := function{ledger, func(_ context.Context, r guard.Report) { reports = append(reports, r) }}
	handle := func(event string) (any, error) { return f.handle(t.Context(), json.RawMessage(event)) }

	_, err = handle(`{"open": {"account": "7", "balance": 100000}}`)
	require.NoError(t, err)
	_, err = handle(`{"open": {"account": "7", "balance": 1}}`)
	require.ErrorIs(t, err, accounts.ErrExists)

	event, err := os.ReadFile("../../../events/withdraw.json")
	require.NoError(t, err)
	answer, err := handle(string(event))
	require.NoError(t, err)
	assert.Equal(t, 200, answer.(httpapi.Response).StatusCode)
	require.Len(t, reports, 1, "one report for each critical section")
	assert.Equal(t, "account/7", reports[0].Key)
	assert.Equal(t, guard.OutcomeOK, reports[0].Outcome)
	assert.False(t, reports[0].AcquiredAt.IsZero())
	assert.Positive(t, reports[0].Held)
	assert.Zero(t, reports[0].Fence)

	answer, err = handle(`{"read": {"account": "7"}}`)
	require.NoError(t, err)
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	assert.JSONEq(t, `{"balance": 99500}`, string(text))
	_, err = handle(`{"read": {"account": "8"}}`)
	require.ErrorIs(t, err, accounts.ErrNotFound)
	_, err = handle(`[]`)
	require.Error(t, err)
}
