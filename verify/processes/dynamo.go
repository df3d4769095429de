package processes

import (
	"context"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// dynamoLists keeps a list in one item: list S (partition key), elements S,
// stamps L of S, and the fence that dynamostore.Fenced keeps.
type dynamoLists struct {
	client *dynamodb.Client
	table  string
	fenced bool
}

func (l *dynamoLists) Do(ctx context.Context, list string, s Stamp, elements []string) ([]string, error) {
	in := &dynamodb.UpdateItemInput{
		TableName:                &l.table,
		Key:                      itemKey(list),
		UpdateExpression:         aws.String("SET #stamps = list_append(if_not_exists(#stamps, :none), :stamp)"),
		ExpressionAttributeNames: map[string]string{"#stamps": "stamps"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":none":  &types.AttributeValueMemberL{},
			":stamp": &types.AttributeValueMemberL{Value: []types.AttributeValue{text(s.String())}},
		},
		ReturnValues: types.ReturnValueAllOld,
	}
	if elements != nil {
		*in.UpdateExpression += ", #elements = :elements"
		in.ExpressionAttributeNames["#elements"] = "elements"
		in.ExpressionAttributeValues[":elements"] = text(strings.Join(elements, " "))
	}
	if l.fenced {
		if err := dynamostore.Fenced(in, s.Fence); err != nil {
			return nil, err
		}
	} else {
		*in.UpdateExpression += ", " + dynamostore.FenceAttribute + " = :fence"
		in.ExpressionAttributeValues[":fence"] = &types.AttributeValueMemberN{Value: strconv.FormatInt(int64(s.Fence), 10)}
	}
	out, err := l.client.UpdateItem(ctx, in)
	switch {
	case dynamostore.IsStale(err, s.Fence):
		return nil, ErrStale
	case err != nil:
		return nil, err
	}
	return strings.Fields(str(out.Attributes["elements"])), nil
}

func (l *dynamoLists) ReadAll(ctx context.Context, list string) (Content, error) {
	out, err := l.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &l.table, Key: itemKey(list), ConsistentRead: aws.Bool(true)})
	if err != nil {
		return Content{}, err
	}
	var stamps []string
	if all, ok := out.Item["stamps"].(*types.AttributeValueMemberL); ok {
		for _, v := range all.Value {
			stamps = append(stamps, str(v))
		}
	}
	return parse(str(out.Item["elements"]), stamps)
}

func itemKey(list string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"list": text(list)}
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

// str reads what only this package writes. All else reads as empty, and then the
// check misses elements.
func str(v types.AttributeValue) string {
	s, ok := v.(*types.AttributeValueMemberS)
	if !ok {
		return ""
	}
	return s.Value
}
