// Command locktable is the table of the locks, and the rights of a function that uses it, in CDK. main.tf has the same in
// Terraform, and examples/own-function/template.yaml in SAM.
package main

import (
	"os"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/jsii-runtime-go"
)

func main() {
	defer jsii.Close()
	app := awscdk.NewApp(nil)
	locks(app, os.Args[1])
	app.Synth(nil)
}

// locks is a stack with the table and a function whose binary is in the folder code.
func locks(app awscdk.App, code string) awscdk.Stack {
	stack := awscdk.NewStack(app, jsii.String("locks"), nil)
	function := awslambda.NewFunction(stack, jsii.String("Function"), &awslambda.FunctionProps{
		Runtime: awslambda.Runtime_PROVIDED_AL2023(),
		Handler: jsii.String("bootstrap"),
		Code:    awslambda.Code_FromAsset(jsii.String(code), nil),
	})
	table := awsdynamodb.NewTable(stack, jsii.String("Locks"), &awsdynamodb.TableProps{
		PartitionKey:        &awsdynamodb.Attribute{Name: jsii.String("key"), Type: awsdynamodb.AttributeType_STRING},
		BillingMode:         awsdynamodb.BillingMode_PAY_PER_REQUEST,
		TimeToLiveAttribute: jsii.String("ttl"),
		DeletionProtection:  jsii.Bool(true),
		RemovalPolicy:       awscdk.RemovalPolicy_RETAIN,
	})
	table.Grant(function, jsii.String("dynamodb:UpdateItem"), jsii.String("dynamodb:GetItem"))
	function.AddEnvironment(jsii.String("LOCK_URL"), awscdk.Fn_Join(jsii.String(""), &[]*string{jsii.String("dynamodb://"), table.TableName()}), nil)
	return stack
}
