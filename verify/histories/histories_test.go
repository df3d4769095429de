package histories

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// fewCells are the cells of a run in go test; make verify runs all that can occur.
var fewCells = map[string]string{
	"memory":             "request cut or late",
	"dynamodb local":     "reply lost",
	"redis":              "client freeze",
	"valkey":             "data lost",
	"redis with replica": "the key's server changes",
	"redis cluster":      "the key's server changes",
}

// A cell that is left out has a reason, and its names are not mistyped.
func TestCells(t *testing.T) {
	require.Len(t, kinds, 12)
	require.Len(t, setups, 6)
	columns, rows := map[string]bool{}, map[string]bool{}
	for _, s := range setups {
		columns[s.name] = true
	}
	for _, f := range kinds {
		rows[f.name] = true
		for name, why := range f.never {
			require.True(t, columns[name], name)
			require.NotEmpty(t, why)
		}
		require.True(t, f.hidden == "" || columns[f.hidden], f.hidden)
	}
	for column, row := range fewCells {
		require.True(t, columns[column] && rows[row], "%s/%s", column, row)
	}
}

func TestHistories(t *testing.T) {
	logging.Disable() // the Redis client reports each broken connection
	start := time.Now()
	first, count := verifyrecord.Seed(t, 1, 5)
	sz := size{operations: 1000}
	if !verifyrecord.Full() {
		sz = size{operations: 300, length: 6 * time.Second}
	}
	var seeds []uint64
	for i := range count {
		seeds = append(seeds, first+uint64(i))
	}

	cells := make([][]verifyrecord.Cell, len(setups))
	var mu sync.Mutex
	var sum tally
	ran, occur := 0, 0
	// DynamoDB Local uses a whole processor, so its cells run one by one.
	slow, fast := make(chan func(), 1000), make(chan func(), 1000)
	for i, s := range setups {
		cells[i] = make([]verifyrecord.Cell, len(kinds))
		for j, f := range kinds {
			if why := f.never[s.name]; why != "" {
				cells[i][j] = verifyrecord.Cell{Fault: f.name, Store: s.name, Why: why}
				continue
			}
			if !verifyrecord.Full() && fewCells[s.name] != f.name {
				continue
			}
			occur++
			queue := fast
			if s.name == "dynamodb local" {
				queue = slow
			}
			queue <- func() {
				t.Run(s.name+"/"+f.name, func(t *testing.T) {
					cell, more := do(t, f, s, seeds, sz)
					t.Logf("%+v", cell)
					mu.Lock()
					defer mu.Unlock()
					cells[i][j] = cell
					ran++
					sum.add(more)
				})
			}
		}
	}
	close(slow)
	close(fast)
	var workers sync.WaitGroup
	for _, queue := range []chan func(){slow, fast, fast, fast} {
		workers.Go(func() {
			for work := range queue {
				work()
			}
		})
	}
	workers.Wait()
	controls := controls(t)

	result := verifyrecord.Result{
		Kind: verifyrecord.Histories, Name: "histories on real servers", Seed: first,
		Servers: testservers.Versions(t),
		Counts: map[string]int64{
			"histories":  0,
			"operations": 0,
			"histories repeated because they showed nothing": int64(sum.repeated),
			"keys that a late duplicate of an acquire took":  int64(sum.lateDuplicates),
			"stale writes refused by the fence":              int64(sum.counts.Stale),
			"entries lost by the store":                      int64(sum.counts.Losses),
			"refusals":                                       int64(sum.counts.Refused),
		},
		Controls: controls,
		Limits: []string{
			"In the histories the clients' clocks are right. Only dynamostore uses a client's clock, and the simulations set it wrong.",
			"On Redis and DynamoDB a late duplicate of an acquire takes the key until its TTL ends, if the store has forgotten the owner or told the owner busy. Answers that only such a duplicate explains are counted, but not as a violation.",
		},
		Took: time.Since(start),
	}
	for _, row := range cells {
		for _, c := range row {
			if c.Fault == "" {
				continue
			}
			result.Cells = append(result.Cells, c)
			result.Violations += c.Violations
			result.Undecided += c.Undecided
			result.Counts["histories"] += c.Histories
			result.Counts["operations"] += c.Operations
		}
	}
	t.Logf("%d cells, %d histories, %d operations, %d violations, %d undecided, %d repeated, %v",
		ran, result.Counts["histories"], result.Counts["operations"], result.Violations, result.Undecided, sum.repeated, result.Took.Round(time.Second))
	if ran < occur {
		return // -run has chosen some
	}
	verifyrecord.Write(t, result)
}
