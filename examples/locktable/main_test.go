package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/assertions"
	"github.com/aws/jsii-runtime-go"
	"github.com/stretchr/testify/require"
)

// installed ends the test where a program is not there: at a desk as skipped, in CI as failed.
func installed(t *testing.T, program string) {
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// The stack has the table that a store needs, and the function has the two rights and the URL.
func TestStack(t *testing.T) {
	installed(t, "node")
	defer jsii.Close()
	code := t.TempDir()
	require.NoError(t, os.WriteFile(code+"/bootstrap", []byte("#!/bin/sh\n"), 0o755))
	template := assertions.Template_FromStack(locks(awscdk.NewApp(nil), code), nil)
	text, err := json.Marshal(template.ToJSON())
	require.NoError(t, err)
	var made struct {
		Resources map[string]struct {
			Type, DeletionPolicy, UpdateReplacePolicy string
			Properties                                map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(text, &made))
	table, policy, function := "", map[string]any(nil), map[string]any(nil)
	for id, r := range made.Resources {
		switch r.Type {
		case "AWS::DynamoDB::Table":
			table = id
			require.Equal(t, "Retain", r.DeletionPolicy)
			require.Equal(t, "Retain", r.UpdateReplacePolicy)
			require.Equal(t, map[string]any{
				"AttributeDefinitions":      []any{map[string]any{"AttributeName": "key", "AttributeType": "S"}},
				"BillingMode":               "PAY_PER_REQUEST",
				"DeletionProtectionEnabled": true,
				"KeySchema":                 []any{map[string]any{"AttributeName": "key", "KeyType": "HASH"}},
				"TimeToLiveSpecification":   map[string]any{"AttributeName": "ttl", "Enabled": true},
			}, r.Properties)
		case "AWS::IAM::Policy":
			policy = r.Properties["PolicyDocument"].(map[string]any)
		case "AWS::Lambda::Function":
			function = r.Properties["Environment"].(map[string]any)["Variables"].(map[string]any)
		}
	}
	require.NotEmpty(t, table)
	require.Equal(t, []any{map[string]any{
		"Effect": "Allow", "Action": []any{"dynamodb:UpdateItem", "dynamodb:GetItem"},
		"Resource": []any{map[string]any{"Fn::GetAtt": []any{table, "Arn"}}},
	}}, policy["Statement"])
	require.Equal(t, map[string]any{"Fn::Join": []any{"", []any{"dynamodb://", map[string]any{"Ref": table}}}}, function["LOCK_URL"])
}

// Terraform reads its file, and would format it as it is.
func TestTerraform(t *testing.T) {
	installed(t, "terraform")
	out, err := exec.CommandContext(t.Context(), "terraform", "fmt", "-check", "-diff", "main.tf").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
