package dynamostore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/lambdalock/lambdalock/lockstore"
)

// classify returns ErrUnavailable or ErrCorrupt, and advice, for an error that proves
// that this attempt was not applied; an error that is no answer proves it only if the attempt had no connection. For all other
// errors class is nil, also for a refused condition. watcher.attempt and explain call it.
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

// wrongKeys is advice to which explain adds which keys the table needs.
const wrongKeys = "the table cannot hold locks: it needs "

// classifyCode knows the codes with which DynamoDB refuses a request before it reads the
// item. Conflicts with transactions or with other Regions are not among them: their
// outcome is unknown, so the caller sends the request again, and that helps at once. classify calls it.
func classifyCode(api smithy.APIError) (advice string, class error) {
	code, message := api.ErrorCode(), strings.ToLower(api.ErrorMessage())
	invalid := func(texts ...string) bool { // it has no other code for its reasons
		return code == "ValidationException" && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(message, text) })
	}
	switch {
	case slices.Contains(throttling, code):
		return "the table is throttled", lockstore.ErrUnavailable
	case slices.Contains(notAllowed, code):
		return "the credentials are not accepted, or do not allow this action on the table and its KMS key; locking needs dynamodb:UpdateItem and dynamodb:GetItem, Check needs dynamodb:DescribeTable and dynamodb:DescribeTimeToLive, List needs dynamodb:Scan and dynamodb:DescribeTable", lockstore.ErrUnavailable
	case code == "ResourceNotFoundException":
		return "it does not exist in this account, or it is being made or deleted; make it, or correct the table's name, the region or the credentials", lockstore.ErrCorrupt
	case strings.HasPrefix(code, "KMS"), code == "ValidationException" && strings.Contains(api.ErrorMessage(), "KMS"):
		return "the table's KMS key cannot be used", lockstore.ErrUnavailable
	case invalid("index key", "indexkey", "indexname", "secondary index", "hashkey", "range key"): // the table's own key is never too long
		return "the table has an index whose key is an attribute of locks and cannot have this value; Check names the index: delete it, or use another table", lockstore.ErrUnavailable
	case invalid("key element", "required keys", "conditions on the keys"):
		return wrongKeys, lockstore.ErrCorrupt
	case invalid(""):
		return "it refuses the request as invalid: the row is damaged, or the table is not one for locks", lockstore.ErrCorrupt
	}
	return "", nil
}

// notAllowed are the codes of a request whose credentials are not accepted.
var notAllowed = []string{
	"AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "ExpiredToken",
	"InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignatureException", "IncompleteSignature",
	"MissingAuthenticationTokenException", "MissingAuthenticationToken", "InvalidClientTokenId", "OptInRequired",
}

// throttling are the codes of a request that is refused because there are too many.
var throttling = []string{"ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "RequestLimitExceeded"}

// throttled says whether DynamoDB has refused a request because there are too many. watcher.attempt and onceThrottled call it.
func throttled(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && slices.Contains(throttling, api.ErrorCode())
}

// failure is an error whose text says what has happened, and does not repeat the words of its
// class. cause may be nil.
type failure struct {
	text         string
	class, cause error
}

func (f *failure) Error() string {
	if f.cause == nil {
		return f.text
	}
	return f.text + ": " + f.cause.Error()
}

func (f *failure) Unwrap() []error {
	if f.cause == nil {
		return []error{f.class}
	}
	return []error{f.class, f.cause}
}

// unknown is the error of a write that may have been applied. update calls it.
func (t *table) unknown(what string, err error, seen attempts) error {
	if !seen.watched {
		err = fmt.Errorf("the client does not show what it has sent: %w", err)
	}
	return withoutClass("", fmt.Errorf("dynamostore: %s, %s: the outcome is unknown: %w", t.where(), what, err))
}

// explain turns the error of a failed call into this store's error: of a read, which changes nothing, or of a write that was certainly not applied. what names
// the call. Each function that uses call passes its error to it; update passes neither a refused condition nor an unknown outcome.
func (t *table) explain(what string, err error, seen attempts) error {
	var advice string
	var class error
	if errors.Is(err, seen.last) { // otherwise it may be the answer of another service, as of one for credentials
		advice, class = classify(err)
	}
	switch {
	case advice == wrongKeys:
		advice += t.names.want()
	case class != nil:
	case seen.ambiguous():
		advice, class = "nothing was read", lockstore.ErrUnavailable
	case seen.sent == 0:
		advice, class = "nothing was sent", lockstore.ErrUnavailable
	default:
		advice, class = "each attempt was refused", lockstore.ErrUnavailable
	}
	if seen.throttled {
		class = errors.Join(class, lockstore.ErrContended)
	}
	return &failure{fmt.Sprintf("dynamostore: %s: %s (%s)", t.where(), advice, what), class, err}
}

// replyLost is an unknown outcome: the attempt whose reply was lost may have ended the lease. answerUnchanged and revokedBefore call it.
func replyLost(key string) error {
	return fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and the row does not show this lease", key)
}

// ofKey names a call in an error by its key. update and table.read call it.
func ofKey(key string) string { return fmt.Sprintf("key %q", key) }

// outcome is the error of a call that sends several requests, when the last request has
// failed with err. If ambiguous, an earlier request of the call was applied or may have
// been applied. Then the error must not say that the call was not applied: it matches neither ErrUnavailable nor ErrCorrupt. Each function
// that may fail after an earlier write calls it: acquire, release, giveUp, answerWrite and unmark.
func outcome(err error, ambiguous bool) error {
	if !ambiguous {
		return err
	}
	return withoutClass("the outcome is unknown, an earlier request of the call may have been applied: ", err)
}

// withoutClass is err if it matches neither ErrUnavailable nor ErrCorrupt. Otherwise it is an error with the prefix and the text of err that matches
// neither: a client's error may match them, too, as that of credentials does. outcome and unknown call it.
func withoutClass(prefix string, err error) error {
	if !errors.Is(err, lockstore.ErrUnavailable) && !errors.Is(err, lockstore.ErrCorrupt) {
		return err
	}
	unknown := &failure{text: prefix + err.Error()}
	for _, also := range []error{lockstore.ErrContended, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, also) {
			unknown.class = errors.Join(unknown.class, also)
		}
	}
	return unknown
}
