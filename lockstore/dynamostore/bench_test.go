package dynamostore_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// BenchmarkCycle compares two ways through the same client, in turns: Acquire and Release
// of the store, and the two conditional updates of a hand-made lock. The result is the
// ratio of the medians; the goal is 1.05.
func BenchmarkCycle(b *testing.B) {
	endpoint := testservers.DynamoDB(b)
	client := dynamostore.ClientOver(newTransport(b), endpoint, 0)
	makeTable(b, client, table)
	store, err := dynamostore.New(client, table, dynamostore.Options{})
	require.NoError(b, err)
	ctx := context.Background()

	locked := func(i int) {
		lease, err := store.Acquire(ctx, lockstore.Request{
			Key: "locked/" + strconv.Itoa(i%100), Owner: lockstore.NewOwner(), TTL: time.Minute,
			HolderInfo: lockstore.HolderInfo{Name: "bench", ID: "1"},
		})
		require.NoError(b, err)
		require.NoError(b, store.Release(ctx, lease))
	}
	raw := func(i int) {
		owner, now := string(lockstore.NewOwner()), time.Now()
		name := item{"key": s("raw/" + strconv.Itoa(i%100))}
		_, err := client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: aws.String(table), Key: name,
			UpdateExpression:         aws.String("SET #owner = :me, expires = :expires"),
			ConditionExpression:      aws.String("attribute_not_exists(#owner) OR expires < :now"),
			ExpressionAttributeNames: map[string]string{"#owner": "owner"},
			ExpressionAttributeValues: item{
				":me": s(owner), ":expires": n(strconv.FormatInt(now.Add(time.Minute).UnixMilli(), 10)), ":now": n(strconv.FormatInt(now.UnixMilli(), 10)),
			},
		})
		require.NoError(b, err)
		_, err = client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: aws.String(table), Key: name,
			UpdateExpression:          aws.String("REMOVE #owner, expires"),
			ConditionExpression:       aws.String("#owner = :me"),
			ExpressionAttributeNames:  map[string]string{"#owner": "owner"},
			ExpressionAttributeValues: item{":me": s(owner)},
		})
		require.NoError(b, err)
	}
	for i := range 1000 {
		locked(i)
		raw(i)
	}
	var times [2][]time.Duration
	for i := 0; b.Loop(); i++ {
		for turn := range 2 {
			which := (i + turn) % 2
			start := time.Now()
			[]func(int){locked, raw}[which](i)
			times[which] = append(times[which], time.Since(start))
		}
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2])
	}
	b.ReportMetric(median(times[0])/1e3, "locked-µs")
	b.ReportMetric(median(times[1])/1e3, "raw-µs")
	b.ReportMetric(median(times[0])/median(times[1]), "ratio")
}
