package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// played is the picture of a world when nothing is left to do.
func played(t *testing.T, w *world) picture {
	t.Helper()
	for begin := time.Now(); ; {
		p := w.look()
		if p.Idle {
			t.Logf("%v: %+v", time.Since(begin), p.Facts)
			return p
		}
		require.Less(t, time.Since(begin), 10*time.Minute, "%+v", p.Facts)
		<-time.After(100 * time.Millisecond)
	}
}

// look is the picture of a world with its whole story.
func (w *world) look() (p picture) {
	w.locked(func() { p = w.picture(0) })
	return p
}

// end lets those return that are dead: their guards give up.
func end() { <-time.After(time.Minute) }

// bars are the spans of some kinds in all lanes, sorted by their begin.
func (p picture) bars(kinds ...string) (all []*span) {
	for _, l := range p.Lanes {
		for _, s := range l.Spans {
			if slices.Contains(kinds, s.Kind) {
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b *span) int { return int(a.From - b.From) })
	return all
}

// at is the moment of the first line of the story with this text.
func (p picture) at(t *testing.T, text string) int64 {
	t.Helper()
	i := slices.IndexFunc(p.Story, func(l line) bool { return strings.Contains(l.Text, text) })
	require.NotEqual(t, -1, i, "%q is not in the story: %v", text, p.Story)
	return p.Story[i].At
}

// atOnce is the most bars that overlap.
func atOnce(bars []*span) (most int) {
	for _, b := range bars {
		n := 0
		for _, other := range bars {
			if other.From <= b.From && b.From < other.To {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestSituations: each situation ends as its text says, and the picture shows it.
func TestSituations(t *testing.T) {
	ends := map[string]func(*testing.T, picture){
		"without": func(t *testing.T, p picture) {
			require.Equal(t, 40, p.Facts.Runs)
			require.Greater(t, p.Facts.Overlaps, 20)
			require.Len(t, p.bars("overlap"), p.Facts.Overlaps)
			require.Greater(t, atOnce(p.bars("overlap")), 4)
			require.Equal(t, 40, p.Facts.Wanted)
			require.Less(t, p.Facts.Stored, 20)
		},
		"with": func(t *testing.T, p picture) {
			require.Len(t, p.bars("held"), 40)
			require.Empty(t, p.bars("overlap"))
			require.Equal(t, 1, atOnce(p.bars("held")))
			require.Equal(t, 40, p.Facts.Stored)
			require.Greater(t, p.Facts.PaidWait, int64(40_000), "7 of 8 environments wait")
		},
		"freeze": func(t *testing.T, p picture) {
			cancelled, next := p.at(t, "event 1: its context is cancelled"), p.at(t, "event 2: its work begins")
			require.Less(t, cancelled, next)
			require.LessOrEqual(t, next-cancelled, int64(400), "it waits no longer than for the margin")
			require.Less(t, next, p.at(t, "it goes on"))
			require.LessOrEqual(t, p.at(t, "it goes on"), p.at(t, "its write with fence"))
			require.Equal(t, 1, p.Facts.Refused)
			require.Equal(t, 2, p.Facts.Stored)
			require.Equal(t, 1, p.Facts.Unserved)
			lost, held := p.bars("lost"), p.bars("held")
			require.Len(t, lost, 1)
			require.Len(t, held, 3)
			require.Equal(t, held[0].To, lost[0].From)
			require.Less(t, lost[0].From, held[1].From, "the picture has the end of the trust before the next run")
			require.Len(t, p.bars("freeze"), 1)
			require.Zero(t, p.Facts.Overlaps)
		},
		"kill": func(t *testing.T, p picture) {
			held, killed := p.bars("held"), p.bars("kill")
			require.Len(t, held, 3)
			require.Len(t, killed, 1)
			require.Equal(t, killed[0].From, held[0].To)
			require.InDelta(t, ttl.Milliseconds(), held[1].From-held[0].From, 100, "the lease lasts, and no longer")
			require.Equal(t, 2, p.Facts.Stored)
			require.Equal(t, 1, p.Facts.Unserved)
		},
		"holders": func(t *testing.T, p picture) {
			require.Equal(t, 24, p.Facts.Stored)
			require.Equal(t, 3, p.Facts.Most)
			require.Equal(t, 3, atOnce(p.bars("held")))
			require.Empty(t, p.bars("overlap"))
		},
		"readers": func(t *testing.T, p picture) {
			require.Equal(t, 18, p.Facts.Runs)
			require.Equal(t, 3, p.Facts.Stored)
			require.Greater(t, atOnce(p.bars("held")), 1)
			require.Empty(t, p.bars("overlap"))
			require.Zero(t, p.Facts.Unserved)
		},
		"coalesce": func(t *testing.T, p picture) {
			require.LessOrEqual(t, p.Facts.Runs, 12)
			require.Equal(t, 200, p.Facts.Runs+p.Facts.Covered)
			require.Equal(t, 200, p.Facts.Stored)
			require.Empty(t, p.bars("overlap"))
		},
		"parked": func(t *testing.T, p picture) {
			require.Equal(t, 12, p.Facts.Stored)
			require.Less(t, p.Facts.PaidWait, int64(1000))
			require.Equal(t, 1, atOnce(p.bars("held")))
			require.Less(t, p.at(t, "event 2: parked"), p.at(t, "event 2 is woken by env"))
		},
	}
	require.Len(t, ends, len(situations))
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer end()
				ends[s.name](t, played(t, open(s.name)))
			})
		})
	}
}

