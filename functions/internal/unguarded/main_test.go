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
	require.NoError(t, ledger.Create(t.Context(), "7", 100_000))
	text, err := os.ReadFile("../../../events/withdraw.json")
	require.NoError(t, err)
	var event httpapi.Request
	require.NoError(t, json.Unmarshal(text, &event))
	answer, err := f.handle(t.Context(), event)
	require.NoError(t, err)
	assert.Equal(t, 200, answer.StatusCode)
	balance, err := ledger.Balance(t.Context(), "7")
	require.NoError(t, err)
	assert.EqualValues(t, 99_500, balance)

	require.Len(t, reports, 1, "one report for each critical section")
	assert.Equal(t, "account/7", reports[0].Key)
	assert.Equal(t, guard.OutcomeOK, reports[0].Outcome)
	assert.False(t, reports[0].AcquiredAt.IsZero())
	assert.Positive(t, reports[0].HoldTime)
	assert.Zero(t, reports[0].Fence)
	_, err = f.handle(t.Context(), httpapi.Request{})
	require.Error(t, err)
}
