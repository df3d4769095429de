package sqltest

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

// The rows of all dialects are the same, but for the stamps: those of SQLite are whole milliseconds.
func TestGoldenRows(t *testing.T) {
	t.Parallel()
	e := sqlite(t)
	golden.Run(t, func(t *testing.T) golden.Storage {
		var shift atomic.Int64
		there := e.rows(t, e.table("lambdalock"))
		run(t, there.db, "DELETE FROM lambdalock")
		db := e.clocked(t, &shift)
		return golden.Storage{
			Open: func() *lockstore.Store { return store(t, db, sqlstore.Options{Table: e.table("lambdalock")}) },
			Read: func() string {
				var key, entry string
				require.NoError(t, there.db.QueryRow("SELECT key, entry FROM lambdalock").Scan(&key, &entry))
				return key + " " + entry
			},
			Write: func(text string) {
				key, entry, _ := strings.Cut(text, " ")
				there.SetValue(t, key, []byte(entry))
			},
		}
	})
}
