package dynamostore_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// testCompleteItem runs on DynamoDB Local, see TestOnDynamoDBLocal.
func testCompleteItem(t *testing.T, client *dynamodb.Client) {
	store := appStore(t, client)
	ctx, result := t.Context(), []byte("201\n\x00")
	write := func(account string, lease lockstore.Lease, data []byte, d time.Duration) error {
		return transact(ctx, client, addsOne(dataTable, item{"key": s(account)}, "charges"), store.CompleteItem(lease.Key, lease.Fence, data, d))
	}
	lock := func(account string) lockstore.Lease {
		return acquired(t, store, lockstore.Request{Key: "completed/" + account, Owner: lockstore.NewOwner(), TTL: time.Minute})
	}
	data := realRows{client, dataTable, tableKey}
	completed := func(t *testing.T, key string, result []byte) {
		t.Helper()
		refused := refusal(t, store, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.Equal(t, string(result), string(refused.Result))
		require.InDelta(t, time.Hour.Seconds(), refused.StateEndsIn.Seconds(), 10)
	}

	t.Run("F13 the effect and the result are written together, once", func(t *testing.T) {
		for _, started := range []bool{false, true} {
			account := fmt.Sprint("once/", started)
			lease := lock(account)
			if started {
				require.NoError(t, store.MarkStarted(ctx, lease))
			}
			require.NoError(t, write(account, lease, result, time.Hour))
			err := write(account, lease, result, time.Hour)
			require.True(t, store.IsStale(err, lease.Fence), "%v", err)
			require.NoError(t, store.Complete(ctx, lease, []byte("another"), time.Hour), "the guard's own Complete finds it done")
			require.NoError(t, store.Release(ctx, lease))
			completed(t, lease.Key, result)
			require.Equal(t, int64(1), number(t, data.get(t, account), "charges"))
		}
	})
	t.Run("F12 not after the lease, and not after a revoke", func(t *testing.T) {
		stale := func(lease lockstore.Lease) {
			t.Helper()
			require.True(t, store.IsStale(write("late", lease, result, time.Hour), lease.Fence))
		}
		old := lock("late")
		require.NoError(t, store.Release(ctx, old))
		stale(old)
		lease := lock("late")
		stale(old)
		require.NoError(t, store.Complete(ctx, lease, result, time.Hour))
		stale(lease)
		for _, started := range []bool{false, true} {
			lease := lock(fmt.Sprint("revoked/", started))
			if started {
				require.NoError(t, store.MarkStarted(ctx, lease))
			}
			_, err := store.Revoke(ctx, lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence})
			require.NoError(t, err)
			stale(lease)
			err = transact(ctx, client, store.StillHeld(lease.Key, lease.Fence))
			require.True(t, store.IsStale(err, lease.Fence), "%v", err)
		}
		require.Nil(t, data.get(t, "late"))
	})
	t.Run("F48 not with arguments out of bounds", func(t *testing.T) {
		lease := lock("bad")
		for _, d := range []time.Duration{0, -time.Hour, lockstore.MaxResultTime + 1} {
			require.Error(t, write("bad", lease, result, d))
		}
		require.Error(t, write("bad", lease, make([]byte, lockstore.MaxResultBytes+1), time.Hour))
		require.Nil(t, data.get(t, "bad"))
		largest := bytes.Repeat([]byte{7}, lockstore.MaxResultBytes)
		require.NoError(t, write("bad", lease, largest, time.Hour))
		completed(t, lease.Key, largest)
	})
}

// The end of what a transaction completes is d and the skew after the local time.
func TestEndInATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		update := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{}).CompleteItem(key, 7, nil, time.Hour).Update
		require.Equal(t, time.Now().Add(time.Hour+dynamostore.DefaultSkew).UnixMilli(), number(t, update.ExpressionAttributeValues, ":expires"))
	})
}

// Another request for one of the items cancels a transaction, and the client sends it again. It does not
// if a condition was false.
func TestTransactionConflict(t *testing.T) {
	for last, sent := range map[string]int{"None": 2, "TransactionConflict": 2, "ConditionalCheckFailed": 1} {
		bubble(t, "F42 "+last, func(t *testing.T) {
			service, store := newFake(t)
			lease := held(t, store)
			service.Fault = on(fakedynamo.Fault{Refuse: &fakedynamo.Failure{
				Status: 400, Code: "TransactionCanceledException", Reasons: []any{map[string]string{"Code": "TransactionConflict"}, map[string]string{"Code": last}},
			}}, service.Requests()+1)
			err := transact(t.Context(), dynamostore.ClientOver(service, fakeEndpoint, 0), store.CompleteItem(key, lease.Fence, []byte("result"), time.Hour))
			require.Equal(t, sent, service.Actions()["TransactWriteItems"])
			require.False(t, store.IsStale(err, lease.Fence))
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
	require.NoError(t, store.Complete(t.Context(), held(t, store), []byte("result"), time.Minute))
	service.SetRow("damaged", fakedynamo.Item{"fence": {"N": "-1"}})
	all := listed(t, store, "")
	require.Equal(t, []string{"damaged"}, all.DamagedNames)
	require.Len(t, all.Keys, 1)
	require.Equal(t, lockstore.Completed, all.Keys[0].State)
	require.Len(t, scans, 1)
	require.Contains(t, scans[0], "ProjectionExpression")
	require.NotContains(t, scans[0], "result")
}

// A listing that has not come to its end is an error.
func TestListingThatLosesItsReplies(t *testing.T) {
	bubble(t, "F23", func(t *testing.T) {
		service, s := newFake(t)
		for _, key := range []string{"a", "b", "c", "d"} {
			acquired(t, s, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		}
		pages := 0
		err := s.List(t.Context(), "", func(p lockstore.Page) error {
			pages++
			service.Fault = always(fakedynamo.Fault{LoseReply: errReset})
			return nil
		})
		require.ErrorContains(t, err, "connection reset by peer")
		require.Equal(t, 1, pages)
	})
}
