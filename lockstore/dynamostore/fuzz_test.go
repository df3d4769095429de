package dynamostore_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// FuzzRow puts any row into the table. A request that says that the row is damaged leaves it as it is, no error has an owner in
// it, and the fence of a grant is above that of the row (F53 F54 M40).
func FuzzRow(f *testing.F) {
	const owner = "OWNEROWNEROWNEROWNEROWNER1"
	service := fakedynamo.New(table)
	store, rows := newStore(f, service, 0, dynamostore.Options{}), fakeRows{service}
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1))
		row := item{"ttl": n("1")}
		texts := []string{owner, dynamostore.ClosedOwner, dynamostore.SharedOwner, "", "soon", `[{"fence":7,"owner":"a","max":2}]`}
		numbers := []string{"0", "1", "7", "-7", "7.5", "4102444800000", "253402300799999", "253402300800000", "99999999999999999999999999999999999999"}
		for _, name := range strings.Fields("owner fence lastFence expires handedOver revoked started holders text ended endedFence how abandoned result size queue") {
			switch random.IntN(6) {
			case 0:
				row[name] = s(texts[random.IntN(len(texts))])
			case 1, 2:
				row[name] = n(numbers[random.IntN(len(numbers))])
			case 3:
				row[name] = []types.AttributeValue{listOf(), listOf(placeOf(owner, nil)...), listOf(s("a")), &types.AttributeValueMemberNULL{Value: true}}[random.IntN(4)]
			}
		}
		for what, ask := range methods(store, lockstore.Lease{Key: key, Owner: owner, Fence: 7}) {
			rows.put(t, key, row)
			before := rows.get(t, key)
			err := ask(t.Context())
			if err != nil {
				require.NotContains(t, err.Error(), owner, what)
			}
			if errors.Is(err, lockstore.ErrCorrupt) {
				require.Equal(t, dump(before), dump(rows.get(t, key)), what)
			}
		}
		rows.put(t, key, row)
		if lease, err := store.Acquire(t.Context(), request(time.Minute)); err == nil {
			for _, name := range []string{"fence", "lastFence"} {
				if v, ok := row[name].(*types.AttributeValueMemberN); ok && len(v.Value) < 12 {
					require.Greater(t, int64(lease.Fence), number(t, rows.get(t, key), "fence")-1)
				}
			}
		}
	})
}
