package stores

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

// IsLocalDynamoDB says that a URL names a DynamoDB on this machine.
func IsLocalDynamoDB(u *url.URL) bool {
	endpoint, err := lockstore.ParseEndpoint(u.Query().Get("endpoint"))
	return err == nil && u.Scheme == "dynamodb" && lockstore.IsThisMachine(endpoint.Hostname())
}

// sdkTrace is what the SDK adds to an error in each of its layers.
var sdkTrace = regexp.MustCompile(`operation error DynamoDB: \w+, (exceeded maximum number of attempts, \d+, )?` +
	`(https response error StatusCode: \d+, RequestID: [^,]*, )?(request send failed, \w+ "[^"]*": )?`)

// shortError is an error whose text is without sdkTrace.
type shortError struct{ error }

func short(err error) error { return shortError{err} }

func (e shortError) Error() string { return Short(e.error.Error()) }

func (e shortError) Unwrap() error { return e.error }

// Short takes out of an error's text what the AWS SDK adds in each of its layers, and the
// class of a store's error, which the exit status tells, behind what is wrong.
func Short(text string) string {
	return strings.NewReplacer(": "+lockstore.ErrUnavailable.Error()+": ", ": ", ": "+lockstore.ErrCorrupt.Error()+": ", ": ").
		Replace(sdkTrace.ReplaceAllString(text, ""))
}
