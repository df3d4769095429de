package dynamostore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

func TestCompleteItemOnTheFake(t *testing.T) {
	service := fakedynamo.New(table, dataTable)
	testCompleteItem(t, dynamostore.ClientOver(service, fakeEndpoint, 0))
}

// testCompleteItem runs on DynamoDB Local, too, see TestOnDynamoDBLocal.
func testCompleteItem(t *testing.T, client *dynamodb.Client) {
	store, err := dynamostore.New(client, table, dynamostore.Options{})
	require.NoError(t, err)
	ctx, result := t.Context(), []byte("201\n\x00")
	transact := func(account string, lease lockstore.Lease, data []byte, d time.Duration) error {
		_, err := client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
			{Update: &types.Update{
				TableName: aws.String(dataTable), Key: item{"key": s(account)},
				UpdateExpression: aws.String("ADD charges :one"), ExpressionAttributeValues: item{":one": n("1")},
			}},
			store.CompleteItem(lease.Key, lease.Fence, data, d),
		}})
		return err
	}
	charges := func(account string) int64 {
		out, err := client.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: aws.String(dataTable), Key: item{"key": s(account)}, ConsistentRead: aws.Bool(true),
		})
		require.NoError(t, err)
		if out.Item == nil {
			return 0
		}
		return number(t, out.Item, "charges")
	}
	lock := func(account string) (lockstore.Request, lockstore.Lease) {
		req := lockstore.Request{Key: "completed/" + account, Owner: lockstore.NewOwner(), TTL: time.Minute}
		lease, err := store.Acquire(ctx, req)
		require.NoError(t, err)
		return req, lease
	}
	completed := func(t *testing.T, key string, data []byte) {
		t.Helper()
		_, err := store.Acquire(ctx, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		refusal, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, string(data), string(refusal.Result))
		require.InDelta(t, time.Hour.Seconds(), refusal.Remaining.Seconds(), 10)
	}

	t.Run("F13 the effect and the result are written together, once", func(t *testing.T) {
		for _, started := range []bool{false, true} {
			account := fmt.Sprint("once/", started)
			_, lease := lock(account)
			if started {
				require.NoError(t, store.MarkStarted(ctx, lease))
			}
			require.NoError(t, transact(account, lease, result, time.Hour))
			err := transact(account, lease, result, time.Hour)
			require.True(t, store.IsStale(err, lease.Fence), "%v", err)
			require.NoError(t, store.Complete(ctx, lease, []byte("another"), time.Hour), "the guard's own Complete finds it done")
			require.NoError(t, store.Release(ctx, lease))
			completed(t, lease.Key, result)
			require.Equal(t, int64(1), charges(account))
		}
	})
	t.Run("F12 not after the lease", func(t *testing.T) {
		_, old := lock("late")
		require.NoError(t, store.Release(ctx, old))
		require.True(t, store.IsStale(transact("late", old, result, time.Hour), old.Fence))
		_, lease := lock("late")
		require.True(t, store.IsStale(transact("late", old, result, time.Hour), old.Fence))
		require.NoError(t, store.Complete(ctx, lease, result, time.Hour))
		require.True(t, store.IsStale(transact("late", lease, result, time.Hour), lease.Fence))
		require.Zero(t, charges("late"))
	})
	t.Run("not after a revoke", func(t *testing.T) {
		for _, started := range []bool{false, true} {
			account := fmt.Sprint("revoked/", started)
			_, lease := lock(account)
			if started {
				require.NoError(t, store.MarkStarted(ctx, lease))
			}
			_, err := store.Revoke(ctx, lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence})
			require.NoError(t, err)
			require.True(t, store.IsStale(transact(account, lease, result, time.Hour), lease.Fence))
			_, err = client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
				store.StillHeld(lease.Key, lease.Fence),
			}})
			require.True(t, store.IsStale(err, lease.Fence), "%v", err)
			require.Zero(t, charges(account))
		}
	})
	t.Run("F48 not with arguments out of bounds", func(t *testing.T) {
		_, lease := lock("bad")
		for _, d := range []time.Duration{0, -time.Hour, lockstore.MaxResultTime + 1} {
			require.Error(t, transact("bad", lease, result, d))
		}
		require.Error(t, transact("bad", lease, make([]byte, lockstore.MaxResultBytes+1), time.Hour))
		require.Zero(t, charges("bad"))
		data := bytes.Repeat([]byte{7}, lockstore.MaxResultBytes)
		require.NoError(t, transact("bad", lease, data, time.Hour))
		completed(t, lease.Key, data)
	})
}

