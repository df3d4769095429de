package leasesim

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// RuleBook compares each of the stores with the rule book by random sequences of requests, see
// storetest.Sequences and verifyrecord.Seed: full are those on each store. Then it writes the record.
func RuleBook(t *testing.T, record string, few, full int, stores map[string]func(t *testing.T) storetest.Harness) {
	t.Helper()
	first, seeds := verifyrecord.Seed(t, few, full)
	compare(t, record, first, func(t *testing.T, done *progress) {
		workers := min(runtime.GOMAXPROCS(0), seeds)
		for name, open := range stores {
			for w := range workers {
				from, to := seeds*w/workers, seeds*(w+1)/workers
				t.Run(fmt.Sprintf("%s from %d", name, first+uint64(from)), func(t *testing.T) {
					t.Parallel()
					done.requests.Add(storetest.Sequences(t, open, first+uint64(from), to-from))
					done.sequences.Add(int64(to - from))
				})
			}
		}
	})
}

// Pairs compares the store with the rule book by pairs of requests in make verify, see storetest.Within. Then it writes the
// record. Elsewhere the suite compares a few.
func Pairs(t *testing.T, record string, open func(t *testing.T) storetest.Harness) {
	t.Helper()
	if !verifyrecord.Full() {
		t.Skip("the suite compares a few pairs; make verify has many")
	}
	began := time.Now()
	first, _ := verifyrecord.Seed(t, 0, 0)
	tried := storetest.Within(t, open)
	t.Logf("%d pairs of requests, %v", tried, time.Since(began))
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Comparison, Name: record, Seed: first, Counts: map[string]int64{verifyrecord.Pairs: int64(tried)}, Took: time.Since(began),
	})
}

// RuleBookOnServers compares stores on real servers with the rule book, in make verify: by so many
// sequences on each, see storetest.SequencesAtOnce. Elsewhere the suite compares a few.
func RuleBookOnServers(t *testing.T, record string, full int, stores map[string]func(t *testing.T) storetest.Harness) {
	t.Helper()
	if !verifyrecord.Full() {
		t.Skip("the suite compares a few sequences on the wall clock; make verify has many")
	}
	first, seeds := verifyrecord.Seed(t, 0, full)
	compare(t, record, first, func(t *testing.T, done *progress) {
		for name, open := range stores {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				done.requests.Add(storetest.SequencesAtOnce(t, open(t), first, seeds))
				done.sequences.Add(int64(seeds))
			})
		}
	})
}

// progress is what has run.
type progress struct{ sequences, requests atomic.Int64 }

func compare(t *testing.T, record string, first uint64, run func(*testing.T, *progress)) {
	began := time.Now()
	var done progress
	t.Run("sequences", func(t *testing.T) { run(t, &done) })
	t.Logf("%d sequences, %d requests, %v", done.sequences.Load(), done.requests.Load(), time.Since(began))
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Comparison, Name: record, Seed: first,
		Counts: map[string]int64{verifyrecord.Sequences: done.sequences.Load(), verifyrecord.Requests: done.requests.Load()}, Took: time.Since(began),
	})
}
