module github.com/lambdalock/lambdalock/examples/sqlfence

go 1.26.0

require (
	github.com/lambdalock/lambdalock v0.1.0
	github.com/lambdalock/lambdalock/lockstore/sqlstore v0.1.0
	github.com/lib/pq v1.12.3
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/aws/aws-lambda-go v1.55.1 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
)
