// Package sfnwake wakes states of AWS Step Functions that wait for a lock with a task token: it makes
// a guard.Options.Wake.
//
//	g := boot.MustGuardFromEnvWith(func(o *guard.Options) {
//		o.Wake = boot.Must(sfnwake.FromEnv(boot.EnvVar))
//	}, dynamostore.Opener)
//
// The function's role needs states:SendTaskSuccess on the state machines that wait, and their KMS keys if they have any. Only packages that
// import sfnwake link the client of Step Functions.
package sfnwake

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sfn"
	"github.com/aws/smithy-go"

	"github.com/lambdalock/lambdalock/internal/lib/awsenv"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Client is the method of *sfn.Client that New needs.
type Client interface {
	SendTaskSuccess(context.Context, *sfn.SendTaskSuccessInput, ...func(*sfn.Options)) (*sfn.SendTaskSuccessOutput, error)
}

// output is what the state that waits returns. It has no fence: the execution has to ask for the lock after its wait.
const output = "{}"

// callTime is for one attempt. The guard gives a wake-up 1 s at the most.
const callTime = 900 * time.Millisecond

// New returns a guard.Options.Wake that ends the wait of a state: with SendTaskSuccess and the output {}. The
// error of an address where no execution waits any more, and that of a missing permission, match
// lockstore.ErrInvalid, so the guard does not repeat them.
func New(client Client) func(context.Context, lockstore.WakeAddress) error {
	return func(ctx context.Context, a lockstore.WakeAddress) error {
		token, ok := a.TaskToken()
		switch {
		case client == nil:
			return lockstore.Invalidf("sfnwake: the client is nil")
		case !ok:
			return lockstore.Invalidf("sfnwake: the address is no task token")
		}
		_, err := client.SendTaskSuccess(ctx, &sfn.SendTaskSuccessInput{TaskToken: &token, Output: aws.String(output)})
		return explain(err)
	}
}

// FromEnv is New with a client that takes the region and the credentials from Lambda's environment, as the
// stores do. It sends nothing.
func FromEnv(getenv func(string) string) (func(context.Context, lockstore.WakeAddress) error, error) {
	client := &http.Client{Timeout: callTime}
	credentials, err := awsenv.Credentials(getenv, client)
	if err != nil {
		return nil, fmt.Errorf("sfnwake: %w", err)
	}
	region := awsenv.Region(getenv)
	if region == "" {
		return nil, lockstore.Invalidf("sfnwake: the region is missing: set AWS_REGION")
	}
	options := sfn.Options{Region: region, Credentials: credentials, HTTPClient: client, RetryMaxAttempts: 1} // the guard repeats
	if endpoint := getenv("AWS_ENDPOINT_URL_SFN"); endpoint != "" {
		options.BaseEndpoint = &endpoint
	}
	return New(sfn.New(options)), nil
}

// explain says what an error of Step Functions means. It repeats the message of the service only if the
// request was refused before it was read: other messages may quote the token.
func explain(err error) error {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return err
	}
	switch code := api.ErrorCode(); code {
	case "TaskTimedOut", "TaskDoesNotExist", "InvalidToken":
		return lockstore.Invalidf("sfnwake: no execution waits with this task token any more (%s)", code)
	case "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException", "MissingAuthenticationTokenException":
		return lockstore.Invalidf("sfnwake: the wake-up is not allowed; it needs states:SendTaskSuccess (%s: %s)", code, api.ErrorMessage())
	case "KmsAccessDeniedException":
		return lockstore.Invalidf("sfnwake: the wake-up is not allowed; it needs the KMS key of the state machine (%s)", code)
	case "ValidationException", "InvalidOutput":
		return lockstore.Invalidf("sfnwake: Step Functions refuses the wake-up (%s)", code)
	default:
		return fmt.Errorf("sfnwake: the wake-up failed (%s)", code)
	}
}
