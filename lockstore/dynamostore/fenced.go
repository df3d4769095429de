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

// FenceAttribute is an attribute of the caller's own item. It keeps the largest fence
// with which the item was written.
const FenceAttribute = "lock_fence"

// ifNotStale is the condition that the item was not written with a larger fence.
const ifNotStale = "(attribute_not_exists(" + FenceAttribute + ") OR " + FenceAttribute + " <= :" + FenceAttribute + ")"

// Fenced adds the fence to a write of the caller's own item:
//
//	condition   the item was not written with a larger fence
//	assignment  lock_fence = fence
//
// So DynamoDB refuses the late write of a holder that has lost its lock; see IsStale.
// Every write to an item that the lock protects needs Fenced. On the same input again,
// for example in a retry loop, Fenced only replaces the fence.
func Fenced(in *dynamodb.UpdateItemInput, fence lockstore.Fence) error {
	switch {
	case in == nil:
		return invalid("the UpdateItemInput is nil")
	case fence <= 0:
		return invalid("Fence is %d; want that of a grant", fence)
	}
	all := values{}
	maps.Copy(all, in.ExpressionAttributeValues) // the caller's own map stays as it is
	all[":"+FenceAttribute] = fenceNumber(fence)

	in.ConditionExpression = aws.String(withCondition(aws.ToString(in.ConditionExpression)))
	in.UpdateExpression = aws.String(withAssignment(aws.ToString(in.UpdateExpression)))
	in.ExpressionAttributeValues = all
	in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	return nil
}

// withCondition adds ifNotStale to a condition, once.
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

// enclosed reports whether one pair of parentheses is around the whole condition. It is
// needed before an AND: "a OR (b) AND c" means "a OR ((b) AND c)".
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

// withAssignment adds the fence's assignment to an update expression, once. An expression
// has SET at most once, and no name in it can be SET, which is a reserved word.
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

// IsStale reports whether err refuses a write of the caller's own item, because the item was
// written with a larger fence. It is false if the caller's own condition refused the write, or
// if err does not have the item; Fenced asks for it. A transaction with StillHeld or
// CompleteItem needs the method.
func IsStale(err error, fence lockstore.Fence) bool {
	return wasRefused(err, func(item values) bool { return newer(item, fence) })
}

// wasRefused reports whether the condition of an item refused the write, or the transaction, and
// the item is as the caller says.
func wasRefused(err error, is func(values) bool) bool {
	if refusal, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return is(refusal.Item)
	}
	cancelled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(cancelled.CancellationReasons, func(r types.CancellationReason) bool {
		return aws.ToString(r.Code) == "ConditionalCheckFailed" && is(r.Item)
	})
}

// newer reports whether a caller's item was written with a larger fence.
func newer(item values, fence lockstore.Fence) bool {
	seen, err := number(item, FenceAttribute, math.MaxInt64)
	return err == nil && lockstore.Fence(seen) > fence
}