// A Complete of a process whose clock is wrong costs a second request.
func TestCompleteWithAWrongClock(t *testing.T) {
	for _, offset := range []time.Duration{-time.Hour, -3 * time.Second, 0, 3 * time.Second, time.Hour} {
		bubble(t, fmt.Sprint(offset), func(t *testing.T) {
			service := fakedynamo.New(table)
			right, wrong := newStore(t, service, 0, dynamostore.Options{}), newStore(t, service, offset, dynamostore.Options{})
			lease, err := right.Acquire(t.Context(), request(time.Minute))
			require.NoError(t, err)
			require.NoError(t, wrong.MarkStarted(t.Context(), lease))
			wrong = newStore(t, service, offset, dynamostore.Options{}) // whose clock no reply has corrected
			start, before := time.Now(), service.Actions()["UpdateItem"]
			require.NoError(t, wrong.Complete(t.Context(), lease, nil, time.Minute))
			want := 1
			if offset != 0 {
				want = 2
			}
			require.Equal(t, want, service.Actions()["UpdateItem"]-before, "requests")
			expires := time.UnixMilli(number(t, fakeRows{service}.get(t, key), "expires"))
			require.False(t, expires.Add(time.Second).Before(start.Add(time.Minute)), "early")
			require.False(t, expires.After(start.Add(time.Minute+2*dynamostore.DefaultSkew+time.Second)), "late")
		})
	}
}

// A clock that is wrong by at most a quarter of the time is good enough.
func TestEdgeOfTheCorrectionOfAComplete(t *testing.T) {
	for behind, want := range map[time.Duration]int{500 * time.Millisecond: 1, 501 * time.Millisecond: 2} {
		bubble(t, fmt.Sprint(behind), func(t *testing.T) {
			service := fakedynamo.New(table)
			lease, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(time.Minute))
			require.NoError(t, err)
			before := service.Requests()
			require.NoError(t, newStore(t, service, -behind, dynamostore.Options{}).Complete(t.Context(), lease, nil, 2*time.Second))
			require.Equal(t, want, service.Requests()-before)
		})
	}
}

// The result is stored, but its end is wrong, and the second request does not mend it.
func TestCompleteThatIsNotCorrected(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(*fakedynamo.Service) fakedynamo.Fault
		says  string
	}{
		"the service refuses it": {func(*fakedynamo.Service) fakedynamo.Fault {
			return fakedynamo.Fault{Refuse: &fakedynamo.Failure{Status: 400, Code: "AccessDeniedException", Message: "not allowed"}}
		}, "not allowed"},
		"the row has changed since": {func(service *fakedynamo.Service) fakedynamo.Fault {
			row := service.Row(table, key)
			row["fence"] = fakedynamo.Value{"N": "8"}
			service.SetRow(table, key, row)
			return fakedynamo.Fault{}
		}, "not for its time"},
	} {
		bubble(t, name, func(t *testing.T) {
			service := fakedynamo.New(table)
			lease, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(time.Minute))
			require.NoError(t, err)
			service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
				if r.N == 3 {
					return c.fault(service)
				}
				return fakedynamo.Fault{}
			}
			err = newStore(t, service, time.Hour, dynamostore.Options{}).Complete(t.Context(), lease, nil, time.Minute)
			require.ErrorContains(t, err, c.says)
			require.True(t, isUnknown(err), "%v", err)
			require.Equal(t, 3, service.Requests())
		})
	}
}

