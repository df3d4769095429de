package operate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// asked is the driver of a store that notes for what it is asked.
type asked struct {
	driver.Driver
	keys, prefixes []string
}

func (a *asked) Do(_ context.Context, key string, _ driver.Request) (driver.Answer, error) {
	a.keys = append(a.keys, key)
	if key == "damaged" {
		return driver.Answer{}, lockstore.ErrCorrupt
	}
	return driver.Answer{Outcome: driver.Done}, nil
}

func (a *asked) List(_ context.Context, prefix string, page func(driver.Page) error) error {
	a.prefixes = append(a.prefixes, prefix)
	for _, state := range []driver.State{driver.Free, driver.Reserved, driver.Held, driver.Revoked, driver.Completed, driver.Cooldown, driver.InDoubt} {
		name := state.String()
		p := driver.Page{Keys: []driver.Listed{{Key: "a/" + name, Status: driver.Status{State: state}}, {Key: "c/" + name, Status: driver.Status{State: state}}}, Requests: 2, ReadUnits: 1.5, Damaged: 1, DamagedNames: []string{"l:" + name}}
		if err := page(p); err != nil {
			return err
		}
	}
	return nil
}

func (a *asked) Extent(context.Context) (driver.Extent, error) { return driver.Extent{}, nil }

// The page reads the keys that are named, and no others, each once; or a listing. It says what that takes.
func TestReadingsOfThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d asked
		v := viewer{keys: true, names: []string{"b", "damaged", "a", "b"}, every: time.Second}
		v.store = lockstore.New("dynamostore", &d)
		require.NoError(t, v.validate())
		keys := func(all []lockstore.Status) (names []string) {
			for _, s := range all {
				names = append(names, s.Key)
			}
			return names
		}
		r, err := v.readKeys(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"a", "b", "damaged"}, d.keys)
		assert.Equal(t, []string{"a", "b"}, keys(r.Keys))
		assert.Equal(t, []any{3, 3.0, `1 entries are damaged or another program's, and not listed, such as ["damaged"]`}, []any{r.Requests, r.ReadUnits, r.Damaged})

		v.keys = false
		for _, c := range []struct{ names, prefixes, keys []string }{
			{nil, []string{""}, []string{"a/reserved", "c/reserved", "a/held", "c/held", "a/revoked", "c/revoked", "a/in doubt", "c/in doubt"}},
			{[]string{"a/"}, []string{"a/"}, []string{"a/reserved", "a/held", "a/revoked", "a/in doubt"}}, // a driver may list more
			{[]string{"a/h", "c/re", "e/"}, []string{""}, []string{"c/reserved", "a/held", "c/revoked"}},
		} {
			d.prefixes, v.names = nil, c.names
			require.NoError(t, v.validate())
			began := time.Now()
			r, err := v.readListing(t.Context())
			require.NoError(t, err)
			assert.GreaterOrEqual(t, time.Since(began), 6*pagePause, "those who lock need the throughput")
			assert.Equal(t, c.prefixes, d.prefixes)
			assert.ElementsMatch(t, c.keys, keys(r.Keys))
			assert.Equal(t, []any{14, 10.5}, []any{r.Requests, r.ReadUnits})
			assert.Contains(t, r.Damaged, `7 entries are damaged`)
		}
		assert.Equal(t, "2s", UI().Flag("every").DefValue)
	})
}
