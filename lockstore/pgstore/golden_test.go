package pgstore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

func TestGoldenRows(t *testing.T) {
	url := testservers.PostgreSQL(t) + "&timezone=UTC"
	golden.Run(t, func(t *testing.T) golden.Storage {
		db := direct(t, url)
		h, table := virtual(t, url)
		return golden.Storage{
			Parks: true,
			Open:  func() *lockstore.Store { return h.Store },
			Read:  func() string { return h.Dump(t, golden.Key) },
			Write: func(text string) {
				run(t, db, "DELETE FROM "+table)
				_, err := db.Exec("INSERT INTO "+table+" SELECT (r).* FROM (SELECT $1::"+table+" AS r) x", text)
				require.NoError(t, err)
			},
		}
	})
}
