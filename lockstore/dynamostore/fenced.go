package dynamostore

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// FenceAttribute is the attribute of a caller's own item that keeps the largest
// fence by which it was written.
const FenceAttribute = "lock_fence"

// ifNotStale is the condition that no larger fence has written the item.
const ifNotStale = "(attribute_not_exists(" + FenceAttribute + ") OR " + FenceAttribute + " <= :" + FenceAttribute + ")"

// Fenced makes a write to the caller's own item refuse a stale fence: it adds
// the condition that no larger fence has written the item, and the assignment
// of this one, to in's expressions. All writes to items that the lock protects
// have to go through it. A refusal is told apart by IsStale. Fenced again on the
// same input, as in a loop that tries again, only replaces the fence.
func Fenced(in *dynamodb.UpdateItemInput, fence lockstore.Fence) error {
	switch {
	case in == nil:
		return invalid("the UpdateItemInput is nil")
	case fence <= 0:
		return invalid("Fence is %d; want that of a grant", fence)
	}
	values := make(map[string]types.AttributeValue, len(in.ExpressionAttributeValues)+1)
	maps.Copy(values, in.ExpressionAttributeValues) // the caller's own map stays as it is
	values[":"+FenceAttribute] = fenceNumber(fence)

	in.ConditionExpression = aws.String(withCondition(aws.ToString(in.ConditionExpression)))
	in.UpdateExpression = aws.String(withAssignment(aws.ToString(in.UpdateExpression)))
	in.ExpressionAttributeValues = values
	in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	return nil
}

// withCondition puts ifNotStale behind a condition, once.
func withCondition(own string) string {
	before, there := strings.CutSuffix(own, " AND "+ifNotStale)
	switch {
	case own == "" || own == ifNotStale:
		return ifNotStale
	case there && enclosed(before):
		return own
	}
	return "(" + own + ") AND " + ifNotStale
}

// enclosed reports whether one pair of parentheses is around all of a condition:
// in "a OR (b)" the OR would win over an AND that follows.
func enclosed(condition string) bool {
	depth := 0
	for i, c := range condition {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			return i == len(condition)-1
		}
	}
	return false
}

// withAssignment puts the fence's assignment into an update expression, once. SET
// may stand there once, and being a reserved word it is nothing else there.
func withAssignment(own string) string {
	const space, assignment = " \t\r\n", FenceAttribute + " = :" + FenceAttribute
	for i := 0; i+3 < len(own); i++ {
		starts := i == 0 || strings.ContainsRune(space, rune(own[i-1]))
		if !starts || !strings.EqualFold(own[i:i+3], "SET") || !strings.ContainsRune(space, rune(own[i+3])) {
			continue
		}
		rest := own[i+3:]
		if after, there := strings.CutPrefix(rest, " "+assignment); there && (after == "" || strings.ContainsRune(space+",", rune(after[0]))) {
			return own
		}
		return own[:i+3] + " " + assignment + "," + rest
	}
	if own == "" {
		return "SET " + assignment
	}
	return "SET " + assignment + " " + own
}

// IsStale reports whether err refuses a write because fence is no longer the
// lock's: Fenced's condition found a larger fence in the item, or StillHeld's found
// the lock released, expired and granted to another, or closed. It is false for a
// refusal by the caller's own condition, and for one by StillHeld of a key that has
// no row. With several StillHeld in one transaction it is true if one of them was
// refused. Without the row that refused (Fenced and StillHeld ask for it) it is false.
func IsStale(err error, fence lockstore.Fence) bool {
	if refusal, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return newer(refusal.Item, fence)
	}
	cancelled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(cancelled.CancellationReasons, func(r types.CancellationReason) bool {
		return aws.ToString(r.Code) == "ConditionalCheckFailed" && (newer(r.Item, fence) || ended(r.Item, fence))
	})
}

// newer reports whether a caller's item was written by a larger fence.
func newer(item map[string]types.AttributeValue, fence lockstore.Fence) bool {
	seen, err := number(item, FenceAttribute, math.MaxInt64)
	return err == nil && lockstore.Fence(seen) > fence
}

// ended reports whether an item is a lock's row, and its lock not held by fence.
func ended(item map[string]types.AttributeValue, fence lockstore.Fence) bool {
	_, hasKey := item[attrKey].(*types.AttributeValueMemberS)
	_, hasTTL := item[attrTTL].(*types.AttributeValueMemberN)
	seen, err := decode("", item)
	held := seen.fence == fence && seen.owner != "" && seen.owner != closedOwner
	return hasKey && hasTTL && err == nil && !held
}

// StillHeld is a condition for TransactWriteItems: the lock of key, in the
// store's table, is still the grant of fence. The other writes of the
// transaction are then applied only if nobody else has been granted the key,
// also to items that keep no fence. A refusal is told apart by IsStale. It needs
// dynamodb:ConditionCheckItem on the lock table. A table with multi-Region strong
// consistency has no transactions; write with Fenced there.
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
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}
