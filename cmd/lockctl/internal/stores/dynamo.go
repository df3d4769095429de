package stores

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// IsLocalDynamoDB says that a URL names a DynamoDB on this machine, where a table
// costs nothing and may be made without asking.
func IsLocalDynamoDB(u *url.URL) bool {
	endpoint, err := lockstore.ParseEndpoint(u.Query().Get("endpoint"))
	return err == nil && u.Scheme == "dynamodb" && lockstore.IsThisMachine(endpoint.Hostname())
}

// MakeLocalTable makes the lock table on a DynamoDB Local if it is not there, and says if it
// was made: its name may be a typing mistake. It uses the store's own defaults for the region
// and the credentials.
func MakeLocalTable(ctx context.Context, u *url.URL) (made bool, err error) {
	client, err := dynamostore.Client(lockstore.Config{URL: u})
	if err != nil {
		return false, err
	}
	_, err = client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            &u.Host,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("key"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("key"), KeyType: types.KeyTypeHash}},
	})
	if _, exists := errors.AsType[*types.ResourceInUseException](err); err == nil || exists {
		return err == nil, nil
	}
	return false, fmt.Errorf("the table %s cannot be made on %s: %w", u.Host, u.Query().Get("endpoint"), short(err))
}

// sdkTrace is what the SDK adds to an error in each of its layers.
var sdkTrace = regexp.MustCompile(`operation error DynamoDB: \w+, (exceeded maximum number of attempts, \d+, )?` +
	`(https response error StatusCode: \d+, RequestID: [^,]*, )?(request send failed, \w+ "[^"]*": )?`)

// shortError is an error whose text is without sdkTrace.
type shortError struct{ error }

func short(err error) error { return shortError{err} }

func (e shortError) Error() string { return Short(e.error.Error()) }

func (e shortError) Unwrap() error { return e.error }

// Short takes out of an error's text what the AWS SDK adds in each of its layers, and the
// class of a store's error, which the exit status tells, behind what is wrong.
func Short(text string) string {
	return strings.NewReplacer(": "+lockstore.ErrUnavailable.Error()+": ", ": ", ": "+lockstore.ErrCorrupt.Error()+": ", ": ").
		Replace(sdkTrace.ReplaceAllString(text, ""))
}
