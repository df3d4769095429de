package dynamostore

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

var _ lockstore.Lister = (*Store)(nil)

// scanner is what List calls; *dynamodb.Client has this method.
type scanner interface {
	Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error)
}

// listed are the attributes that List reads. What a row has besides stays where it is: an
// answer may be large, and is nobody's but the caller's.
const listed = "#key, #ttl, #owner, #fence, #expires, #holder, #queue, #freed, #begun"

const (
	ifPrefix = "begins_with(#key, :prefix)"
	ifSort   = "#sort = :sort" // the table has other items, too
)

// readUnit is how much a read unit with consistency reads.
const readUnit = 4 << 10

// List implements lockstore.Lister by Scan with consistency, a page of up to 1 MB with
// each request. It reads, and you pay for, the whole table, whatever the prefix is. It
// needs dynamodb:Scan.
func (s *Store) List(ctx context.Context, prefix string, page func(lockstore.Page) error) error {
	if s.api == nil {
		return errNotMade
	}
	api, ok := s.api.(scanner)
	if !ok {
		return invalid("the client cannot list the table: it has no Scan")
	}
	values := map[string]types.AttributeValue{}
	var filter []string
	if prefix = s.names.prefix + prefix; prefix != "" {
		filter = append(filter, ifPrefix)
		values[":prefix"] = text(prefix)
	}
	if s.names.sort != "" {
		filter = append(filter, ifSort)
		values[":sort"] = text(SortValue)
	}
	attributes := listed
	if s.names.otherTTL != "" {
		attributes += ", #otherTTL"
	}
	in := &dynamodb.ScanInput{
		TableName:                &s.table,
		ConsistentRead:           aws.Bool(true),
		ProjectionExpression:     &attributes,
		ExpressionAttributeNames: s.names.aliases(append(filter, attributes)...),
	}
	if len(filter) > 0 {
		in.FilterExpression = aws.String(strings.Join(filter, " AND "))
		in.ExpressionAttributeValues = values
	}
	for {
		r := reply{sent: s.clock.local()}
		out, seen, err := call(ctx, api.Scan, in)
		if err != nil {
			s.clock.learn(r.sent, failureDate(err))
			return s.explain("List", unknownRead, err, seen)
		}
		r.date = serverTime(out.ResultMetadata)
		s.clock.learn(r.sent, r.date)
		p := lockstore.Page{Read: int(out.ScannedCount), Requests: 1}
		for _, item := range out.Items {
			status, err := s.listedStatus(item, r)
			if err != nil {
				p.Damaged++
				if name, ok := item[s.names.key].(*types.AttributeValueMemberS); ok {
					p.DamagedNames = append(p.DamagedNames, name.Value)
				}
				continue
			}
			p.Keys = append(p.Keys, status)
		}
		if err := page(p); err != nil {
			return err
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			return nil
		}
	}
}

// listedStatus is the state of a row. A row of another program is an error.
func (s *Store) listedStatus(item map[string]types.AttributeValue, r reply) (lockstore.Status, error) {
	value, ok := item[s.names.key].(*types.AttributeValueMemberS)
	if !ok {
		return lockstore.Status{}, corrupt("", fmt.Errorf("the attribute %q is not a text", s.names.key))
	}
	key := strings.TrimPrefix(value.Value, s.names.prefix)
	entry, err := s.names.decode(key, item)
	if err != nil {
		return lockstore.Status{}, err
	}
	return s.status(key, entry, r), nil
}

// Extent implements lockstore.Lister by DescribeTable. The service counts the rows every
// six hours. It needs dynamodb:DescribeTable.
func (s *Store) Extent(ctx context.Context) (lockstore.Extent, error) {
	if s.api == nil {
		return lockstore.Extent{}, errNotMade
	}
	api, ok := s.api.(describer)
	if !ok {
		return lockstore.Extent{}, invalid("the client cannot describe the table: it has no DescribeTable")
	}
	out, seen, err := call(ctx, api.DescribeTable, &dynamodb.DescribeTableInput{TableName: &s.table})
	if err != nil {
		return lockstore.Extent{}, s.explain("Extent", unknownRead, err, seen)
	}
	if out.Table == nil {
		return lockstore.Extent{}, fmt.Errorf("dynamostore: %s, Extent: the answer describes no table", s.where())
	}
	bytes := aws.ToInt64(out.Table.TableSizeBytes)
	return lockstore.Extent{Entries: aws.ToInt64(out.Table.ItemCount), Bytes: bytes, ReadUnits: (bytes + readUnit - 1) / readUnit}, nil
}
