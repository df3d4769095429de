package fencednumber

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestCounter(t *testing.T) {
	number := &Server{}
	s := httptest.NewServer(number)
	defer s.Close()
	for i, fence := range []lockstore.Fence{3, 3, 7} {
		value, err := Add(t.Context(), s.URL, fence)
		require.NoError(t, err)
		require.EqualValues(t, i+1, value)
	}
	_, err := Add(t.Context(), s.URL, 6)
	require.ErrorIs(t, err, ErrStale)
	require.EqualValues(t, 3, number.Value())
	bad, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL, strings.NewReader("many"))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(bad)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
}
