package timeflag

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVar(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"5": 5 * time.Second, "0.25": 250 * time.Millisecond, "0": 0, "-1": -time.Second, "5s": 5 * time.Second,
		"1m30s": 90 * time.Second, "-1s": -time.Second, "1e3": 1000 * time.Second, "315360000": Longest,
	} {
		d := time.Hour
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		flag := Var(f, &d, "wait", "w", "")
		assert.Equal(t, "1h0m0s", flag.DefValue)
		require.NoError(t, f.Parse([]string{"-w", text}), text)
		assert.Equal(t, want, d, text)
	}
	for _, text := range []string{"", "soon", "1d", "NaN", "Inf", "-Inf", "1e30", "315360001", "5 s", "0x"} {
		d := time.Hour
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		Var(f, &d, "wait", "w", "")
		require.ErrorContains(t, f.Parse([]string{"-w", text}), "want seconds, or a duration such as 24h, 1m30s or 500ms", text)
		assert.Equal(t, time.Hour, d, text)
	}
}
