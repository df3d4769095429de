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
	memory:       "request cut or late",
	dynamo:       "reply lost",
	redisOne:     "client freeze",
	valkey:       plannedFailover,
	redisPair:    keyMoves,
	redisCluster: keyMoves,
	zooKeeper:    keyMoves,
	postgres:     "reply lost",
	postgresPair: keyMoves,
}

// A cell that is left out has a reason, and its names are not mistyped.
func TestCells(t *testing.T) {
	require.Len(t, kinds, 15)
	require.Len(t, setups, 9)
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
	}
	for _, s := range setups {
		for _, row := range s.rows {
			require.True(t, rows[row] && columns[s.like], row)
		}
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

	result := verifyrecord.Result{
		Kind: verifyrecord.Histories, Name: "histories on real servers", Seed: first,
		Servers: testservers.Versions(t),
		Counts:  map[string]int64{},
		Limits: []string{
			"Datastore and Cosmos DB are in no history. Their own tests have faults.",
			"PostgreSQL's replica is synchronous. With an asynchronous one a failover loses the last locks, as on Redis.",
			"The histories do not say whether each answer is the one of the rule book: the comparison does. Refusals are looked at where nobody has a place in a queue.",
			"In the histories the clients' clocks are right. Only dynamostore uses a client's clock, and the simulations set it wrong.",
			"On Redis and DynamoDB a late duplicate of an acquire takes the key until its TTL ends, if the store has forgotten the owner or told the owner busy. Where a fault delays requests, a refusal that such a duplicate may explain is no violation.",
		},
	}
	var mu sync.Mutex // guards result and ran
	ran := 0
	// DynamoDB Local uses a whole processor, so its cells run one by one.
	slow, fast := make(chan func(), 1000), make(chan func(), 1000)
	for _, s := range setups {
		for _, f := range kinds {
			if !verifyrecord.Full() && fewCells[s.name] != f.name {
				continue
			}
			i := len(result.Cells)
			result.Cells = append(result.Cells, verifyrecord.Cell{Fault: f.name, Store: s.name, Why: f.leftOut(s)})
			if f.leftOut(s) != "" {
				ran++
				continue
			}
			queue := fast
			if s.name == dynamo {
				queue = slow
			}
			queue <- func() {
				t.Run(s.name+"/"+f.name, func(t *testing.T) {
					seeds := seeds
					if f.several {
						seeds = seeds[:min(2, len(seeds))]
					}
					if s.histories > 0 {
						seeds = seeds[:min(s.histories, len(seeds))]
					}
					cell, more := do(t, f, s, seeds, sz)
					t.Logf("%+v", cell)
					mu.Lock()
					defer mu.Unlock()
					ran++
					result.Cells[i] = cell
					result.Violations += cell.Violations
					for name, n := range more {
						result.Counts[name] += n
					}
				})
			}
		}
	}
	close(slow)
	close(fast)
	var workers sync.WaitGroup
	for worker := range 4 {
		workers.Go(func() {
			if worker == 0 {
				for work := range slow {
					work()
				}
			}
			for work := range fast {
				work()
			}
		})
	}
	workers.Wait()
	t.Run("control/failover", func(t *testing.T) { result.Controls = append(result.Controls, lostGrant(t)) })
	result.Took = time.Since(start)
	t.Logf("%v: %d violations, %v", result.Counts, result.Violations, result.Took.Round(time.Second))
	if ran == len(result.Cells) { // -run has chosen all
		verifyrecord.Write(t, result)
	}
}
