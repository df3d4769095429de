package casstore

import (
	"context"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore/casstore/internal/entry"
)

// listing is the driver.Lister of a KV that lists its entries.
type listing struct {
	*store
	Lister
}

func (l *listing) List(ctx context.Context, prefix string, page func(driver.Page) error) error {
	return l.Lister.List(ctx, prefix, func(p Page) error {
		listed := driver.Page{Damaged: p.Damaged, DamagedNames: p.DamagedNames, Requests: p.Requests}
		for _, e := range p.Entries {
			v, err := l.view(e.Key, e.Entry)
			if err != nil {
				listed.Damaged++
				listed.DamagedNames = append(listed.DamagedNames, e.Name)
				continue
			}
			_, _, a, _ := book.Decide(v.State, rules.Clock{Early: p.Now, Late: entry.ThisWrite}, driver.Request{Kind: driver.Inspect})
			listed.Keys = append(listed.Keys, driver.Listed{Key: e.Key, Status: a.Status})
		}
		return page(listed)
	})
}
