package dynamostore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// testExpressions sends updates to the fake and to DynamoDB Local. Both must give the
// same outcome and the same row.
func testExpressions(t *testing.T, client *dynamodb.Client) {
	service := fakedynamo.New(table)
	fake := dynamostore.ClientOver(service, fakeEndpoint, 0)
	null := &types.AttributeValueMemberNULL{Value: true}
	found := map[string]int{}
	number := 0
	for _, row := range []item{
		nil, {}, {"n": n("5")}, {"n": n("-5")}, {"n": n("5.0")}, {"n": s("5")}, {"n": null}, {"m": n("5")}, {"n": s("")},
		{"n": n("12"), "m": n("5")}, {"n": s("12"), "m": s("5")}, {"owner": s("me"), "n": n("5")},
	} {
		for _, condition := range []string{
			"n = :v", "n <> :v", "n < :v", "n <= :v", "n > :v", "n >= :v", ":v = n", "n < m", "n = m", "n <> m",
			"attribute_exists(n)", "attribute_not_exists(n)", "attribute_not_exists(#key)", "attribute_type(n, :type)",
			"NOT n = :v", "n = :v OR m = :v", "n = :v AND m = :v", "n = :v OR m = :v AND n <> :v", "(n = :v OR m = :v) AND n <> :v",
			"attribute_not_exists(#key) or (n < :v and attribute_not_exists(#owner))",
			// Mistakes.
			"n = :missing", "#missing = :v", "owner = :v", "n ==:v", "n = :v AND", "(n = :v", "attribute_type(n, :v)", "unknown(n)", "n",
		} {
			for _, update := range []string{"SET x = :v", "SET x = :v, n = m REMOVE m", "REMOVE n", "SET n = :v REMOVE n", "SET #key = :v", "SET x = n + :v", "SET"} {
				if number++; number%9 != 0 && update != "SET x = :v" {
					continue // a part of all combinations is enough
				}
				name := fmt.Sprintf("%s | %s | %s", dump(row), condition, update)
				k := fmt.Sprint("expressions/", number)
				in := &dynamodb.UpdateItemInput{
					TableName: aws.String(table), Key: item{"key": s(k)},
					UpdateExpression: &update, ConditionExpression: &condition,
					ExpressionAttributeValues:           item{":v": n("5"), ":type": s("N"), ":unused": n("1")},
					ExpressionAttributeNames:            map[string]string{"#key": "key", "#owner": "owner"},
					ReturnValues:                        types.ReturnValueAllOld,
					ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
				}
				if number%10 != 0 {
					trim(in)
				}
				realRows{client}.put(t, k, row)
				var withKey item
				if row != nil {
					withKey = item{"key": s(k)}
					for name, v := range row {
						withKey[name] = v
					}
				}
				fakeRows{service}.put(t, k, withKey)

				real, realOld := outcome(client.UpdateItem(t.Context(), in))
				faked, fakeOld := outcome(fake.UpdateItem(t.Context(), in))
				require.Equal(t, real, faked, name)
				require.Equal(t, dump(realOld), dump(fakeOld), name)
				require.Equal(t, dump(realRows{client}.get(t, k)), dump(fakeRows{service}.get(t, k)), name)
				found[real]++
			}
		}
	}
	t.Log(found)
	require.Greater(t, found["applied"], 80)
	require.Greater(t, found["ConditionalCheckFailedException"], 100)
	require.Greater(t, found["ValidationException"], 100)
}

// trim removes the names and values that the expressions do not use.
func trim(in *dynamodb.UpdateItemInput) {
	used := fakedynamo.Tokens(*in.UpdateExpression + " " + *in.ConditionExpression)
	for name := range in.ExpressionAttributeNames {
		if !used[name] {
			delete(in.ExpressionAttributeNames, name)
		}
	}
	for name := range in.ExpressionAttributeValues {
		if !used[name] {
			delete(in.ExpressionAttributeValues, name)
		}
	}
	if len(in.ExpressionAttributeNames) == 0 {
		in.ExpressionAttributeNames = nil
	}
	if len(in.ExpressionAttributeValues) == 0 {
		in.ExpressionAttributeValues = nil
	}
}

func outcome(out *dynamodb.UpdateItemOutput, err error) (string, item) {
	var refused *types.ConditionalCheckFailedException
	var api smithy.APIError
	switch {
	case err == nil:
		return "applied", out.Attributes
	case errors.As(err, &refused):
		return refused.ErrorCode(), refused.Item
	case errors.As(err, &api):
		return api.ErrorCode(), nil
	}
	return err.Error(), nil
}
