package dynamostore

import (
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The attributes of a lock row. Some of the names are reserved words, so an expression
// writes each name with a '#'. #key and #ttl are attributes that the table names.
const (
	attrKey       = "key"       // S, partition key, see names
	attrOwner     = "owner"     // S, only during a lease or while the key is kept
	attrFence     = "fence"     // N, of the last grant or abandon; every lock row has it
	attrExpires   = "expires"   // N, milliseconds since 1970: the end of the lease, or of the time for which the key is kept; of a free key, since when it is free
	attrReleased  = "released"  // S, the last owner whose lease was ended by a request
	attrAbandoned = "abandoned" // S, the last owner that abandoned an acquire and had no lease
	attrHolder    = "holder"    // S, for people
	attrQueue     = "queue"     // L of S, the owners that wait, in the order of arrival
	attrFreed     = "freed"     // N, milliseconds since 1970: since when the row of a dead holder counts as free, if somebody has left its queue
	attrBegun     = "begun"     // N, seconds since 1970: the ttl of a lease under which the work has begun
	attrKept      = "kept"      // B, the answer of the work, if there is one
	attrSettled   = "settled"   // N, the fence of the last lease in whose place an operator has kept an answer
	attrTTL       = "ttl"       // N, seconds since 1970: when DynamoDB may delete an unused row, see names
)

// lockAttributes are the attributes whose names no table decides.
var lockAttributes = []string{attrOwner, attrFence, attrExpires, attrReleased, attrAbandoned, attrHolder, attrQueue, attrFreed, attrBegun, attrKept, attrSettled}

// closedOwner is the owner in the row of a key that is kept, also without an answer: that is a
// cooldown. No request has this owner, because it has spaces.
const closedOwner = "closed to all"

// maxMilli is the end of the year 9999. No clock writes a later time.
const maxMilli = 253_402_300_799_999

// row is a decoded lock row; the zero row is one that does not exist.
type row struct {
	owner               lockstore.Owner // "" when free
	fence               lockstore.Fence
	expires             time.Time
	released, abandoned lockstore.Owner
	holder              lockstore.HolderInfo
	freed               time.Time // since when the key counts as free; zero when the row does not say
	queue               []lockstore.Owner
	damaged             bool // the queue is, and counts as none
	begun               bool
	kept                []byte
	settled             bool // by an operator, who has kept something in the place of the last lease
}

// ended reports whether the row has a mark of an owner whose acquisition has ended.
func (r row) ended(o lockstore.Owner) bool { return r.released == o || r.abandoned == o }

// decode reads a row from a reply. The error matches lockstore.ErrCorrupt if the row is
// damaged, or if this store did not write it.
func decode(key string, item map[string]types.AttributeValue) (row, error) {
	if len(item) == 0 {
		return row{}, nil
	}
	var r row
	fence, err := number(item, attrFence, maxMilli*1000)
	if err != nil {
		return row{}, corrupt(key, err)
	}
	r.fence = lockstore.Fence(fence)
	// A value of another type is no owner: owners are compared whole.
	for name, mark := range map[string]*lockstore.Owner{attrReleased: &r.released, attrAbandoned: &r.abandoned} {
		if owner, ok := item[name].(*types.AttributeValueMemberS); ok {
			*mark = lockstore.Owner(owner.Value)
		}
	}
	r.queue, r.damaged = decodeQueue(item[attrQueue])
	if item[attrOwner] == nil {
		if freed, err := number(item, attrExpires, maxMilli); err == nil {
			r.freed = time.UnixMilli(freed)
		}
		return r, nil
	}
	owner, ok := item[attrOwner].(*types.AttributeValueMemberS)
	if !ok || owner.Value == "" {
		return row{}, corrupt(key, fmt.Errorf("the attribute %q is not a text", attrOwner))
	}
	r.owner = lockstore.Owner(owner.Value)
	expires, err := number(item, attrExpires, maxMilli)
	if err != nil {
		return row{}, corrupt(key, err)
	}
	r.expires = time.UnixMilli(expires)
	if freed, err := number(item, attrFreed, maxMilli); err == nil {
		r.freed = time.UnixMilli(freed)
	}
	r.begun = item[attrBegun] != nil
	if kept, ok := item[attrKept].(*types.AttributeValueMemberB); ok {
		r.kept = kept.Value
	}
	settled, err := number(item, attrSettled, maxMilli*1000)
	r.settled = err == nil && lockstore.Fence(settled) == r.fence
	if holder, ok := item[attrHolder].(*types.AttributeValueMemberS); ok {
		r.holder = lockstore.DecodeHolderInfo(holder.Value)
	}
	return r, nil
}

func decodeQueue(v types.AttributeValue) (owners []lockstore.Owner, damaged bool) {
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
		owners = append(owners, lockstore.Owner(owner.Value))
	}
	return owners, false
}

func number(item map[string]types.AttributeValue, name string, most int64) (int64, error) {
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

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func integer(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func millis(t time.Time) types.AttributeValue { return integer(t.UnixMilli()) }

func ownerText(o lockstore.Owner) types.AttributeValue { return text(string(o)) }

func fenceNumber(f lockstore.Fence) types.AttributeValue { return integer(int64(f)) }

// sweepTime is the ttl attribute of a row that is used until t.
func sweepTime(t time.Time) types.AttributeValue { return integer(t.Add(idleRow).Unix() + 1) }
