package dynamostore

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// fenceAttribute is an attribute of the caller's own item. It keeps the largest fence
// with which the item was written.
const fenceAttribute = "lock_fence"

// ifNotStale is the condition that the item was not written with a larger fence.
const ifNotStale = "(attribute_not_exists(" + fenceAttribute + ") OR " + fenceAttribute + " <= :" + fenceAttribute + ")"

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
	all[":"+fenceAttribute] = integer(fence)

	in.ConditionExpression = aws.String(withCondition(aws.ToString(in.ConditionExpression)))
	in.UpdateExpression = aws.String(withAssignment(aws.ToString(in.UpdateExpression)))
	in.ExpressionAttributeValues = all
	in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	return nil
}

// withCondition adds ifNotStale to a condition, once. Fenced calls it.
func withCondition(own string) string {
	own = strings.TrimSpace(own)
	before, there := strings.CutSuffix(own, " AND "+ifNotStale)
	switch {
	case own == "" || own == ifNotStale:
		return ifNotStale
	case there && enclosed(before):
		return own
	case enclosed(own): // DynamoDB refuses a second pair
		return own + " AND " + ifNotStale
	}
	return "(" + own + ") AND " + ifNotStale
}

// enclosed reports whether one pair of parentheses is around the whole condition. withCondition asks it of the condition, and of what stands before an
// AND with ifNotStale: without the pair, as in "a OR (b) AND c", Fenced has not written this condition.
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
			return i > 0 && i == len(condition)-1
		}
	}
	return false
}

// withAssignment adds the fence's assignment to an update expression, once. An expression
// has SET at most once, and no name in it can be SET, which is a reserved word. It needs no space before a # and after a ]. Fenced calls it.
func withAssignment(own string) string {
	const space, assignment = " \t\r\n", fenceAttribute + " = :" + fenceAttribute
	for i := 0; i+3 < len(own); i++ {
		starts := i == 0 || strings.ContainsRune(space+"]", rune(own[i-1]))
		if !starts || !strings.EqualFold(own[i:i+3], "SET") || !strings.ContainsRune(space+"#", rune(own[i+3])) {
			continue
		}
		rest := own[i+3:]
		if after, there := strings.CutPrefix(rest, " "+assignment); there && (after == "" || strings.ContainsRune(space+",", rune(after[0]))) {
			return own
		}
		return own[:i+3] + " " + assignment + "," + rest
	}
	return strings.TrimSpace("SET " + assignment + " " + own)
}

// IsStale reports whether err refuses a write of the caller's own item, because the item was
// written with a larger fence. It is false if the caller's own condition refused the write, or
// if err does not have the item; Fenced asks for it. A transaction with StillHeld or
// CompleteItem needs the method.
func IsStale(err error, fence lockstore.Fence) bool {
	return wasRefused(err, func(item values) bool { return newer(item, fence) })
}

// wasRefused reports whether the condition of an item refused the write, or the transaction, and
// the item is as the caller says: the two IsStale.
func wasRefused(err error, is func(values) bool) bool {
	if refusal, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return is(refusal.Item)
	}
	cancelled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(cancelled.CancellationReasons, func(r types.CancellationReason) bool {
		return aws.ToString(r.Code) == "ConditionalCheckFailed" && is(r.Item)
	})
}

// newer reports whether a caller's item was written with a larger fence. The two IsStale call it.
func newer(item values, fence lockstore.Fence) bool {
	seen, err := number(item, fenceAttribute, math.MaxInt64)
	return err == nil && lockstore.Fence(seen) > fence
}

const (
	// ifHolds is true if the lease with this fence has the key alone. A revoked lease does not.
	ifHolds = "#fence = :fence AND attribute_exists(#owner) AND #owner <> :closed AND #owner <> :shared AND attribute_not_exists(#revoked)"
	// ifShares is true if it is one of several, see sharedLease.
	ifShares = "#owner = :shared AND contains(#holders, :lease)"
)

