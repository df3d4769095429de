package dynamostore

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// describer is what Check calls; *dynamodb.Client has these methods.
type describer interface {
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
}

// Check implements lockstore.Checker. It needs two more permissions than locking:
// dynamodb:DescribeTable and dynamodb:DescribeTimeToLive. So call it with the deployer's
// rights.
func (s *Store) Check(ctx context.Context) ([]lockstore.Finding, error) {
	if s.api == nil {
		return nil, errNotMade
	}
	api, ok := s.api.(describer)
	if !ok {
		return nil, invalid("the client cannot check the table: it has no DescribeTable and DescribeTimeToLive")
	}
	table, seen, err := call(ctx, api.DescribeTable, &dynamodb.DescribeTableInput{TableName: &s.table})
	if err != nil {
		return nil, s.explain("Check", err, seen)
	}
	if table.Table == nil {
		return nil, fmt.Errorf("dynamostore: %s, Check: the answer describes no table", s.where())
	}
	findings := checkTable(table.Table)
	if table.Table.MultiRegionConsistency == types.MultiRegionConsistencyStrong {
		return findings, nil // it has no time to live
	}
	ttl, seen, err := call(ctx, api.DescribeTimeToLive, &dynamodb.DescribeTimeToLiveInput{TableName: &s.table})
	if err != nil {
		return nil, s.explain("Check", err, seen)
	}
	return append(findings, checkTTL(ttl.TimeToLiveDescription)...), nil
}

func checkTable(table *types.TableDescription) []lockstore.Finding {
	var findings []lockstore.Finding
	add := func(fix, problem string, args ...any) {
		findings = append(findings, lockstore.Finding{Problem: fmt.Sprintf(problem, args...), Fix: fix})
	}

	if keys := keySchema(table); keys != attrKey+" S HASH" {
		add(`make a table with the partition key "key" of type S and no sort key`,
			"the primary key is %q; no lock can be written", keys)
	}
	if table.TableStatus != types.TableStatusActive && table.TableStatus != types.TableStatusUpdating {
		add("wait until it is ACTIVE, or give its KMS key back", "the table is %s; locks cannot be taken", table.TableStatus)
	}
	billing := types.BillingModeProvisioned
	if table.BillingModeSummary != nil {
		billing = table.BillingModeSummary.BillingMode
	}
	if billing != types.BillingModePayPerRequest {
		add("set BillingMode to PAY_PER_REQUEST, or watch ThrottledRequests",
			"the capacity is provisioned; a burst of lockers is throttled, renewals too")
	}
	switch {
	case table.MultiRegionConsistency == types.MultiRegionConsistencyStrong:
		add("use a table of one Region, unless locks have to outlive the failure of a Region; then use few keys, and Fenced instead of StillHeld",
			"the table has multi-Region strong consistency; locks in it are safe, but it has no time to live, so the row of each key stays for ever, and no transactions, so StillHeld does not work")
	case len(table.Replicas) > 0:
		add("use a table of one Region; multi-Region strong consistency is safe too, but has neither time to live nor transactions",
			"the table is replicated to %d Regions with eventual consistency; two Regions can hold the same lock", len(table.Replicas))
	}
	if n := len(table.GlobalSecondaryIndexes) + len(table.LocalSecondaryIndexes); n > 0 {
		add("keep locks in a table without indexes", "the table has %d indexes; each lock write may be paid more than once", n)
	}
	return findings
}

// keySchema prints the primary key as "name type role".
func keySchema(table *types.TableDescription) string {
	var parts []string
	for _, k := range table.KeySchema {
		kind := "?"
		for _, a := range table.AttributeDefinitions {
			if *a.AttributeName == *k.AttributeName {
				kind = string(a.AttributeType)
			}
		}
		parts = append(parts, fmt.Sprintf("%s %s %s", *k.AttributeName, kind, k.KeyType))
	}
	return strings.Join(parts, ", ")
}

func checkTTL(d *types.TimeToLiveDescription) []lockstore.Finding {
	const fix = `set TimeToLiveSpecification to AttributeName "ttl", Enabled true`
	on := d != nil && (d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling)
	switch {
	case !on:
		return []lockstore.Finding{{Problem: "time to live is off; rows of keys that are no longer used stay for ever", Fix: fix}}
	case d.AttributeName != nil && *d.AttributeName == attrExpires:
		return []lockstore.Finding{{Problem: `time to live is on the attribute "expires", which is in milliseconds and belongs to the lock`, Fix: fix}}
	case d.AttributeName == nil || *d.AttributeName != attrTTL:
		return []lockstore.Finding{{Problem: "time to live is on another attribute; rows of keys that are no longer used stay for ever", Fix: fix}}
	}
	return nil
}
