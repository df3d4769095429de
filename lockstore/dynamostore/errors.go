package dynamostore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/lambdalock/lambdalock/lockstore"
)

// classify returns ErrUnavailable or ErrCorrupt for an error after which the
// request was certainly not applied, with advice on what to change, and nil for
// all others.
func classify(err error) (advice string, class error) {
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
		return "the credentials are not accepted, or do not allow this action on the table and its KMS key; locking needs dynamodb:UpdateItem and dynamodb:GetItem, Check needs dynamodb:DescribeTable and dynamodb:DescribeTimeToLive", lockstore.ErrUnavailable
	case "ResourceNotFoundException":
		return "it does not exist in this account, or it is being made or deleted; make it, or correct the table's name, the region or the credentials", lockstore.ErrCorrupt
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
// request can have been applied, of unknown outcome otherwise. what says what was
// asked for.
func (s *Store) explain(what string, err error, seen attempts) error {
	advice, class := classify(err)
	switch {
	case !seen.watched:
		return fmt.Errorf("dynamostore: %s, %s: the outcome is unknown, the client does not show what it has sent: %w", s.where(), what, err)
	case seen.unsure():
		return fmt.Errorf("dynamostore: %s, %s: the outcome is unknown: %w", s.where(), what, err)
	case class != nil:
	case seen.sent == 0:
		advice, class = "nothing was sent", lockstore.ErrUnavailable
	default:
		advice, class = "refused each time, and not sent again", lockstore.ErrUnavailable
	}
	return fmt.Errorf("dynamostore: %s: %s (%s): %w: %w", s.where(), advice, what, class, err)
}

func ofKey(key string) string { return fmt.Sprintf("key %q", key) }

// outcome is err, of a call that sends several requests. unsure says that one
// before the last was applied, or may be: then nothing is certain about the call,
// also when the last request was refused.
func outcome(err error, unsure bool) error {
	if unsure && errors.Is(err, lockstore.ErrUnavailable) {
		return unsureError{err}
	}
	return err
}

// unsureError is an error without its class.
type unsureError struct{ last error }

func (e unsureError) Error() string {
	return "the outcome is unknown, an earlier request of the call may have been applied: " + e.last.Error()
}

// Is matches what the last error matches, for example the context's, but not
// ErrUnavailable.
func (e unsureError) Is(target error) bool {
	return target != lockstore.ErrUnavailable && errors.Is(e.last, target)
}

func (e unsureError) As(target any) bool { return errors.As(e.last, target) }
