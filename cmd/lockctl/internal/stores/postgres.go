package stores

import (
	"database/sql"

	"github.com/lib/pq"

	"github.com/lambdalock/lambdalock/lockstore/pgstore"
)

// postgres opens stores in PostgreSQL. Nobody listens there: a command that waits for a lock asks for it. It works behind any pooler: a
// command sends so few requests that to prepare them gains nothing.
var postgres = pgstore.Opener(func(url string) (*sql.DB, error) {
	config, err := pq.NewConfig(url)
	if err != nil {
		return nil, err
	}
	config.BinaryParameters = true                  // each request is one message
	connector, err := pq.NewConnectorConfig(config) // sql.Open would say only later what is wrong with the URL
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}, pgstore.Options{Unprepared: true})
