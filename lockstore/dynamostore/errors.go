package dynamostore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/lambdalock/lambdalock/lockstore"
)

// attempts sees every failed attempt of one call, through the client's own
// retryer. The last error alone would not do: a first attempt that was applied
// and lost its reply can be followed by one that was certainly refused.
type attempts struct {
	aws.Retryer
	watched   bool // the client took the option
	ambiguous bool // an attempt may have been applied
}

// watch is an option of a call.
func (a *attempts) watch(o *dynamodb.Options) {
	a.Retryer, a.watched = o.Retryer, true
	o.Retryer = a
}

// IsErrorRetryable is asked once after each failed attempt.
func (a *attempts) IsErrorRetryable(err error) bool {
	_, refused := errors.AsType[*types.ConditionalCheckFailedException](err)
	if _, class := classify(err); class == nil && !refused {
		a.ambiguous = true
	}
	return a.Retryer.IsErrorRetryable(err)
}

// GetAttemptToken keeps an adaptive retryer's rate limit, which the embedded
// interface would hide.
func (a *attempts) GetAttemptToken(ctx context.Context) (func(error) error, error) {
	if r, ok := a.Retryer.(aws.RetryerV2); ok {
		return r.GetAttemptToken(ctx)
	}
	return a.Retryer.GetInitialToken(), nil
}

// classify returns ErrUnavailable or ErrCorrupt for an error after which the
// request was certainly not applied, with advice on what to change, and nil for
// all others.
func classify(err error) (advice string, class error) {
	if errors.Is(err, lockstore.ErrUnavailable) {
		return "", lockstore.ErrUnavailable // no credentials, see client.go
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return classifyCode(api)
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && (dial.Op == "dial" || dial.Op == "proxyconnect") {
		return "there is no connection to DynamoDB", lockstore.ErrUnavailable
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "the endpoint's name cannot be resolved", lockstore.ErrUnavailable
	}
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	if unverified || notTLS || errors.Is(err, http.ErrSchemeMismatch) {
		return "the endpoint does not prove by TLS that it is DynamoDB", lockstore.ErrUnavailable
	}
	return "", nil
}

// classifyCode knows the codes by which DynamoDB refuses a request before it
// looks at the item. Conflicts with transactions or other Regions are not
// among them: they resolve at once when the request is repeated, and repeating
// is what an unknown outcome leads to.
func classifyCode(api smithy.APIError) (advice string, class error) {
	switch code := api.ErrorCode(); code {
	case "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "RequestLimitExceeded":
		return "the table is throttled", lockstore.ErrUnavailable
	case "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "ExpiredToken",
		"InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignatureException", "IncompleteSignature",
		"MissingAuthenticationTokenException", "MissingAuthenticationToken", "InvalidClientTokenId", "OptInRequired":
		return "the credentials are not accepted or do not allow dynamodb:UpdateItem and dynamodb:GetItem on this table (and its KMS key)", lockstore.ErrUnavailable
	case "ResourceNotFoundException":
		return "the table does not exist in this region and account, or is being made or deleted", lockstore.ErrCorrupt
	case "ValidationException":
		if strings.Contains(api.ErrorMessage(), "KMS") {
			return "the table's KMS key cannot be used", lockstore.ErrUnavailable
		}
		return `the table cannot hold locks: it needs the partition key "key" of type S and no sort key`, lockstore.ErrCorrupt
	default:
		if strings.HasPrefix(code, "KMS") {
			return "the table's KMS key cannot be used", lockstore.ErrUnavailable
		}
		return "", nil
	}
}

// explain turns a failed call into this store's error: of one class if no
// attempt can have been applied, of unknown outcome otherwise.
func (s *Store) explain(key string, err error, tries attempts) error {
	advice, class := classify(err)
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case tries.ambiguous:
		advice, class = "", nil
	case class == nil && tries.watched && ended:
		advice, class = "not sent, or refused by each attempt so far", lockstore.ErrUnavailable
	}
	if class == nil {
		return fmt.Errorf("dynamostore: table %s, key %q: the outcome is unknown: %w", s.table, key, err)
	}
	if advice != "" {
		advice += ": "
	}
	return fmt.Errorf("dynamostore: table %s, key %q: %w: %s%w", s.table, key, class, advice, err)
}

// notSent is the error for a context that has ended before a request.
func notSent(key string, err error) error {
	return fmt.Errorf("dynamostore: key %q: not sent: %w: %w", key, lockstore.ErrUnavailable, err)
}
