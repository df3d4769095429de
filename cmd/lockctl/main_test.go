package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		text   string
	}{
		{nil, 0, "local "},
		{[]string{"--help"}, 0, "serve "},
		{[]string{"local", "--help"}, 0, "--freeze"},
		{[]string{"lcoal"}, exit.Usage, `unknown command "lcoal"; see lockctl --help`},
		{[]string{"local"}, exit.Usage, `lockctl local has 0 arguments; want "lockctl local [flags] BINARY-or-PACKAGE-DIR"`},
		{[]string{"local", "--frozen", "x"}, exit.Usage, "unknown flag: --frozen; see lockctl local --help"},
		{[]string{"local", "-n", "many", "x"}, exit.Usage, `invalid argument "many"`},
		{[]string{"serve", "1", "2"}, exit.Usage, "lockctl serve has 2 arguments"},
		{[]string{"serve", "0.0.0.0:1"}, exit.Usage, "ADDRESS is"},
		{[]string{"serve", "--store", "etcd://x", "0"}, exit.Config, "no store for the scheme"},
	} {
		var out bytes.Buffer
		cmd := command()
		cmd.SetArgs(append([]string{}, c.args...))
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		assert.Equal(t, c.status, exit.Status(err), "%q", c.args)
		if err != nil {
			require.ErrorContains(t, err, c.text, "%q", c.args)
		} else {
			require.Contains(t, out.String(), c.text, "%q", c.args)
		}
	}
}
