package storetest

import (
	"fmt"
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
		"mixed/readers and writers in each order, and one of them goes",
		"Readers and writers hold a key and wait for it, in each order. One of them leaves, is revoked or lets its lease end. The rule book says what this changes for each of the others: its lease, its seat and its place.",
		func(c *check) { c.play(c.inEachOrder(), 25) },
	},
	{
		"mixed/many hold a key, and one of them goes",
		"A key may have as many holders as lockstore.MaxHolders says. The end of one lease changes no other, and the newcomer gets its seat.",
		func(c *check) { c.play(crowds(), 8) },
	},
}

// play compares the sequences with the rule book; under the race detector and on the wall clock one of each few.
func (c *check) play(all [][]step, few int) {
	c.Helper()
	every := 3
	if !c.virtual || verifyrecord.WithRaceDetector {
		every = few
	}
	differences := make([]string, (len(all)+every-1)/every)
	one := func(i int) {
		ran, d := c.compare(all[i*every], nil)
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

// inEachOrder are one or three holders, and three who wait, in each order of writers and readers; then somebody goes.
func (c *check) inEachOrder() (all [][]step) {
	kinds := []step{{most: 1}, {most: 3}, {most: lockstore.MaxHolders}}
	if c.Parks {
		kinds[2].parked = 2600 * time.Millisecond
	}
	const waiters = 3
	for order := range 27 {
		holders := []step{{most: 1}, {most: 3}, {most: 3}}
		if order%2 == 0 {
			holders = holders[:1]
		} else {
			holders[0].most = 3
		}
		goes := order / 2 % len(holders)
		known := append(holders, kinds[order%3], kinds[order/3%3], kinds[order/9])
		comes := asks(known)
		comes[goes].ttl = mixedEnds
		events := goings(goes, goes+1)
		for i := range waiters { // one that waits
			kind := []driver.Kind{driver.Leave, driver.Abandon}[(order+i)%2]
			events = append(events, []step{{kind: kind, owner: len(holders) + i}})
		}
		for _, event := range events {
			again := asks(known)
			turn := asks(known)
			turn[0].lapse = 3 * time.Second
			all = append(all, slices.Concat(comes, event, again, turn))
		}
	}
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
