package stores

import (
	"regexp"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

// sdkTrace is what the SDK adds to an error in each of its layers.
var sdkTrace = regexp.MustCompile(`operation error DynamoDB: \w+, (exceeded maximum number of attempts, \d+, )?` +
	`(https response error StatusCode: \d+, RequestID: [^,]*, )?(request send failed, \w+ "[^"]*": )?`)

// short is an error whose text is without what the AWS SDK adds in each of its layers, and without the class of a
// store's error, which the exit status tells, behind what is wrong.
type short struct{ error }

func (e short) Error() string {
	return strings.NewReplacer(": "+lockstore.ErrUnavailable.Error()+": ", ": ", ": "+lockstore.ErrCorrupt.Error()+": ", ": ").
		Replace(sdkTrace.ReplaceAllString(e.error.Error(), ""))
}

func (e short) Unwrap() error { return e.error }
