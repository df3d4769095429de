package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// mixedCases are sequences for the comparison with the rule book that random ones seldom make.
var mixedCases = []testCase{
	{
		"mixed/readers and writers wait in each order, and one of them leaves",
		"Who leaves changes nothing for the others, but that those behind it have one fewer before them.",
		func(c *check) { c.play(c.leaves(), 20) },
	},
	{
		"mixed/readers and writers wait in each order, and a holder goes",
		"A holder releases, abandons, completes, is revoked or lets its lease end. The rule book says what this changes for each of the others: its lease, its seat and its place.",
		func(c *check) { c.play(c.goes(), 10) },
	},
	{
		"mixed/many hold a key, and one of them goes",
		"A key may have as many holders as lockstore.MaxHolders says. The end of one lease changes no other, and the newcomer gets its seat.",
		func(c *check) { c.play(crowds(), 3) },
	},
}

// play compares some of the sequences with the rule book: a third, or few under the race detector and on the wall clock.
func (c *check) play(all [][]step, few int) {
	c.Helper()
	n := len(all) / 3
	if !c.virtual || verifyrecord.WithRaceDetector {
		n = few
	}
	random := rand.New(rand.NewPCG(1, 1))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	differences := make([]string, n)
	one := func(i int) {
		ran, d := c.compare(all[i], nil)
		if d != "" {
			text := strings.Builder{}
			for _, s := range ran {
				text.WriteString("\n  " + s.String())
			}
			differences[i] = fmt.Sprintf("after%s\n%s", text.String(), d)
		}
	}
	if !c.virtual {
		atOnce(len(differences), one)
	}
	for i := range differences {
		if c.virtual {
			one(i)
		}
		if differences[i] != "" {
			c.fatalf("%s", differences[i])
		}
	}
}

const (
	mixedTTL   = time.Minute
	mixedEnds  = 4 * time.Second
	mixedLapse = 5 * time.Second // after it a lease of mixedEnds is over
)

// goings are what may happen to the lease of an owner with this fence.
func goings(owner, fence int) [][]step {
	of := func(kind driver.Kind) step {
		return step{kind: kind, owner: owner, fence: fence, ttl: mixedTTL, result: true}
	}
	operator := step{kind: driver.Revoke, owner: owner, fence: fence}
	atOnce, lapses, late := operator, of(driver.Inspect), of(driver.Release)
	atOnce.join, lapses.lapse, late.lapse = true, mixedLapse, mixedLapse
	return [][]step{
		{of(driver.Release)},
		{of(driver.Abandon)},
		{operator, of(driver.Release)},
		{operator, lapses},
		{atOnce, of(driver.Renew)},
		{lapses},
		{late},
		{of(driver.MarkStarted), lapses, of(driver.Resolve)},
		{of(driver.Complete)},
	}
}

// asks are Acquires of the first n owners, each for as many holders as before.
func asks(most []step) (all []step) {
	for owner, s := range most {
		s.kind, s.owner, s.ttl, s.join = driver.Acquire, owner, mixedTTL, true
		all = append(all, s)
	}
	return all
}

// inEachOrder yields owners in each order of writers and readers: one or three that hold the key, and three that wait.
func (c *check) inEachOrder(yield func(order, holders int, owners []step)) {
	kinds := []step{{most: 1}, {most: 3}, {most: lockstore.MaxHolders}}
	if c.Parks {
		kinds[2].parked = 2600 * time.Millisecond
	}
	for order := range 27 {
		holders := []step{{most: 1}}
		if order%2 == 1 {
			holders = []step{{most: 3}, {most: 3}, {most: 3}}
		}
		yield(order, len(holders), append(holders, kinds[order%3], kinds[order/3%3], kinds[order/9]))
	}
}

func (c *check) leaves() (all [][]step) {
	c.inEachOrder(func(order, holders int, owners []step) {
		for i := holders; i < len(owners); i++ {
			leaves := step{kind: driver.Leave, owner: i}
			if (order+i)%3 == 0 {
				leaves.kind = driver.Abandon
			}
			waiters := asks(owners)[holders:]
			all = append(all, slices.Concat(asks(owners), []step{leaves}, waiters, []step{{kind: driver.Release, owner: 0, fence: 1}}, waiters))
		}
	})
	return all
}

func (c *check) goes() (all [][]step) {
	c.inEachOrder(func(order, holders int, owners []step) {
		goes := order / 2 % holders
		comes, turn := asks(owners), asks(owners)
		comes[goes].ttl, turn[0].lapse = mixedEnds, 3*time.Second
		for _, event := range goings(goes, goes+1) {
			all = append(all, slices.Concat(comes, event, asks(owners), turn))
		}
	})
	return all
}

// crowds are keys with many holders, and a writer and a reader that wait. One of the holders goes, and a newcomer asks.
func crowds() (all [][]step) {
	for _, n := range []int{9, 17, lockstore.MaxHolders} {
		goes := n / 2
		for i, event := range goings(goes, goes+1) {
			if n > 9 && i%4 > 0 {
				continue
			}
			known := make([]step, n+3)
			for i := range known {
				known[i].most = n
			}
			known[n].most = 1
			comes := asks(known[:n+2])
			comes[goes].ttl = mixedEnds
			newcomer := asks(known)[n+2:]
			all = append(all, slices.Concat(comes, event, newcomer, []step{{kind: driver.Leave, owner: n}}, newcomer, asks(known)[n-2:n+2], []step{
				{kind: driver.Release, owner: 0, fence: 1}, {kind: driver.Renew, owner: n - 1, fence: n, ttl: mixedTTL},
			}, newcomer))
		}
	}
	return all
}
