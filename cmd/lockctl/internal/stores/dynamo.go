package stores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// What a DynamoDB Local is told: it takes any credentials.
const (
	LocalRegion      = "us-east-1"
	LocalCredentials = "local"
)

// IsLocalDynamoDB says that a URL names a DynamoDB on this machine, where a table
// costs nothing and may be made without asking.
func IsLocalDynamoDB(u *url.URL) bool {
	endpoint, err := url.Parse(u.Query().Get("endpoint"))
	if err != nil || u.Scheme != "dynamodb" || endpoint.Host == "" {
		return false
	}
	ip := net.ParseIP(endpoint.Hostname())
	return endpoint.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// MakeLocalTable makes the lock table on a DynamoDB Local if it is not there.
func MakeLocalTable(ctx context.Context, u *url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	endpoint, key := u.Query().Get("endpoint"), "key"
	client := dynamodb.New(dynamodb.Options{
		BaseEndpoint: &endpoint,
		Region:       cmp.Or(u.Query().Get("region"), LocalRegion),
		Credentials:  credentials.NewStaticCredentialsProvider(LocalCredentials, LocalCredentials, ""),
	})
	_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            aws.String(u.Host),
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &key, AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: &key, KeyType: types.KeyTypeHash}},
	})
	if _, exists := errors.AsType[*types.ResourceInUseException](err); err == nil || exists {
		return nil
	}
	// The SDK's own text has a line of its bookkeeping for each layer.
	if dial, ok := errors.AsType[*net.OpError](err); ok {
		err = dial
	}
	return fmt.Errorf("the table %s cannot be made on %s: %w", u.Host, endpoint, err)
}
