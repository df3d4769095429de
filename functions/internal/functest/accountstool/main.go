// Command accountstool makes and reads accounts for the tools that run the sample
// functions, which know the accounts only from outside:
//
//	accountstool open ACCOUNT CENTS             makes an account with that balance
//	accountstool balance ACCOUNT                prints its balance in cents
//
// The accounts are at ACCOUNTS_URL. On a DynamoDB Local open makes the table first.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

func main() {
	t := tool{url: boot.MustURLFromEnv("ACCOUNTS_URL"), getenv: boot.EnvVar, out: os.Stdout}
	if err := t.run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "accountstool:", err)
		os.Exit(1)
	}
}

type tool struct {
	url    *url.URL
	getenv func(string) string
	out    io.Writer
}

var errUsage = errors.New("want open ACCOUNT CENTS, or balance ACCOUNT")

func (t tool) run(ctx context.Context, args []string) error {
	ledger, err := accounts.Open(t.url, t.getenv)
	if err != nil {
		return err
	}
	if len(args) < 2 {
		return errUsage
	}
	command, account, numbers := args[0], args[1], make([]int64, len(args)-2)
	for i, text := range args[2:] {
		if numbers[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return fmt.Errorf("%.40q is no number of cents; %w", text, errUsage)
		}
	}
	switch {
	case command == "open" && len(numbers) == 1:
		err = t.open(ctx, ledger, account, numbers[0])
	case command == "balance" && len(numbers) == 0:
		var balance int64
		if balance, err = ledger.Balance(ctx, account); err == nil {
			fmt.Fprintln(t.out, balance)
		}
	default:
		return errUsage
	}
	if refused, ok := errors.AsType[smithy.APIError](err); ok && refused.ErrorCode() == "ResourceNotFoundException" {
		return fmt.Errorf("the table %s with the partition key account (S) must exist: %w", t.url.Host, refused)
	}
	return err
}

func (t tool) open(ctx context.Context, ledger *accounts.Ledger, account string, cents int64) error {
	if storeurl.IsLocalDynamoDB(t.url) { // a table may be made there without asking
		if err := t.makeTable(ctx); err != nil {
			return fmt.Errorf("the table %s cannot be made: %w", t.url.Host, err)
		}
	}
	return ledger.Create(ctx, account, cents)
}

func (t tool) makeTable(ctx context.Context) error {
	client, err := dynamostore.Client(lockstore.Config{URL: t.url, Getenv: t.getenv})
	if err != nil {
		return err
	}
	_, err = client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            &t.url.Host,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("account"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("account"), KeyType: types.KeyTypeHash}},
	})
	if _, exists := errors.AsType[*types.ResourceInUseException](err); exists {
		return nil
	}
	return err
}
