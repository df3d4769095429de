package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func halves() (without, with half) {
	return madeUp("without a lock", 2, [2]int{20, 40}, [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 80}),
		madeUp("with lambdalock", 0, [2]int{20, 40}, [2]int{40, 60}, [2]int{70, 90}, [2]int{90, 110})
}

func TestTable(t *testing.T) {
	without, with := halves()
	const want = `
                                without a lock     with lambdalock
  succeeded                             4 of 4              4 of 4
  answered busy, retried                     4                   4
  balance                                90.00               80.00
  balance it should have                 80.00               80.00
  lost updates                               2                   0
  overlapping sections                       3                   0
  wait p50                                   -               10 ms
  wait p99                                   -               10 ms
  took                                   1.1 s               1.1 s
`
	assert.Equal(t, want, table(without, with, false))

	colored := table(without, with, true)
	assert.Contains(t, colored, "\x1b[31m                   3\x1b[0m\x1b[32m                   0\x1b[0m")
	assert.Equal(t, want, regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(colored, ""))
	for line := range strings.Lines(want) {
		assert.LessOrEqual(t, len(line), 81)
	}
}

func TestMoney(t *testing.T) {
	assert.Equal(t, "1870.05", money(187005))
	assert.Equal(t, "0.00", money(0))
	assert.Equal(t, "-0.99", money(-99))
}

func TestScreen(t *testing.T) {
	t.Run("terminal", func(t *testing.T) {
		var b bytes.Buffer
		s := &screen{out: &b, terminal: true}
		s.progress("working %d", 12)
		s.progress("short")
		s.done("finished")
		assert.Equal(t, "\rworking 12\rshort     \r     \rfinished\n", b.String())
		b.Reset()
		s.progress("%s", strings.Repeat("x", 200))
		assert.Len(t, b.String(), 79, "a line that is longer than the terminal could not be written again")
	})
	t.Run("pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		s := newScreen(w, false)
		s.progress("working")
		s.done("finished")
		require.NoError(t, w.Close())
		var b bytes.Buffer
		_, err = b.ReadFrom(r)
		require.NoError(t, err)
		assert.Equal(t, "finished\n", b.String())
		assert.False(t, s.color)
	})
	t.Run("NO_COLOR", func(t *testing.T) {
		device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
		require.NoError(t, err)
		defer device.Close()
		t.Setenv("TERM", "xterm")
		assert.True(t, newScreen(device, false).color)
		assert.False(t, newScreen(device, true).color)
		t.Setenv("TERM", "dumb")
		assert.False(t, newScreen(device, false).color)
	})
}
