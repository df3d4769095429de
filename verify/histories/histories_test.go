package histories

import (
	"cmp"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// TestHistories makes each cell of the table, and names why a fault cannot occur on a set-up. One cell:
// go test ./histories -run 'TestHistories/redis_cluster/data_lost'.
func TestHistories(t *testing.T) {
	logging.Disable() // the Redis client reports each broken connection
	start := time.Now()
	first, count := verifyrecord.Seed(t, 1, 4)
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
			"PostgreSQL has no replica here. With an asynchronous one a failover loses the last locks, as on Redis.",
			"The histories do not say whether each answer is the one of the rule book: the comparison does. Refusals are checked only where nobody has a place in a queue.",
			"In the histories the clients' clocks are right. Only dynamostore writes leases by a client's clock, and the simulations set it wrong.",
			"On Redis and DynamoDB a late duplicate of an acquire takes the key until its TTL ends, if the store has forgotten the owner or refused it as busy. A refusal that a delayed duplicate may explain counts as no violation.",
		},
	}
	var mu sync.Mutex // guards result and ran
	ran := 0
	some, one := make(chan struct{}, 4), make(chan struct{}, 1)
	var cells []func()
	for _, s := range setups {
		for _, f := range kinds {
			i, lane, seeds := len(result.Cells), some, seeds
			result.Cells = append(result.Cells, verifyrecord.Cell{Fault: f.name, Store: s.name, Why: f.never[s.name]})
			if f.never[s.name] != "" {
				ran++
				continue
			}
			if s.name == dynamo { // DynamoDB Local uses a whole processor
				lane = one
			}
			if most := cmp.Or(s.histories, len(seeds)); f.several || most < len(seeds) {
				seeds = seeds[:min(2, most, len(seeds))]
			}
			cells = append(cells, func() {
				lane <- struct{}{}
				defer func() { <-lane }()
				t.Run(s.name+"/"+f.name, func(t *testing.T) {
					cell := do(t, f, s, seeds)
					t.Logf("%+v", cell)
					mu.Lock()
					defer mu.Unlock()
					ran++
					result.Cells[i] = cell
					result.Violations += cell.Violations
					for name, n := range cell.Counts {
						result.Counts[name] += n
					}
				})
			})
		}
	}
	var running sync.WaitGroup
	for _, cell := range cells {
		running.Go(cell)
	}
	running.Wait()
	result.Took = time.Since(start)
	t.Logf("%v: %d violations, %v", result.Counts, result.Violations, result.Took.Round(time.Second))
	if ran == len(result.Cells) { // -run has chosen all
		verifyrecord.Write(t, result)
	}
}
