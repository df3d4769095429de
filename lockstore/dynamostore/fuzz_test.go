package dynamostore_test

import (
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// How a fuzzed attribute is stored.
const (
	absent uint8 = iota
	asText
	asNumber
	sinceNow // a number: this much after the present time
	asBytes
	asNull
	kinds
)

var numberForm = regexp.MustCompile(`^-?\d{1,38}(\.\d{1,20})?$`)

// attribute returns the value, and as whole the value of a whole number >= 0.
func attribute(kind uint8, value string, now int64) (v types.AttributeValue, whole *big.Int, ok bool) {
	switch kind % kinds {
	case asText:
		return s(value), nil, true
	case asBytes:
		return &types.AttributeValueMemberB{Value: []byte(value)}, nil, true
	case asNull:
		return &types.AttributeValueMemberNULL{Value: true}, nil, true
	case sinceNow:
		offset, err := strconv.ParseInt(value, 10, 54)
		if err != nil {
			return nil, nil, false
		}
		value = strconv.FormatInt(now+offset, 10)
		fallthrough
	case asNumber:
		if !numberForm.MatchString(value) {
			return nil, nil, false // no table has it
		}
		r, ok := new(big.Rat).SetString(value)
		if ok && r.IsInt() && r.Sign() >= 0 {
			whole = r.Num()
		}
		return n(value), whole, ok
	}
	return nil, nil, true
}

// FuzzRow puts any row into the table. Each request either refuses the row and does not
// change it, or reads it correctly. The key of a row with an owner is not granted before
// the end in the row.
func FuzzRow(f *testing.F) {
	service := fakedynamo.New(table)
	store, rows := newStore(f, service, 0, dynamostore.Options{}), fakeRows{service}
	// A store that has granted a lease abandons a key by another write than a new one.
	_, err := store.Acquire(f.Context(), lockstore.Request{Key: "other", Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(f, err)

	const owner, holder = "OWNEROWNEROWNEROWNEROWNER1", "1790942400123\tid\tname"
	f.Add(sinceNow, "-5000000", asText, owner, sinceNow, "60000", absent, "", asText, holder)
	f.Add(sinceNow, "-5000000", asText, owner, sinceNow, "-60000", asText, "RELEASED", asText, holder)
	f.Add(sinceNow, "-5000000", absent, "", absent, "", asText, owner, absent, "")
	f.Add(sinceNow, "5000000", absent, "", absent, "", asText, owner, absent, "")
	f.Add(sinceNow, "5000000", asText, dynamostore.ClosedOwner, sinceNow, "60000", asText, owner, asNull, "")
	f.Add(asNumber, "0", asText, owner, asNumber, "0", absent, "", absent, "")
	f.Add(asNumber, "253402300799998000", asText, owner, asNumber, "253402300799999", absent, "", absent, "")
	f.Add(asNumber, "253402300799999001", absent, "", absent, "", absent, "", absent, "")
	f.Add(asNumber, "7", asText, owner, asNumber, "253402300800000", absent, "", absent, "")
	f.Add(absent, "", absent, "", absent, "", absent, "", absent, "")
	f.Add(asText, "7", absent, "", absent, "", absent, "", absent, "")
	f.Add(asText, "7", asText, owner, sinceNow, "60000", absent, "", absent, "")
	f.Add(asNull, "", absent, "", absent, "", absent, "", absent, "")
	f.Add(asBytes, "7", asText, owner, absent, "", absent, "", absent, "")
	f.Add(asNumber, "-7", asText, owner, sinceNow, "-60000", absent, "", absent, "")
	f.Add(asNumber, "-7", absent, "", absent, "", absent, "", absent, "")
	f.Add(asNumber, "0.1", absent, "", sinceNow, "0", absent, "", absent, "")
	f.Add(asNumber, "7.5", asText, owner, sinceNow, "-60000", absent, "", absent, "")
	f.Add(asNumber, "99999999999999999999999999999999999999", absent, "", absent, "", absent, "", absent, "")
	f.Add(asNumber, "7", asText, "", sinceNow, "-60000", absent, "", absent, "")
	f.Add(asNumber, "7", asNumber, "7", sinceNow, "-60000", absent, "", absent, "")
	f.Add(asNumber, "7", asBytes, owner, sinceNow, "-60000", absent, "", absent, "")
	f.Add(asNumber, "7", asNull, "", sinceNow, "-60000", absent, "", absent, "")
	f.Add(asNumber, "7", asText, owner, absent, "", absent, "", absent, "")
	f.Add(asNumber, "7", asText, owner, asText, "soon", absent, "", absent, "")
	f.Add(asNumber, "7", asText, owner, asNumber, "-1", absent, "", absent, "")
	f.Add(asNumber, "7", asText, owner, asNumber, "1.5", absent, "", absent, "")
	f.Add(asNumber, "7", asText, owner, sinceNow, "-2000", asNumber, "4", asNumber, "5")
	f.Add(asNumber, "7", asText, "a b\x00\n", sinceNow, "60000", asBytes, "x", asText, "a\nb\x00")
	f.Fuzz(func(t *testing.T, fenceKind uint8, fence string, ownerKind uint8, owner string, endKind uint8, end string, endedKind uint8, ended string, holderKind uint8, holder string) {
		const key = "fuzz"
		ctx, now := t.Context(), time.Now()
		row := item{"ttl": n("1")}
		add := func(name string, kind uint8, value string, now int64) *big.Int {
			v, whole, ok := attribute(kind, strings.ToValidUTF8(value, "?"), now)
			if !ok {
				t.Skip("no such number")
			}
			if v != nil {
				row[name] = v
			}
			return whole
		}
		lastFence := "fence"
		if ownerKind%kinds == absent {
			lastFence = "last"
		}
		grant := add(lastFence, fenceKind, fence, now.UnixMicro())
		add("owner", ownerKind, owner, 0)
		expires := add("expires", endKind, end, now.UnixMilli())
		add("released", endedKind, ended, 0)
		add("holder", holderKind, holder, 0)

		const lastMilli = 253_402_300_799_999
		within := func(v *big.Int, most int64) bool { return v != nil && v.Cmp(big.NewInt(most)) <= 0 }
		if within(grant, lastMilli*1000) && !within(grant, lastMilli*1000-100) {
			t.Skip("the next fence is out of bounds")
		}
		had, isText := row["owner"].(*types.AttributeValueMemberS)
		damaged := !within(grant, lastMilli*1000) || row["owner"] != nil && (!isText || had.Value == "" || had.Value != dynamostore.ClosedOwner && grant.Sign() == 0 || !within(expires, lastMilli))
		var over, live bool // near the end both are false
		if row["owner"] != nil && !damaged {
			taken := time.UnixMilli(expires.Int64()).Add(dynamostore.DefaultSkew + time.Second)
			over, live = now.After(taken.Add(2*time.Second)), now.Before(taken)
		}
		// A damaged row without an owner is granted if its fence is a number: the condition of
		// the write cannot check more, and nobody holds the key.
		countsAsFree := false
		if number, ok := row["last"].(*types.AttributeValueMemberN); ok && row["owner"] == nil {
			r, ok := new(big.Rat).SetString(number.Value)
			require.True(t, ok)
			ahead, _ := r.Sub(r, new(big.Rat).SetInt64(now.UnixMicro())).Float64() // microseconds
			if damaged && ahead >= 0 && ahead < 60e6 {
				t.Skip("too close to the time of the request")
			}
			countsAsFree = ahead < 0
		}

		before := ""
		same := func(what string) {
			t.Helper()
			require.Equal(t, before, dump(rows.get(t, key)), "%s changed the row", what)
		}
		me := lockstore.NewOwner()
		lease := lockstore.Lease{Key: key, Owner: me, Fence: 1}
		if !damaged {
			lease.Fence = max(1, lockstore.Fence(grant.Int64()))
		}
		for what, ask := range map[string]func() error{
			"Inspect": func() error {
				status, err := store.Inspect(ctx, key)
				if err == nil && row["owner"] != nil {
					require.True(t, status.State.Taken() || !live)
					require.False(t, status.State.Taken() && over)
				}
				return err
			},
			"Acquire": func() error {
				_, err := store.Acquire(ctx, lockstore.Request{Key: key, Owner: me, TTL: time.Minute})
				return err
			},
			"Renew":       func() error { _, err := store.Renew(ctx, lease, time.Minute); return err },
			"Release":     func() error { return store.Release(ctx, lease) },
			"MarkStarted": func() error { return store.MarkStarted(ctx, lease) },
			"Complete":    func() error { return store.Complete(ctx, lease, []byte("result"), time.Minute) },
			"abandon":     func() error { return store.Release(ctx, lockstore.Lease{Key: key, Owner: me}) },
			"abandon by a new process": func() error {
				return newStore(t, service, 0, dynamostore.Options{}).Release(ctx, lockstore.Lease{Key: key, Owner: me})
			},
		} {
			rows.put(t, key, row)
			before = dump(rows.get(t, key))
			err := ask()
			if err != nil && isText && len(had.Value) > 8 && !strings.Contains(holder, had.Value) {
				require.NotContains(t, err.Error(), had.Value, "M40")
			}
			free := row["owner"] == nil
			switch {
			case countsAsFree && what == "Acquire":
				require.NoError(t, err, what)
			case damaged:
				require.ErrorIs(t, err, lockstore.ErrCorrupt, "F53 F54 "+what)
				same(what)
			case what == "Inspect":
				require.NoError(t, err)
				same(what)
			case strings.HasPrefix(what, "abandon"):
				require.NoError(t, err)
				if !free { // it leaves a mark
					after := rows.get(t, key)
					for _, name := range []string{"owner", "fence", "expires"} {
						require.Equal(t, dump(item{name: row[name]}), dump(item{name: after[name]}), what)
					}
				}
			case what != "Acquire":
				require.ErrorIs(t, err, lockstore.ErrLost, what)
				same(what)
			case live:
				require.ErrorIs(t, err, lockstore.ErrRefused)
				same(what)
			case free || over:
				require.NoError(t, err)
				status, err := store.Inspect(ctx, key)
				require.NoError(t, err)
				require.Equal(t, lockstore.Held, status.State)
				require.Greater(t, int64(status.Fence), grant.Int64(), "the fence grows")
			}
		}
	})
}

// FuzzKeys locks two different valid keys. They have two rows.
func FuzzKeys(f *testing.F) {
	service, store := newFake(f)
	for _, pair := range [][2]string{
		{"a", "A"}, {"a", "a "}, {"a/b", "a%2Fb"}, {"é", "e\u0301"}, {"\ufffd", "?"}, {"<", "\\u003c"}, {`"`, `\"`}, {"\u00a0", " "},
		{strings.Repeat("k", 1023) + "a", strings.Repeat("k", 1023) + "b"}, {"\n", "a"},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		if one == two || lockstore.ValidateKey(one) != nil || lockstore.ValidateKey(two) != nil {
			t.Skip("not two keys")
		}
		defer service.SetRow(table, one, nil)
		defer service.SetRow(table, two, nil)
		first := acquired(t, store, lockstore.Request{Key: one, Owner: lockstore.NewOwner(), TTL: time.Minute})
		second := acquired(t, store, lockstore.Request{Key: two, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, store.Release(t.Context(), first))
		_, err := store.Renew(t.Context(), second, time.Minute)
		require.NoError(t, err)
		require.NotNil(t, service.Row(table, one), "M29")
		require.NotNil(t, service.Row(table, two))
	})
}
