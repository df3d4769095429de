package lockset

import (
	"context"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// dynamoLists keeps a list in one item: list S (partition key), elements S,
// stamps L of S, and the fence that dynamostore.Fenced keeps.
type dynamoLists struct {
	client *dynamodb.Client
	table  string
	fenced bool
}

func (l *dynamoLists) Read(ctx context.Context, list string, s Stamp) ([]string, error) {
	before, err := l.update(ctx, list, s, nil)
	return strings.Fields(str(before["elements"])), err
}

func (l *dynamoLists) Write(ctx context.Context, list string, s Stamp, elements []string) (stale bool, err error) {
	before, err := l.update(ctx, list, s, elements)
	return before != nil && fence(before) > s.Fence, err
}

// update returns the item as it was before.
func (l *dynamoLists) update(ctx context.Context, list string, s Stamp, elements []string) (map[string]types.AttributeValue, error) {
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
	return out.Attributes, nil
}

func (l *dynamoLists) Look(ctx context.Context, list string) (Content, error) {
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

// str and fence read what only this package writes; anything else is empty, and
// the check then misses elements.
func str(v types.AttributeValue) string {
	s, ok := v.(*types.AttributeValueMemberS)
	if !ok {
		return ""
	}
	return s.Value
}

func fence(item map[string]types.AttributeValue) lockstore.Fence {
	n, ok := item[dynamostore.FenceAttribute].(*types.AttributeValueMemberN)
	if !ok {
		return 0
	}
	f, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		return 0
	}
	return lockstore.Fence(f)
}
