module github.com/lambdalock/lambdalock/examples/counter

go 1.26.0

require (
	github.com/lambdalock/lambdalock v0.1.0
	github.com/lambdalock/lambdalock/lockstore/cosmosstore v0.1.0
	github.com/lambdalock/lambdalock/lockstore/datastore v0.1.0
	github.com/stretchr/testify v1.12.1
)

require (
	cloud.google.com/go/compute/metadata v0.9.0 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/azcore v1.21.0 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos v1.5.0 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/internal v1.11.2 // indirect
	github.com/aws/aws-lambda-go v1.55.1 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
