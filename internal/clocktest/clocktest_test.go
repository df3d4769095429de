package clocktest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAgo(t *testing.T) {
	for _, c := range []struct{ mono, wall time.Duration }{{0, time.Hour}, {time.Minute, -time.Hour}, {-time.Minute, -time.Second}} {
		at := Ago(c.mono, c.wall)
		require.InDelta(t, c.mono, time.Since(at), float64(time.Second))
		require.InDelta(t, c.wall, time.Now().Round(0).Sub(at.Round(0)), float64(time.Second))
	}
	synctest.Test(t, func(t *testing.T) {
		require.Panics(t, func() { Ago(0, time.Hour) })
	})
}
