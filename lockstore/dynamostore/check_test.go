package dynamostore_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// describingClient answers Check's two reads.
type describingClient struct {
	dynamostore.API
	table *types.TableDescription
	ttl   *types.TimeToLiveDescription
}

func (d describingClient) DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error) {
	return &dynamodb.DescribeTableOutput{Table: d.table}, nil
}

func (d describingClient) DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error) {
	return &dynamodb.DescribeTimeToLiveOutput{TimeToLiveDescription: d.ttl}, nil
}

// keys are a primary key; sort is "" for one without a sort key.
func keys(hash, sort string) []types.KeySchemaElement {
	all := []types.KeySchemaElement{{AttributeName: &hash, KeyType: types.KeyTypeHash}}
	if sort != "" {
		all = append(all, types.KeySchemaElement{AttributeName: &sort, KeyType: types.KeyTypeRange})
	}
	return all
}

func TestCheck(t *testing.T) {
	good := func() describingClient {
		return describingClient{
			API: dynamostore.ClientOver(refusing, fakeEndpoint),
			table: &types.TableDescription{
				TableStatus:          types.TableStatusActive,
				KeySchema:            keys("key", ""),
				AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("key"), AttributeType: types.ScalarAttributeTypeS}},
				BillingModeSummary:   &types.BillingModeSummary{BillingMode: types.BillingModePayPerRequest},
			},
			ttl: &types.TimeToLiveDescription{AttributeName: aws.String("ttl"), TimeToLiveStatus: types.TimeToLiveStatusEnabled},
		}
	}
	indexed := func(name, hash, sort string) func(*describingClient) {
		return func(d *describingClient) {
			d.table.GlobalSecondaryIndexes = []types.GlobalSecondaryIndexDescription{{IndexName: &name, KeySchema: keys(hash, sort)}}
		}
	}
	ttlOn := func(name string) func(*describingClient) {
		return func(d *describingClient) { d.ttl.AttributeName = &name }
	}
	ttlIs := func(status types.TimeToLiveStatus) func(*describingClient) {
		return func(d *describingClient) { d.ttl.TimeToLiveStatus = status }
	}
	for name, tc := range map[string]struct {
		change func(*describingClient)
		says   string
	}{
		"good":           {func(*describingClient) {}, ""},
		"key of numbers": {func(d *describingClient) { d.table.AttributeDefinitions[0].AttributeType = types.ScalarAttributeTypeN }, `"key" of type N`},
		"another key": {func(d *describingClient) {
			d.table.KeySchema, d.table.AttributeDefinitions[0].AttributeName = keys("id", ""), aws.String("id")
		}, `"id" of type S`},
		"sort key":               {func(d *describingClient) { d.table.KeySchema = keys("key", "at") }, `sort key "at" of type ?`},
		"KMS off":                {func(d *describingClient) { d.table.TableStatus = types.TableStatusInaccessibleEncryptionCredentials }, "INACCESSIBLE"},
		"table is being changed": {func(d *describingClient) { d.table.TableStatus = types.TableStatusUpdating }, ""},
		"provisioned":            {func(d *describingClient) { d.table.BillingModeSummary = nil }, "provisioned"},
		"two Regions":            {func(d *describingClient) { d.table.Replicas = make([]types.ReplicaDescription, 1) }, "two Regions can hold"},
		"two Regions, strong": {func(d *describingClient) {
			d.table.Replicas = make([]types.ReplicaDescription, 1)
			d.table.MultiRegionConsistency = types.MultiRegionConsistencyStrong
			d.ttl = nil // it cannot be on
		}, "stays for ever, and no transactions, so StillHeld does not work"},
		"index": {indexed("theirs", "key", ""), "may be paid more than once"},
		"a local index on a list": {func(d *describingClient) {
			d.table.LocalSecondaryIndexes = []types.LocalSecondaryIndexDescription{{IndexName: aws.String("by-queue"), KeySchema: keys("key", "queue")}}
		}, `the index "by-queue" has the key "queue", which is an attribute of a lock's row: DynamoDB refuses each write`},
		"an index of an application":                          {indexed("theirs", "tenant", ""), ""},
		"an index of an application, with a lock's attribute": {indexed("by-day", "tenant", "ttl"), `the index "by-day" has the key "ttl"`},
		"TTL off":               {func(d *describingClient) { d.ttl = nil }, "time to live is off"},
		"TTL is being enabled":  {ttlIs(types.TimeToLiveStatusEnabling), ""},
		"TTL is being disabled": {ttlIs(types.TimeToLiveStatusDisabling), "time to live is off"},
		"TTL of no attribute":   {func(d *describingClient) { d.ttl.AttributeName = nil }, `on the attribute "", and this store writes "ttl" (ttl in the URL)`},
		"TTL expires":           {ttlOn("expires"), "milliseconds"},
		"TTL other":             {ttlOn("x"), `on the attribute "x", and this store writes "ttl" (ttl in the URL)`},
	} {
		t.Run("F50 "+name, func(t *testing.T) {
			d := good()
			tc.change(&d)
			findings, err := newStoreOver(t, d, 0, dynamostore.Options{}).Check(t.Context())
			require.NoError(t, err)
			if tc.says == "" {
				require.Empty(t, findings)
				return
			}
			require.Len(t, findings, 1)
			require.Contains(t, findings[0].Problem, tc.says)
			require.NotEmpty(t, findings[0].Fix)
		})
	}
}

