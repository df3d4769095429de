package dynamostore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The address of a parked owner has a row of its own, with the time to live, the address as "result" and its
// size as "size". Both requests are UpdateItem, which locking needs anyway: who may put or delete items could
// also replace or delete the row of a lock. So the row of an address that was taken stays, without the
// address, until its time to live deletes it.

// ifAddress is true for such a row. The size stays when the address is taken.
const ifAddress = "attribute_exists(#size)"

// addressEnd is how long the end of an address's row is: a newline, which no key of a lock has, and a hash.
const addressEnd = 1 + 2*sha256.Size

// addressRow is the name of the row of an owner's address. It begins with the key, so who may write rows of some keys
// only (dynamodb:LeadingKeys) may write those of their addresses, too. The owner is a secret, so the name has a hash of it. PutAddress and
// TakeAddress call it.
func (n names) addressRow(key string, owner driver.Owner) string {
	sum := sha256.Sum256([]byte(n.prefix + key + "\n" + string(owner)))
	key = key[:min(len(key), maxPartitionKey-len(n.prefix)-addressEnd)]
	return strings.ToValidUTF8(key, "") + "\n" + hex.EncodeToString(sum[:])
}

// isAddressRow is true for the name of such a row. List calls it, and leaves such rows out.
func isAddressRow(name string) bool {
	return len(name) >= addressEnd && name[len(name)-addressEnd] == '\n'
}

// PutAddress implements driver.Parker. It sends one write, and a second one if it replaces an address. Each write names the address
// that it replaces, or none: so a copy that arrives late changes nothing, unless the address was taken meanwhile. If somebody takes
// that address between the two, it begins again.
func (t *table) PutAddress(ctx context.Context, key string, owner driver.Owner, address driver.HiddenBytes, d time.Duration) error {
	w := write{
		row: t.names.addressRow(key, owner),
		becomes: values{
			attrResult: &types.AttributeValueMemberB{Value: address}, attrSize: integer(len(address)), attrTTL: integer(t.clock.read().Add(d).Unix() + 1),
		},
		expects:    values{attrResult: nil},
		conditions: []string{ifAddress},
		makesRow:   true,
	}
	for range maxWrites {
		r, err := t.update(ctx, key, w)
		if err != nil || r.applied {
			return err
		}
		kept, there := r.item[attrResult].(*types.AttributeValueMemberB)
		switch {
		case there && t.isOurs(r.item):
			w.makesRow, w.expects[attrResult] = false, kept
		case !w.makesRow && (len(r.item) == 0 || t.isTaken(r.item)): // taken, or deleted, since the last write
			w.makesRow, w.expects[attrResult] = true, nil
		default:
			return t.notOurs(key, r.item)
		}
	}
	return fmt.Errorf("dynamostore: key %q: not applied: others have changed the address of the parked owner meanwhile: %w", key, lockstore.ErrUnavailable)
}

// TakeAddress implements driver.Parker. It sends one write. If its reply is lost, so is the address.
func (t *table) TakeAddress(ctx context.Context, key string, owner driver.Owner) (driver.HiddenBytes, error) {
	r, err := t.update(ctx, key, write{
		row:        t.names.addressRow(key, owner),
		becomes:    values{attrResult: nil},
		conditions: []string{ifAddress, "attribute_type(#result, :binary)"},
		values:     values{":binary": text("B")},
		returns:    types.ReturnValueAllOld,
	})
	if err != nil {
		return nil, err
	}
	kept, there := r.item[attrResult].(*types.AttributeValueMemberB)
	taken := t.isTaken(r.item)
	switch {
	case r.applied && there:
		return kept.Value, nil
	case r.applied, taken && r.ambiguous:
		return nil, fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and the address of the parked owner is gone", key)
	case taken, len(r.item) == 0:
		return nil, nil
	}
	return nil, t.notOurs(key, r.item)
}

// isOurs says whether the row for an address is as this store writes it, but for the address. PutAddress and isTaken call it.
func (t *table) isOurs(item values) bool { return item[attrSize] != nil && item[t.names.ttl] != nil }

// isTaken says whether the row is one whose address was taken. PutAddress and TakeAddress call it.
func (t *table) isTaken(item values) bool { return t.isOurs(item) && item[attrResult] == nil }

// notOurs is the error of a row for an address that this store has not written. PutAddress and TakeAddress call it.
func (t *table) notOurs(key string, item values) error {
	if item[t.names.ttl] == nil {
		return t.names.wrongTTL(key, item)
	}
	return &failure{text: fmt.Sprintf("dynamostore: key %q: the row for the address of a parked owner is not of this store", key), class: lockstore.ErrCorrupt}
}
