package dynamostore

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

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
	e := t.names.expressions(write{
		conditions: []string{"(" + ifHolds + " OR " + ifShares + ")"},
		names:      []string{attrOwner, attrFence, attrRevoked, attrHolders},
		values:     values{":fence": fenceNumber(fence), ":closed": text(closedOwner), ":shared": text(sharedOwner), ":lease": text(fmt.Sprintf(`{"fence":%d,`, fence))},
	})
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName:                           &t.name,
		Key:                                 t.names.row(key),
		ConditionExpression:                 &e.condition,
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}

// CompleteItem is a Complete for a transaction of the caller's own, with TransactWriteItems: the
// effect of the work and its result are written together, or none of them. The transaction is
// cancelled if fence does not hold the lock of key any more: when a result is stored already, for
// example. It is also cancelled if the lease has MaxHolders above 1. See IsStale for the refusal. A Complete of the same lease afterwards returns nil.
// Nobody wakes the parked owners of the key: the answer to a transaction does not name them.
//
// The condition never holds if lockstore.Store.Complete refuses result or d, or if the row has
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
			attrOwner: text(closedOwner), attrExpires: millis(opens), attrEndedFence: fenceNumber(fence), attrHow: integer(int64(rules.Completed)),
			attrQueue: nil, attrStarted: nil, attrHandedOver: nil,
			attrTTL: sweepTime(opens.Add(idleRow), fence), // a day more: the clock of the writer may be off
		},
		set:        []string{"#ended = #owner"},
		conditions: []string{ifHolds, sound},
		names:      []string{attrEnded, attrFence, attrRevoked},
		values:     values{":fence": fenceNumber(fence), ":closed": text(closedOwner), ":shared": text(sharedOwner), ":last": integer(maxMilli)},
	}
	if len(result) > 0 {
		w.becomes[attrResult], w.becomes[attrSize] = &types.AttributeValueMemberB{Value: result}, integer(int64(len(result)))
	}
	if lockstore.ValidateResolveEffect(key, fence, result, d) != nil {
		w.require("attribute_not_exists(#fence)")
	}
	e := t.names.expressions(w)
	return types.TransactWriteItem{Update: &types.Update{
		TableName:                           &t.name,
		Key:                                 t.names.row(key),
		UpdateExpression:                    &e.update,
		ConditionExpression:                 &e.condition,
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
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

// ended reports whether an item is a lock row in which fence does not hold the lock.
func (n names) ended(item values, fence lockstore.Fence) bool {
	seen, err := decode("", item)
	held := slices.ContainsFunc(seen.Holders, func(h rules.Holder) bool { return h.Fence == fence && !h.Revoked })
	return n.is(item) && err == nil && !held
}
