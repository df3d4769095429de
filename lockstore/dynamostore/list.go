package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// scanner is what List calls; *dynamodb.Client has this method.
type scanner interface {
	Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error)
}

// listed are the attributes that List reads. What a row has besides stays where it is: a
// result may be large, and is nobody's but the caller's.
var listed = slices.Concat([]string{attrKey, attrTTL, attrText, attrQueue, attrSize}, leaseAttributes)

// List implements driver.Lister by Scan with consistency, a page of up to 1 MB with
// each request. It reads, and you pay for, the whole table, whatever the prefix is. It
// needs dynamodb:Scan.
func (t *table) List(ctx context.Context, prefix string, page func(driver.Page) error) error {
	api, ok := t.api.(scanner)
	if !ok {
		return unsupported("list the table: it has no Scan")
	}
	given := values{}
	var filter []string
	projection := "#" + strings.Join(listed, ", #")
	if prefix = t.names.prefix + prefix; prefix != "" {
		filter = append(filter, "begins_with(#key, :prefix)")
		given[":prefix"] = text(prefix)
	}
	if t.names.sort != "" {
		filter = append(filter, "#sort = :sort") // the table has other items, too
		given[":sort"] = text(sortValue)
	}
	in := &dynamodb.ScanInput{
		TableName:                &t.name,
		ConsistentRead:           aws.Bool(true),
		ReturnConsumedCapacity:   types.ReturnConsumedCapacityTotal,
		ProjectionExpression:     &projection,
		ExpressionAttributeNames: t.names.aliases(projection + " " + strings.Join(filter, " ")),
	}
	if len(filter) > 0 {
		in.FilterExpression = aws.String(strings.Join(filter, " AND "))
		in.ExpressionAttributeValues = given
	}
	for {
		r := reply{sent: t.clock.local()}
		out, seen, err := call(ctx, api.Scan, in)
		if err != nil {
			t.clock.learn(r.sent, failureDate(err))
			return t.explain("List", err, seen)
		}
		r.date = serverTime(out.ResultMetadata)
		t.clock.learn(r.sent, r.date)
		p := driver.Page{}
		if out.ConsumedCapacity != nil {
			p.ReadUnits = aws.ToFloat64(out.ConsumedCapacity.CapacityUnits)
		}
		for _, item := range out.Items {
			name := textOf(item[t.names.key])
			if isAddressRow(name) {
				continue
			}
			key := strings.TrimPrefix(name, t.names.prefix)
			if seen, err := t.names.decode(key, item); err == nil && name != "" {
				_, _, a := t.decide(seen, r, driver.Request{Kind: driver.Inspect})
				p.Keys = append(p.Keys, driver.Listed{Key: key, Status: a.Status})
				continue
			}
			p.Damaged++
			if name != "" {
				p.DamagedNames = append(p.DamagedNames, name)
			}
		}
		if err := page(p); err != nil {
			return err
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			return nil
		}
	}
}

// Extent implements driver.Lister by DescribeTable. The service counts the rows every
// six hours. It needs dynamodb:DescribeTable.
func (t *table) Extent(ctx context.Context) (driver.Extent, error) {
	table, err := t.describe(ctx, "Extent")
	if err != nil {
		return driver.Extent{}, err
	}
	return driver.Extent{Entries: aws.ToInt64(table.ItemCount), Bytes: aws.ToInt64(table.TableSizeBytes)}, nil
}

// unsupported is the error of a client that has not all methods of *dynamodb.Client. describe and List call it.
func unsupported(what string) error {
	return fmt.Errorf("dynamostore: the client cannot %s: %w", what, errors.ErrUnsupported)
}
