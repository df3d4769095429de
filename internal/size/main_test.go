package main

import (
	"bytes"
	"debug/elf"
	encoding "encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		deps  []string
		links string
		want  float64
	}{
		{[]string{"fmt"}, "no store", 6.0},
		{[]string{"fmt", redis}, "redis", 8.9},
		{[]string{dynamo, "fmt"}, "dynamodb", 8.3},
		{[]string{dynamo, redis}, "both", 11.15},
		{[]string{cosmos}, "cosmosdb", 7.45},
		{[]string{datastore}, "datastore", 7.2},
		{[]string{zookeeper}, "zookeeper", 6.6},
	} {
		links, mb := budget(c.deps)
		assert.Equal(t, c.links, links)
		assert.Equal(t, c.want, mb)
	}
}

func TestReport(t *testing.T) {
	fits := binary{"internal/size/probe/bare", "no store", 6.0, 6_000_000}
	var out strings.Builder
	require.False(t, report(&out, []binary{fits}))
	require.NotContains(t, out.String(), "OVER")

	large := fits
	large.arm64++
	out.Reset()
	require.True(t, report(&out, []binary{fits, large}))
	require.Equal(t, 1, strings.Count(out.String(), "OVER"))
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80)
	}
}

// make size builds the binaries. Without that, a header has to do for one.
func TestSizeOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bootstrap")
	for machine, want := range map[elf.Machine]string{elf.EM_AARCH64: "", elf.EM_X86_64: "EM_X86_64"} {
		header := elf.Header64{
			Ident:   [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:    uint16(elf.ET_EXEC),
			Machine: uint16(machine),
			Version: uint32(elf.EV_CURRENT),
		}
		var text bytes.Buffer
		require.NoError(t, encoding.Write(&text, encoding.LittleEndian, header))
		text.WriteString("and more")
		require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
		size, err := sizeOf(file)
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, int64(text.Len()), size)
	}
	require.NoError(t, os.WriteFile(file, []byte("no binary"), 0o600))
	_, err := sizeOf(file)
	require.Error(t, err)
}
