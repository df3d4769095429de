module github.com/lambdalock/lambdalock/lockstore/sqlstore

go 1.26.0

require github.com/lambdalock/lambdalock v0.1.0