// TestVisitor: a visitor sends events, and freezes, kills and slows down environments. With a lock nothing overlaps that must not, and
// everything ends.
func TestVisitor(t *testing.T) {
	for _, lock := range []string{off, "on", holders, readers, coalesce, parked} {
		t.Run(lock, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer end()
				w := newWorld(situation{environments: 8, think: 100 * time.Millisecond, lock: lock})
				rng := rand.New(rand.NewPCG(7, 7))
				w.locked(func() {
					w.shown.Set.Keys = 4
					w.send(200, time.Second)
				})
				for range 40 {
					<-time.After(time.Duration(rng.Int64N(int64(time.Second))))
					w.locked(func() {
						w.environments[rng.IntN(8)].strike([]string{freeze, "thaw", kill, "slow", "fast"}[rng.IntN(5)])
						w.send(1, time.Second)
					})
				}
				for lane := range 8 {
					w.locked(func() { w.environments[lane].strike("thaw") })
				}
				p := played(t, w)
				require.Equal(t, 240, p.Facts.Events)
				require.Equal(t, lock == off, p.Facts.Overlaps > 0)
				if lock != off {
					assert.Empty(t, p.bars("overlap"))
				}
				for _, l := range p.Story {
					ended := strings.Contains(l.Text, "error: context deadline exceeded") || strings.Contains(l.Text, "error: the resource has seen")
					assert.True(t, ended || !strings.Contains(l.Text, "error: "), "%v", l)
				}
			})
		})
	}
}

// Who kills an environment that stands still does not make it go on first, and the end of its freeze changes nothing any more.
func TestKillWhileItStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(situation{environments: 1, think: time.Second, lock: "on"})
		e := w.environments[0]
		for _, what := range []string{freeze, "thaw", freeze, kill, "thaw"} {
			<-time.After(time.Second)
			w.locked(func() { e.strike(what) })
		}
		p := w.look()
		var story []string
		for _, l := range p.Story {
			story = append(story, l.Text)
		}
		assert.Equal(t, []string{"it stands still", "it goes on", "it stands still", "it is killed"}, story)
		for _, b := range p.bars(freeze) {
			assert.Equal(t, time.Second.Milliseconds(), b.To-b.From)
		}
	})
}

func TestUnknownSituation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, 40, played(t, open("no such")).Facts.Events, "the first situation")
	})
}
