package dynamostore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/awsenv"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
)

// Opener opens dynamodb URLs.
var Opener = lockstore.SchemeOpener{Schemes: []string{"dynamodb"}, Open: func(ctx context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return s.Store, nil
}}

// Open opens the store of a URL, see the package documentation. It sends nothing. Its
// errors match lockstore.ErrInvalid. For StillHeld and CompleteItem give it the URL of the function's
// locks (LOCK_URL), so that it knows the names of the table's attributes.
func Open(_ context.Context, cfg lockstore.Config) (*Store, error) { return OpenWith(cfg, nil) }

// OpenWith is Open with credentials of the caller, for a program that is no Lambda function
// and has a profile or single sign-on. With nil it is Open.
func OpenWith(cfg lockstore.Config, creds aws.CredentialsProvider) (*Store, error) {
	getenv := cfg.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	params, err := storeurl.Params(cfg.URL, storeurl.Parts{
		Want: "dynamodb://TABLE?region=REGION",
		Host: true, Params: []string{"region", "endpoint", "skew", "key", "sort", "prefix", "ttl"},
	})
	if err != nil {
		return nil, err
	}
	opt := Options{Key: params["key"], Sort: params["sort"], Prefix: params["prefix"], TTL: params["ttl"]}
	if raw, ok := params["skew"]; ok {
		opt.Skew, err = time.ParseDuration(raw)
		if err != nil || opt.Skew <= 0 || opt.Skew > maxSkew {
			return nil, invalid("the parameter skew is not a duration above 0 and up to %v, such as 1s", maxSkew)
		}
	}
	region, endpoint, local := cmp.Or(params["region"], awsenv.Region(getenv)), params["endpoint"], false
	if endpoint != "" {
		u, err := storeurl.Endpoint(endpoint)
		if err != nil {
			return nil, fmt.Errorf("dynamostore: the parameter endpoint: %w", err)
		}
		local = storeurl.IsThisMachine(u.Hostname())
	}
	none := cmp.Or(getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY"), getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")) == ""
	if local {
		region = cmp.Or(region, localRegion)
	}
	switch {
	case creds != nil:
	case local && none:
		creds = credentials.NewStaticCredentialsProvider(localKey, localKey, "")
	default:
		creds, err = awsenv.Credentials(getenv, httpClient())
	}
	const noRegion = "the region is missing: set it in the URL (?region=…) or in AWS_REGION"
	switch {
	case err != nil && region == "":
		return nil, fmt.Errorf("dynamostore: %s; %w", noRegion, err)
	case err != nil:
		return nil, fmt.Errorf("dynamostore: %w", err)
	case region == "":
		return nil, invalid(noRegion)
	}
	return New(newClient(region, endpoint, creds, httpClient()), cfg.URL.Host, opt)
}

// Client returns the client that Open uses, for a function's own data. The URL's host is
// then the function's table, and skew, key, sort, prefix and ttl have no effect. The
// client takes the region and the credentials from Lambda's environment. It reads none of the
// SDK's shared files, which makes it small and quick to start. A call has at most three
// attempts of less than two seconds each. So a write that counts, such as ADD, may count twice: set the
// call's RetryMaxAttempts to 1. It also repeats a transaction that was cancelled for a
// TransactionConflict alone, see Store.CompleteItem.
func Client(cfg lockstore.Config) (*dynamodb.Client, error) {
	s, err := OpenWith(cfg, nil)
	if err != nil {
		return nil, err
	}
	return s.table.api.(*dynamodb.Client), nil
}

// Defaults for DynamoDB Local. It accepts every region and every key, but each pair of
// them has its own tables. So these are the values of lambdatest's functions too.
const (
	localRegion = "us-east-1"
	localKey    = "local"
)

// newClient makes the client, and sends nothing: for the store, and for Client, whose users send transactions, see conflict. OpenWith calls it.
func newClient(region, endpoint string, creds aws.CredentialsProvider, h *http.Client) *dynamodb.Client {
	opt := dynamodb.Options{
		Region:      region,
		Credentials: creds,
		HTTPClient:  h,
		// The SDK's own defaults will change.
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts = 3
			o.Backoff = retry.BackoffDelayerFunc(backoff)
			o.Retryables = append([]retry.IsErrorRetryable{retry.IsErrorRetryableFunc(conflict)}, o.Retryables...)
		}),
	}
	if endpoint != "" {
		opt.BaseEndpoint = &endpoint
	}
	return dynamodb.New(opt)
}

// conflict tells the SDK to send a transaction again that DynamoDB has cancelled only because another
// request for one of its items came at the same time. Nothing of it was written. newClient gives it to the SDK.
func conflict(err error) aws.Ternary {
	cancelled, ok := errors.AsType[*types.TransactionCanceledException](err)
	if !ok || slices.ContainsFunc(cancelled.CancellationReasons, func(r types.CancellationReason) bool {
		return !slices.Contains([]string{"None", "TransactionConflict"}, aws.ToString(r.Code))
	}) {
		return aws.UnknownTernary
	}
	return aws.TrueTernary
}

// backoff is a random pause of up to 50 ms, then of up to 100 ms. The guard makes longer
// pauses, because the guard knows how much time is left. newClient gives it to the SDK.
func backoff(attempt int, _ error) (time.Duration, error) {
	return time.Duration(rand.Int64N(int64(25*time.Millisecond) << min(attempt, 3))), nil
}

// httpClient leaves time for a second attempt: a call has about 2 s. OpenWith calls it, for DynamoDB and for the credentials.
func httpClient() *http.Client { return httpclient.Client(900 * time.Millisecond) }
