// Package pgstore keeps locks in a table of PostgreSQL (14 or later), by database/sql. It has no driver: the program chooses one.
// It is a module of its own.
package pgstore