// The end of what a transaction completes is d and the skew after the local time.
func TestEndInATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		update := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{}).CompleteItem(key, 7, nil, time.Hour).Update
		require.Equal(t, time.Now().Add(time.Hour+dynamostore.DefaultSkew).UnixMilli(), number(t, update.ExpressionAttributeValues, ":opens"))
	})
}

// Another request for one of the items cancels a transaction, and the client sends it again. It does not
// if a condition was false.
func TestTransactionConflict(t *testing.T) {
	for last, sent := range map[string]int{"None": 3, "TransactionConflict": 3, "ConditionalCheckFailed": 2} {
		bubble(t, "F42 "+last, func(t *testing.T) {
			service := fakedynamo.New(table)
			store := newStore(t, service, 0, dynamostore.Options{})
			lease := held(t, store)
			service.Fault = on(fakedynamo.Fault{Refuse: &fakedynamo.Failure{
				Status: 400, Code: "TransactionCanceledException", Reasons: []any{map[string]string{"Code": "TransactionConflict"}, map[string]string{"Code": last}},
			}}, 2)
			err := transact(service, store.CompleteItem(key, lease.Fence, []byte("result"), time.Hour))(t.Context())
			require.Equal(t, sent == 3, err == nil, "%v", err)
			require.EqualValues(t, sent, service.Requests())
			require.False(t, store.IsStale(err, lease.Fence))
		})
	}
}

// The reply to the first write that completes is lost, and the SDK sends it again.
func TestCompleteWithAWrongClockAndALostReply(t *testing.T) {
	for _, offset := range []time.Duration{-4 * time.Minute, 4 * time.Minute} {
		bubble(t, "F25 "+fmt.Sprint(offset), func(t *testing.T) {
			service := fakedynamo.New(table)
			lease, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(time.Minute))
			require.NoError(t, err)
			wrong := newStore(t, service, offset, dynamostore.Options{})
			service.Fault = on(fakedynamo.Fault{LoseReply: io.ErrUnexpectedEOF}, 2)
			start := time.Now()
			require.NoError(t, wrong.Complete(t.Context(), lease, nil, time.Minute))
			require.Greater(t, service.Requests(), 2)
			expires := time.UnixMilli(number(t, fakeRows{service}.get(t, key), "expires"))
			require.False(t, expires.Add(time.Second).Before(start.Add(time.Minute)), "early: %v", expires.Sub(start))
			require.False(t, expires.After(start.Add(time.Minute+2*dynamostore.DefaultSkew+time.Second)), "late: %v", expires.Sub(start))
		})
	}
}

// A listing shows which keys are completed, and leaves their results in the table.
func TestListReadsNoResult(t *testing.T) {
	service := fakedynamo.New(table)
	var scans []string
	store := newStoreOver(t, dynamostore.ClientOver(transport(func(r *http.Request) (*http.Response, error) {
		if body := string(bodyOf(t, r)); strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".Scan") {
			scans = append(scans, body)
		}
		return service.RoundTrip(r)
	}), fakeEndpoint, 0), 0, dynamostore.Options{})
	lease, err := store.Acquire(t.Context(), request(time.Minute))
	require.NoError(t, err)
	require.NoError(t, store.Complete(t.Context(), lease, []byte("result"), time.Minute))
	found, damaged := 0, 0
	service.SetRow(table, "damaged", fakedynamo.Item{"fence": {"N": "-1"}})
	require.NoError(t, store.List(t.Context(), "", func(p lockstore.Page) error {
		damaged += p.Damaged
		require.Equal(t, []string{"damaged"}, p.DamagedNames)
		for _, status := range p.Keys {
			require.Equal(t, lockstore.Completed, status.State)
			found++
		}
		return nil
	}))
	require.Equal(t, 1, found)
	require.Equal(t, 1, damaged)
	require.Len(t, scans, 1)
	require.Contains(t, scans[0], "ProjectionExpression")
	require.NotContains(t, scans[0], "kept")
}
