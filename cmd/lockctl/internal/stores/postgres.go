package stores

import (
	"database/sql"

	"github.com/lib/pq"

	"github.com/lambdalock/lambdalock/lockstore/pgstore"
)

// postgres opens stores in PostgreSQL. Nobody listens there: a command that waits for a lock asks for it.
var postgres = pgstore.Opener(func(url string) (*sql.DB, error) {
	connector, err := pq.NewConnector(url) // sql.Open would say only later what is wrong with the URL
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}, pgstore.Options{})
