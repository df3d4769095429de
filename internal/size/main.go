// Command size builds the functions and the probes below it as they are
// deployed, prints how large the binaries are and exits with status 1 when one
// is over its budget. Run it at the top of the repository:
//
//	go run ./internal/size
//
// A megabyte is 1,000,000 bytes here. The binaries are built for arm64, which is what
// is deployed.
package main

import (
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/lambdatest"
)

const (
	module    = "github.com/lambdalock/lambdalock"
	redis     = module + "/lockstore/redisstore"
	dynamo    = module + "/lockstore/dynamostore"
	cosmos    = module + "/lockstore/cosmosstore"
	datastore = module + "/lockstore/datastore"
	zookeeper = module + "/lockstore/zkstore"
	sfnwake   = module + "/guard/sfnwake"
	probes    = "internal/size/probe"
	mb        = 1_000_000
	noLock    = 6.0
	redisTop  = 8.95
	dynamoTop = 8.45
	bothTop   = 11.3  // with ZooKeeper, too; the linker rounds each segment up to 64 kB on arm64
	wakeTop   = 11.65 // with the client of Step Functions, too
	cosmosTop = 7.7
	dataTop   = 7.3
	zkTop     = 6.65
)

func main() {
	over, err := run(context.Background(), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(2)
	}
	if over {
		os.Exit(1)
	}
}

// binary is one row of the table.
type binary struct {
	pkg    string // path below the top of the repository
	links  string // what decides its budget
	budget float64
	arm64  int64 // bytes
}

func (b binary) over() bool { return float64(b.arm64) > b.budget*mb }

func run(ctx context.Context, out io.Writer) (over bool, err error) {
	mains, err := filepath.Glob("functions/*/main.go")
	if err != nil {
		return false, err
	}
	more, err := filepath.Glob(probes + "/*/main.go")
	if err != nil {
		return false, err
	}
	if len(more) == 0 {
		return false, fmt.Errorf("no %s here; run it at the top of the repository", probes)
	}
	dir, err := os.MkdirTemp("", "size")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	var binaries []binary
	modules, err := filepath.Glob("examples/otherstores/*/main.go") // with the stores that are modules of their own
	if err != nil {
		return false, err
	}
	for _, file := range slices.Concat(more, modules, mains) {
		b, err := measure(ctx, filepath.Dir(file), dir)
		if err != nil {
			return false, err
		}
		binaries = append(binaries, b)
	}
	return report(out, binaries), nil
}

// measure builds one binary.
func measure(ctx context.Context, pkg, dir string) (binary, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", ".")
	cmd.Dir = pkg // which may be in another module
	list, err := cmd.Output()
	if err != nil {
		return binary{}, fmt.Errorf("go list -deps ./%s: %w", pkg, err)
	}
	b := binary{pkg: pkg}
	b.links, b.budget = budget(strings.Fields(string(list)))
	for name, value := range map[string]string{"GOOS": "linux", "GOARCH": "arm64"} {
		if err := os.Setenv(name, value); err != nil {
			return binary{}, err
		}
	}
	file := filepath.Join(dir, "bootstrap")
	if err := lambdatest.Build(ctx, "./"+pkg, file); err != nil {
		return binary{}, err
	}
	b.arm64, err = sizeOf(file)
	return b, err
}

// sizeOf is the size in bytes of a binary, which has to be for arm64.
func sizeOf(file string) (int64, error) {
	f, err := elf.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if f.Machine != elf.EM_AARCH64 {
		return 0, fmt.Errorf("%s is for %v; want %v", file, f.Machine, elf.EM_AARCH64)
	}
	info, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// budget goes by the stores that a binary links.
func budget(deps []string) (links string, mb float64) {
	switch r, d := slices.Contains(deps, redis), slices.Contains(deps, dynamo); {
	case r && d && slices.Contains(deps, sfnwake):
		return "both, wake", wakeTop
	case r && d:
		return "both", bothTop
	case r:
		return "redis", redisTop
	case d:
		return "dynamodb", dynamoTop
	case slices.Contains(deps, cosmos):
		return "cosmosdb", cosmosTop
	case slices.Contains(deps, datastore):
		return "datastore", dataTop
	case slices.Contains(deps, zookeeper):
		return "zookeeper", zkTop
	}
	return "no store", noLock
}

// report prints the table and says whether a binary is over its budget.
func report(out io.Writer, binaries []binary) (over bool) {
	const row = "%-36s %-10s %7s %7s  %s\n"
	fmt.Fprintf(out, row, "binary, linux, MB of 10^6 bytes", "links", "arm64", "budget", "")
	for _, b := range binaries {
		verdict := "ok"
		if b.over() {
			verdict, over = "OVER", true
		}
		fmt.Fprintf(out, row, b.pkg, b.links, megabytes(b.arm64), fmt.Sprintf("%.2f", b.budget), verdict)
	}
	if over {
		fmt.Fprintln(out, "\nOver budget: look for the import that came in with\n"+
			"  go list -deps ./PACKAGE   and   go tool nm -size -sort size BINARY | head -50")
	}
	return over
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.2f", float64(bytes)/mb) }
