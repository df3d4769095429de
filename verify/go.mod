module github.com/lambdalock/lambdalock/verify

go 1.26.0

replace github.com/lambdalock/lambdalock => ../

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/lambdalock/lambdalock v0.0.0
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.6 // indirect
