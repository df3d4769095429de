module github.com/lambdalock/lambdalock/lockstore/pgstore

go 1.26.0

require (
	github.com/lambdalock/lambdalock v0.1.0
	github.com/lib/pq v1.12.3
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require go.yaml.in/yaml/v3 v3.0.6 // indirect
