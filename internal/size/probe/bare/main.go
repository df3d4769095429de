// Command bare is a function without a lock: the floor that the others are
// compared with.
package main

import (
	"context"

	"github.com/aws/aws-lambda-go/lambda"
)

func main() { lambda.StartHandlerFunc(handle) }

type task struct {
	Account string `json:"account"`
}

func handle(_ context.Context, in task) (string, error) { return in.Account, nil }
