package dynamostore

import (
	"errors"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// FenceAttribute is the attribute of a caller's own item that keeps the largest
// fence by which it was written.
const FenceAttribute = "lock_fence"

// Fenced makes a write to the caller's own item refuse a stale fence: it adds
// the condition that no larger fence has written the item, and the assignment
// of this one, to in's expressions. All writes to items that the lock protects
// have to go through it. A refusal is told apart by IsStale.
func Fenced(in *dynamodb.UpdateItemInput, fence lockstore.Fence) error {
	switch {
	case in == nil:
		return invalid("the UpdateItemInput is nil")
	case fence <= 0:
		return invalid("Fence is %d; want that of a grant", fence)
	}
	condition := "(attribute_not_exists(" + FenceAttribute + ") OR " + FenceAttribute + " <= :" + FenceAttribute + ")"
	if in.ConditionExpression != nil && *in.ConditionExpression != "" {
		condition = "(" + *in.ConditionExpression + ") AND " + condition
	}
	update := withAssignment(in.UpdateExpression, FenceAttribute+" = :"+FenceAttribute)

	values := make(map[string]types.AttributeValue, len(in.ExpressionAttributeValues)+1)
	for name, value := range in.ExpressionAttributeValues {
		values[name] = value
	}
	values[":"+FenceAttribute] = fenceNumber(fence)

	in.ConditionExpression = &condition
	in.UpdateExpression = &update
	in.ExpressionAttributeValues = values
	in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	return nil
}

// withAssignment puts an assignment into an update expression. SET may stand
// there once, and being a reserved word it is nothing else there.
func withAssignment(expression *string, assignment string) string {
	if expression == nil {
		return "SET " + assignment
	}
	const space = " \t\r\n"
	for i := 0; i+3 < len(*expression); i++ {
		starts := i == 0 || strings.ContainsRune(space, rune((*expression)[i-1]))
		if starts && strings.EqualFold((*expression)[i:i+3], "SET") && strings.ContainsRune(space, rune((*expression)[i+3])) {
			return (*expression)[:i+3] + " " + assignment + "," + (*expression)[i+3:]
		}
	}
	return "SET " + assignment + " " + *expression
}

// IsStale reports whether a write with Fenced was refused because a larger
// fence has written the item: the lock is lost, and another works on the item.
// It is false when the caller's own condition refused the write.
func IsStale(err error, fence lockstore.Fence) bool {
	refusal, ok := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !ok {
		return false
	}
	n, ok := refusal.Item[FenceAttribute].(*types.AttributeValueMemberN)
	if !ok {
		return false
	}
	seen, err := strconv.ParseInt(n.Value, 10, 64)
	return err == nil && lockstore.Fence(seen) > fence
}

// StillHeld is a condition for TransactWriteItems: the lock of key, in the
// store's table, is still the grant of fence. The other writes of the
// transaction are then applied only if nobody else has been granted the key,
// also to items that keep no fence. It needs dynamodb:ConditionCheckItem.
func StillHeld(table, key string, fence lockstore.Fence) types.TransactWriteItem {
	condition := "#fence = :fence AND attribute_exists(#owner) AND #owner <> :closed"
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName:                &table,
		Key:                      map[string]types.AttributeValue{attrKey: text(key)},
		ConditionExpression:      &condition,
		ExpressionAttributeNames: aliases(condition),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":fence":  fenceNumber(fence),
			":closed": text(closedOwner),
		},
	}}
}
