package dynamostore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// describer is what Check calls; *dynamodb.Client has these methods.
type describer interface {
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
}

// Check implements driver.Checker. It needs two more permissions than locking:
// dynamodb:DescribeTable and dynamodb:DescribeTimeToLive. So call it with the deployer's
// rights.
func (t *table) Check(ctx context.Context) ([]driver.Finding, error) {
	api, ok := t.api.(describer)
	if !ok {
		return nil, unsupported("check the table: it has no DescribeTable and DescribeTimeToLive")
	}
	out, seen, err := call(ctx, api.DescribeTable, &dynamodb.DescribeTableInput{TableName: &t.name})
	if err != nil {
		return nil, t.explain("Check", unknownRead, err, seen)
	}
	if out.Table == nil {
		return nil, fmt.Errorf("dynamostore: %s, Check: the answer describes no table", t.where())
	}
	findings := t.names.checkTable(out.Table)
	if out.Table.MultiRegionConsistency == types.MultiRegionConsistencyStrong {
		return findings, nil // it has no time to live
	}
	ttl, seen, err := call(ctx, api.DescribeTimeToLive, &dynamodb.DescribeTimeToLiveInput{TableName: &t.name})
	if err != nil {
		return nil, t.explain("Check", unknownRead, err, seen)
	}
	return append(findings, t.names.checkTTL(ttl.TimeToLiveDescription)...), nil
}

func (n names) checkTable(table *types.TableDescription) []driver.Finding {
	var findings []driver.Finding
	add := func(fix, problem string, args ...any) {
		findings = append(findings, driver.Finding{Problem: fmt.Sprintf(problem, args...), Fix: fix})
	}

	if keys := keySchema(table); keys != n.schema() {
		add("make a table with "+n.want()+", or name the keys of this one",
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
	if indexes := n.indexes(table); indexes > 0 {
		add("keep locks in a table without such indexes", "the table has %d indexes that have the locks' rows, too; each lock write may be paid more than once", indexes)
	}
	return findings
}

// indexes counts the indexes in which a lock's row is: those whose keys it has.
func (n names) indexes(table *types.TableDescription) (count int) {
	var all [][]types.KeySchemaElement
	for _, i := range table.GlobalSecondaryIndexes {
		all = append(all, i.KeySchema)
	}
	for _, i := range table.LocalSecondaryIndexes {
		all = append(all, i.KeySchema)
	}
	row := append([]string{n.key, n.sort, n.ttl}, lockAttributes...)
	for _, keys := range all {
		if !slices.ContainsFunc(keys, func(k types.KeySchemaElement) bool { return !slices.Contains(row, aws.ToString(k.AttributeName)) }) {
			count++
		}
	}
	return count
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

func (n names) checkTTL(d *types.TimeToLiveDescription) []driver.Finding {
	fix := fmt.Sprintf("set TimeToLiveSpecification to AttributeName %q, Enabled true", n.ttl)
	on := d != nil && (d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling)
	switch {
	case !on:
		return []driver.Finding{{Problem: "time to live is off; rows of keys that are no longer used stay for ever", Fix: fix}}
	case d.AttributeName != nil && *d.AttributeName == attrExpires:
		return []driver.Finding{{Problem: `time to live is on the attribute "expires", which is in milliseconds and belongs to the lock`, Fix: fix}}
	case aws.ToString(d.AttributeName) != n.ttl:
		return []driver.Finding{{
			Problem: fmt.Sprintf("the table's time to live is on the attribute %q, and this store writes %q (ttl in the URL): rows of keys that are no longer used stay for ever, and programs with different ttl in their URLs refuse each other's rows", aws.ToString(d.AttributeName), n.ttl),
			Fix:     fix + "; or, if the table has other items that need its attribute, change ttl in the URL by the steps in docs/stores.md",
		}}
	}
	return nil
}
