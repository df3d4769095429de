package dynamostore

import (
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// The attributes of a lock row. Some of the names are reserved words, so an expression
// writes each name with a '#'. #key and #ttl are attributes that the table names.
const (
	attrKey       = "key"       // S, partition key, see names
	attrOwner     = "owner"     // S, only during a lease or while the key is closed
	attrFence     = "fence"     // N, of the last grant or abandon; every lock row has it
	attrExpires   = "expires"   // N, milliseconds since 1970: the end of the lease, or of the time for which the key is closed; of a free key, since when it is free
	attrReleased  = "released"  // S, the last owner whose lease was ended by a request
	attrAbandoned = "abandoned" // S, the last owner that abandoned an acquire and had no lease
	attrHolder    = "holder"    // S, for people
	attrQueue     = "queue"     // L of S, the owners that wait, in the order of arrival
	attrFreed     = "freed"     // N, milliseconds since 1970: since when the row of a dead holder counts as free, if somebody has left its queue
	attrStarted   = "begun"     // N, seconds since 1970: the ttl of a lease under which the work has started
	attrResult    = "kept"      // B, the result of the work, if there is one
	attrSize      = "stored"    // N, the size of the result in bytes: a listing reads it in place of the result
	attrResolved  = "settled"   // N, the fence of the last lease in whose place an operator has stored a result
	attrTTL       = "ttl"       // N, seconds since 1970: when DynamoDB may delete an unused row, see names
)

// lockAttributes are the attributes whose names no table decides.
var lockAttributes = []string{attrOwner, attrFence, attrExpires, attrReleased, attrAbandoned, attrHolder, attrQueue, attrFreed, attrStarted, attrResult, attrSize, attrResolved}

// No request has these owners, because they have spaces.
const (
	closedOwner  = "closed to all"         // of a key that is completed, also without a result: that is a cooldown
	revokedOwner = "broken by an operator" // of a revoked lease
)

// maxMilli is the end of the year 9999. No clock writes a later time.
const maxMilli = 253_402_300_799_999

// row is a decoded lock row; the zero row is one that does not exist.
type row struct {
	owner               driver.Owner // "" when free
	fence               driver.Fence
	expires             time.Time
	released, abandoned driver.Owner
	holder              string
	freed               time.Time // since when the key counts as free; zero when the row does not say
	queue               []driver.Owner
	damaged             bool // the queue is, and counts as none
	started             bool
	completed           bool // with a result
	result              []byte
	resolved            bool // by an operator, who has stored something in the place of the last lease
}

// ended reports whether the row has a mark of an owner whose acquisition has ended.
func (r row) ended(o driver.Owner) bool { return r.released == o || r.abandoned == o }

// state is the state of a row with an owner, before its end.
func (r row) state() driver.State {
	switch {
	case r.owner == revokedOwner:
		return driver.Revoked
	case r.owner != closedOwner:
		return driver.Held
	case r.completed:
		return driver.Completed
	}
	return driver.Cooldown
}

// inDoubt reports whether a lease has ended whose work has started.
func (r row) inDoubt(date time.Time) bool {
	return r.started && r.owner != "" && r.owner != closedOwner && takeable(r, date)
}

// decode reads a row from a reply. The error matches lockstore.ErrCorrupt if the row is
// damaged, or if this store did not write it.
func decode(key string, item values) (row, error) {
	if len(item) == 0 {
		return row{}, nil
	}
	var r row
	fence, err := number(item, attrFence, maxMilli*1000)
	if err != nil {
		return row{}, corrupt(key, err)
	}
	r.fence = driver.Fence(fence)
	r.released, r.abandoned = driver.Owner(textOf(item[attrReleased])), driver.Owner(textOf(item[attrAbandoned]))
	r.queue, r.damaged = decodeQueue(item[attrQueue])
	if item[attrOwner] == nil {
		if freed, err := number(item, attrExpires, maxMilli); err == nil {
			r.freed = time.UnixMilli(freed)
		}
		return r, nil
	}
	if r.owner = driver.Owner(textOf(item[attrOwner])); r.owner == "" {
		return row{}, corrupt(key, fmt.Errorf("the attribute %q is not a text", attrOwner))
	}
	expires, err := number(item, attrExpires, maxMilli)
	if err != nil {
		return row{}, corrupt(key, err)
	}
	r.expires = time.UnixMilli(expires)
	if freed, err := number(item, attrFreed, maxMilli); err == nil {
		r.freed = time.UnixMilli(freed)
	}
	r.started = item[attrStarted] != nil
	if result, ok := item[attrResult].(*types.AttributeValueMemberB); ok {
		r.result = result.Value
	}
	r.completed = r.result != nil || item[attrSize] != nil
	resolved, err := number(item, attrResolved, maxMilli*1000)
	r.resolved = err == nil && driver.Fence(resolved) == r.fence
	r.holder = textOf(item[attrHolder])
	return r, nil
}

func decodeQueue(v types.AttributeValue) (owners []driver.Owner, damaged bool) {
	if v == nil {
		return nil, false
	}
	l, ok := v.(*types.AttributeValueMemberL)
	if !ok {
		return nil, true
	}
	for _, v := range l.Value {
		owner, ok := v.(*types.AttributeValueMemberS)
		if !ok {
			return nil, true
		}
		owners = append(owners, driver.Owner(owner.Value))
	}
	return owners, false
}

func number(item values, name string, most int64) (int64, error) {
	n, ok := item[name].(*types.AttributeValueMemberN)
	if !ok {
		return 0, fmt.Errorf("the attribute %q is missing or not a number", name)
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil || v < 0 || v > most {
		return 0, fmt.Errorf("the attribute %q is %.40s; want a whole number from 0 to %d", name, n.Value, most)
	}
	return v, nil
}

func corrupt(key string, cause error) error {
	return &failure{fmt.Sprintf("dynamostore: the row of key %q is not a lock row of this store, or it is damaged", key), lockstore.ErrCorrupt, cause}
}

// textOf is "" for a value that is no text.
func textOf(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func integer(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func millis(t time.Time) types.AttributeValue { return integer(t.UnixMilli()) }

func ownerText(o driver.Owner) types.AttributeValue { return text(string(o)) }

func fenceNumber(f driver.Fence) types.AttributeValue { return integer(int64(f)) }

// sweepTime is the ttl attribute of a row that is used until t.
func sweepTime(t time.Time) types.AttributeValue { return integer(t.Add(idleRow).Unix() + 1) }
