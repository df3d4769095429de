package main

import (
	"bytes"
	"net/url"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

func newTool(t *testing.T, rawURL string) (run func(args ...string) (string, error), set func(name, value string)) {
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	env := map[string]string{}
	return func(args ...string) (string, error) {
		var out bytes.Buffer
		err := tool{url: u, getenv: func(name string) string { return env[name] }, out: &out}.run(t.Context(), args)
		return out.String(), err
	}, func(name, value string) { env[name] = value }
}

func TestTool(t *testing.T) {
	for name, open := range map[string]func(*testing.T) string{
		"redis":    func(t *testing.T) string { return "redis://" + miniredis.RunT(t).Addr() },
		"dynamodb": func(t *testing.T) string { return "dynamodb://made-here?endpoint=" + testservers.DynamoDB(t) },
	} {
		t.Run(name, func(t *testing.T) {
			run, set := newTool(t, open(t))
			out, err := run("open", "demo", "100000")
			require.NoError(t, err)
			assert.Empty(t, out)
			_, err = run("open", "demo", "1")
			require.ErrorIs(t, err, accounts.ErrExists)

			out, err = run("balance", "demo")
			require.NoError(t, err)
			assert.Equal(t, "100000\n", out)
			_, err = run("balance", "another")
			require.ErrorIs(t, err, accounts.ErrNotFound)

			set("LOCKCTL_SUCCEEDED", "0")
			out, err = run("report", "demo", "100000", "500")
			require.NoError(t, err)
			assert.Equal(t, "balance: 1000.00\nbalance it should have: 1000.00\nlost updates: 0\n", out)
			set("LOCKCTL_SUCCEEDED", "3")
			out, err = run("report", "demo", "100000", "500")
			require.EqualError(t, err, "3 of 3 updates were lost")
			assert.Equal(t, "balance: 1000.00\nbalance it should have: 985.00\nlost updates: 3\n", out)
			out, err = run("report", "demo", "100500", "500")
			require.Error(t, err)
			assert.Contains(t, out, "lost updates: 2\n")
			out, err = run("report", "demo", "102000", "500")
			require.EqualError(t, err, "-1 of 3 updates were lost", "a withdrawal that was made twice is as wrong as a lost one")
			assert.Contains(t, out, "lost updates: -1\n")
		})
	}
}

func TestWrongUsage(t *testing.T) {
	run, _ := newTool(t, "redis://127.0.0.1:1")
	for _, args := range [][]string{
		nil, {"open"}, {"open", "demo"}, {"open", "demo", "1", "2"}, {"open", "demo", "x"}, {"balance", "demo", "1"},
		{"report", "demo", "1"}, {"report", "demo", "1", "0"}, {"close", "demo"},
	} {
		_, err := run(args...)
		assert.ErrorIs(t, err, errUsage, "%q", args)
	}
	_, err := run("report", "demo", "100", "5")
	require.ErrorContains(t, err, "LOCKCTL_SUCCEEDED is no number")
}

// TestTableThatIsNotThere: 0.0.0.0 reaches this machine and is none of the addresses
// that stand for it, so no table is made.
func TestTableThatIsNotThere(t *testing.T) {
	u, err := url.Parse(testservers.DynamoDB(t))
	require.NoError(t, err)
	run, set := newTool(t, "dynamodb://absent?region=us-east-1&endpoint=http://0.0.0.0:"+u.Port())
	set("AWS_ACCESS_KEY_ID", "local")
	set("AWS_SECRET_ACCESS_KEY", "local")
	_, err = run("open", "demo", "1")
	require.EqualError(t, err, "the table absent with the partition key account (S) must exist: ResourceNotFoundException: Cannot do operations on a non-existent table")
}

func TestTablesAreMadeOnlyHere(t *testing.T) {
	for endpoint, local := range map[string]bool{
		"http://127.0.0.1:8000": true, "http://localhost:8000": true, "http://[::1]:8000": true,
		"": false, "https://dynamodb.eu-central-1.amazonaws.com": false, "http://localhost.example.com": false, "http://192.168.1.2:8000": false, ":": false,
	} {
		u := &url.URL{Scheme: "dynamodb", Host: "accounts", RawQuery: url.Values{"endpoint": {endpoint}}.Encode()}
		assert.Equal(t, local, isLocal(u), endpoint)
		u.Scheme = "redis"
		assert.False(t, isLocal(u), endpoint)
	}
}

func TestMoney(t *testing.T) {
	assert.Equal(t, "1870.05", money(187005))
	assert.Equal(t, "0.00", money(0))
	assert.Equal(t, "-0.99", money(-99))
}