func TestCheckErrors(t *testing.T) {
	s := newStoreOver(t, struct{ dynamostore.API }{}, 0, dynamostore.Options{})
	_, err := s.Check(t.Context())
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "no DescribeTable")
	require.ErrorIs(t, s.List(t.Context(), "", nil), errors.ErrUnsupported)
	_, err = s.Extent(t.Context())
	require.ErrorIs(t, err, errors.ErrUnsupported)

	service, s := newFake(t)
	service.Fault = always(refused("AccessDeniedException", ""))
	_, err = s.Check(t.Context())
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "Check needs dynamodb:DescribeTable")

	_, err = newStoreOver(t, describingClient{}, 0, dynamostore.Options{}).Check(t.Context())
	require.True(t, isUnknown(err))
	require.ErrorContains(t, err, "describes no table")
}

// A listing shows which keys are completed, and leaves their results in the table. If it has not come to its end, that is an error.
func TestList(t *testing.T) {
	bubble(t, "F23", func(t *testing.T) {
		service := fakedynamo.New(table)
		var scans []string
		store := newStoreOver(t, dynamostore.ClientOver(transport(func(r *http.Request) (*http.Response, error) {
			if body := string(bodyOf(t, r)); strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".Scan") {
				scans = append(scans, body)
			}
			return service.RoundTrip(r)
		}), fakeEndpoint), 0, dynamostore.Options{})
		require.NoError(t, store.Complete(t.Context(), held(t, store), []byte("result"), time.Minute))
		service.SetRow("damaged", fakedynamo.Item{"fence": {"N": "-1"}})
		all := listed(t, store, "")
		require.Equal(t, []string{"damaged"}, all.DamagedNames)
		require.Len(t, all.Keys, 1)
		require.Equal(t, lockstore.Completed, all.Keys[0].State)
		require.Len(t, scans, 1)
		require.Contains(t, scans[0], "ProjectionExpression")
		require.NotContains(t, scans[0], "result")

		service.SetRow("x", fakedynamo.Item{})
		service.SetRow("y", fakedynamo.Item{})
		pages := 0
		err := store.List(t.Context(), "", func(p lockstore.Page) error {
			pages++
			service.Fault = always(fakedynamo.Fault{LoseReply: errReset})
			return nil
		})
		require.ErrorContains(t, err, "connection reset by peer")
		require.Equal(t, 1, pages)
	})
}
