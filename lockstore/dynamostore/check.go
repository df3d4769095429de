package dynamostore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// describer is what Check and Extent call; *dynamodb.Client has these methods.
type describer interface {
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
}

// Check implements driver.Checker. It sends DescribeTable and DescribeTimeToLive, and needs two more permissions than locking:
// dynamodb:DescribeTable and dynamodb:DescribeTimeToLive. So call it with the deployer's
// rights.
func (t *table) Check(ctx context.Context) ([]driver.Finding, error) {
	table, err := t.describe(ctx, "Check")
	if err != nil {
		return nil, err
	}
	findings := t.names.checkTable(table)
	if table.MultiRegionConsistency == types.MultiRegionConsistencyStrong {
		return findings, nil // it has no time to live
	}
	ttl, seen, err := call(ctx, t.api.(describer).DescribeTimeToLive, &dynamodb.DescribeTimeToLiveInput{TableName: &t.name})
	if err != nil {
		return nil, t.explain("Check", err, seen)
	}
	return append(findings, t.names.checkTTL(ttl.TimeToLiveDescription)...), nil
}

// describe sends a DescribeTable, for Check and Extent. what names the call.
func (t *table) describe(ctx context.Context, what string) (*types.TableDescription, error) {
	api, ok := t.api.(describer)
	if !ok {
		return nil, unsupported("describe the table: it has no DescribeTable and DescribeTimeToLive")
	}
	out, seen, err := call(ctx, api.DescribeTable, &dynamodb.DescribeTableInput{TableName: &t.name})
	switch {
	case err != nil:
		return nil, t.explain(what, err, seen)
	case out.Table == nil:
		return nil, fmt.Errorf("dynamostore: %s, %s: the answer describes no table", t.where(), what)
	}
	return out.Table, nil
}

// checkTable finds what is wrong with a table, but for its time to live. Check calls it.
func (n names) checkTable(table *types.TableDescription) []driver.Finding {
	var findings []driver.Finding
	add := func(fix, problem string, args ...any) {
		findings = append(findings, driver.Finding{Problem: fmt.Sprintf(problem, args...), Fix: fix})
	}

	if keys := keySchema(table); keys != n.want() {
		add("make a table with "+n.want()+", or name the keys of this one",
			"the table has %s; no lock can be written", keys)
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
	indexes := table.GlobalSecondaryIndexes
	for _, i := range table.LocalSecondaryIndexes {
		indexes = append(indexes, types.GlobalSecondaryIndexDescription{IndexName: i.IndexName, KeySchema: i.KeySchema})
	}
	for _, i := range indexes {
		ours, others := n.keysOf(i.KeySchema)
		switch {
		case len(ours) > 0:
			add("delete this index, or keep locks in a table without it",
				"the index %q has the key %q, which is an attribute of a lock's row: DynamoDB refuses each write of a lock whose value does not fit the index, and the others may be paid twice", aws.ToString(i.IndexName), ours[0])
		case len(others) == 0:
			add("keep locks in a table without such an index", "the index %q has the locks' rows, too: each lock write may be paid more than once", aws.ToString(i.IndexName))
		}
	}
	return findings
}

// keysOf are the keys of an index that are attributes of a lock's row, and those that no lock's row has. The table's own key is neither.
// checkTable calls it.
func (n names) keysOf(schema []types.KeySchemaElement) (ours, others []string) {
	for _, k := range schema {
		switch name := aws.ToString(k.AttributeName); {
		case slices.Contains(lockAttributes, name), name == n.ttl:
			ours = append(ours, name)
		case name != n.key && name != n.sort:
			others = append(others, name)
		}
	}
	return ours, others
}

// keySchema says which primary key a table has, in the words of names.want: checkTable compares the two.
func keySchema(table *types.TableDescription) string {
	kinds := map[string]types.ScalarAttributeType{}
	for _, a := range table.AttributeDefinitions {
		kinds[*a.AttributeName] = a.AttributeType
	}
	roles := map[types.KeyType]string{types.KeyTypeHash: "partition", types.KeyTypeRange: "sort"}
	var parts []string
	for _, k := range table.KeySchema {
		parts = append(parts, fmt.Sprintf("the %s key %q of type %s", roles[k.KeyType], *k.AttributeName, cmp.Or(kinds[*k.AttributeName], "?")))
	}
	if len(parts) == 1 {
		parts = append(parts, "no sort key")
	}
	return strings.Join(parts, " and ")
}

// checkTTL finds what is wrong with the time to live of a table. Check calls it.
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