// StillHeld is a condition for TransactWriteItems: in the store's table, fence still
// holds the lock of key, alone or with others. DynamoDB then applies the other writes of the transaction only
// if no other owner has been granted the key. Items need no fence attribute for it. See
// Store.IsStale for the refusal.
//
// StillHeld needs dynamodb:ConditionCheckItem on the lock table. A table with
// multi-Region strong consistency has no transactions; use Fenced there.
func (s *Store) StillHeld(key string, fence lockstore.Fence) types.TransactWriteItem {
	t := s.table
	i := t.encodeWrite(key, write{
		conditions: []string{"(" + ifHolds + " OR " + ifShares + ")"},
		values:     values{":fence": integer(fence), ":closed": text(closedOwner), ":shared": text(sharedOwner), ":lease": text(fmt.Sprintf(`{"fence":%d,`, fence))},
	})
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: i.TableName, Key: i.Key, ConditionExpression: i.ConditionExpression,
		ExpressionAttributeNames: i.ExpressionAttributeNames, ExpressionAttributeValues: i.ExpressionAttributeValues,
		ReturnValuesOnConditionCheckFailure: i.ReturnValuesOnConditionCheckFailure,
	}}
}

// CompleteItem is a Complete for a transaction of the caller's own, with TransactWriteItems: the
// effect of the work and its result are written together, or none of them. The transaction is
// cancelled if fence does not hold the lock of key any more: when a result is stored already, for
// example. It is also cancelled if the lease has MaxHolders above 1. See IsStale for the refusal. A Complete of the same lease afterwards returns nil.
// Nobody wakes the parked owners of the key: the answer to a transaction does not name them.
//
// The condition never holds if lockstore.ValidateResolveEffect refuses key, fence, result or d, or if the row has
// no time to live of the store's name, see Options.TTL. The end is written by the local clock, as
// the replies to this Store have corrected it; the reply to the transaction does not. So the key
// is closed for less than d if that clock is behind by more than skew + 1 s.
//
// CompleteItem needs dynamodb:UpdateItem on the lock table. A table with multi-Region strong
// consistency has no transactions.
func (s *Store) CompleteItem(key string, fence lockstore.Fence, result []byte, d time.Duration) types.TransactWriteItem {
	t := s.table
	opens := t.expiresAt(t.clock.read(), d)
	w := write{
		becomes: values{
			attrOwner: text(closedOwner), attrExpires: millis(opens), attrEndedFence: integer(fence), attrHow: integer(rules.Completed),
			attrQueue: nil, attrStarted: nil, attrHandedOver: nil,
			attrTTL: sweepTime(opens.Add(idleRow), fence), // a day more: the clock of the writer may be off
		},
		set:        []string{"#ended = #owner"},
		conditions: []string{ifHolds, sound},
		values:     values{":fence": integer(fence), ":closed": text(closedOwner), ":shared": text(sharedOwner), ":last": integer(maxMilli)},
	}
	if len(result) > 0 {
		w.becomes[attrResult], w.becomes[attrSize] = &types.AttributeValueMemberB{Value: result}, integer(len(result))
	}
	if lockstore.ValidateResolveEffect(key, fence, result, d) != nil {
		w.require("attribute_not_exists(#fence)")
	}
	i := t.encodeWrite(key, w)
	return types.TransactWriteItem{Update: &i}
}

// IsStale reports what the function IsStale reports, and also whether err cancels a transaction
// because StillHeld or CompleteItem was refused: the lock is released, revoked, completed (also
// without a result) or granted to another owner. One of several is enough. It is false if
// StillHeld or CompleteItem was refused because the key has no row, or a row without this store's
// time to live, see Options.TTL.
func (s *Store) IsStale(err error, fence lockstore.Fence) bool {
	_, inTransaction := errors.AsType[*types.TransactionCanceledException](err)
	return wasRefused(err, func(item values) bool {
		return newer(item, fence) || inTransaction && s.table.names.ended(item, fence)
	})
}

// ended reports whether an item is a lock row in which fence does not hold the lock. Store.IsStale calls it.
func (n names) ended(item values, fence lockstore.Fence) bool {
	seen, err := n.decode("", item)
	held := slices.ContainsFunc(seen.Holders, func(h rules.Holder) bool { return h.Fence == fence && !h.Revoked })
	return n.is(item) && err == nil && !held
}
