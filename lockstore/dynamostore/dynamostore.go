package dynamostore

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/lambdalock/lambdalock/lockstore"
)

// API is what the store calls; *dynamodb.Client has these methods. A wrapper must pass
// the options on to the client, because through them the store counts what was sent.
// Without the options the outcome of each failed call is unknown, and so is the outcome
// of a refused Release. The store may call a method in another goroutine, and does not
// wait for a method that goes on after its context has ended.
type API interface {
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
}

// Options are a Store's settings; the zero value is good.
type Options struct {
	// Skew is how far the local clock may be behind DynamoDB's clock. If it is further
	// behind, a lease is trusted for less than its TTL. The store adds Skew to the end of
	// each lease, so others wait longer by Skew when the holder dies. 0 means
	// DefaultSkew; at most MaxSkew. Users of one table may have different values.
	Skew time.Duration
	// Key, Sort and TTL are the names of the table's partition key, of its sort key and of
	// the attribute of its time to live. "" means "key", no sort key, and "ttl". So locks
	// can be in a table that has other items. Key and Sort are of type S; the value of
	// Sort is SortValue in each row of a lock. All users of a row need the same TTL: a row
	// that has no attribute of this name is refused, with an error that matches
	// lockstore.ErrCorrupt.
	Key, Sort, TTL string
	// OtherTTL is for the time in which the name TTL changes, and "" otherwise: rows whose
	// time to live is OtherTTL are good, too. Each write that sets TTL removes OtherTTL. The
	// steps of a change are in docs/stores.md.
	OtherTTL string
	// Prefix is written before each key, at most 1024 bytes of text. Items that do not
	// belong to the locks must not have a partition key that begins with it and, if there
	// is a sort key, SortValue there. All users of a resource need the same Prefix.
	Prefix string
	// Logger gets a warning when a wrong local clock made the store acquire a lease
	// twice. nil means slog.Default() at that time.
	Logger *slog.Logger
}

// Bounds of Options.Skew.
const (
	DefaultSkew = time.Second
	MaxSkew     = time.Minute
)

const (
	// margin is for hosts of DynamoDB whose Dates differ.
	margin = 250 * time.Millisecond
	// dateStep is the step of the Date header: whole seconds, rounded down.
	dateStep = time.Second
	// idleRow is how long an unused row stays at least. Only late duplicates need the
	// row, because the next fence comes from the clock. DynamoDB refuses a request a few
	// minutes after its signature.
	idleRow = 24 * time.Hour
)

// Store keeps leases in a DynamoDB table. It implements lockstore.Store,
// lockstore.Inspector, lockstore.Completer, lockstore.Resolver, lockstore.Checker,
// lockstore.Queuer, lockstore.Revoker and lockstore.Lister.
type Store struct {
	api   API
	table string
	names names
	skew  time.Duration
	log   *slog.Logger // nil means slog.Default()
	clock clock

	random func(time.Duration) time.Duration // from 0 to the argument

	waiting sync.Map // of owners that AwaitTurn has returned for to the row that it saw, a sight
}

var (
	_ lockstore.Store     = (*Store)(nil)
	_ lockstore.Inspector = (*Store)(nil)
	_ lockstore.Completer = (*Store)(nil)
	_ lockstore.Resolver  = (*Store)(nil)
	_ lockstore.Checker   = (*Store)(nil)
	_ lockstore.Queuer    = (*Store)(nil)
)

// New returns a store that keeps its locks in table and calls client. The client's
// retryer should allow at least two attempts, with short pauses: DynamoDB refuses the
// first request of a client whose clock is wrong, and the SDK corrects the second one.
// The errors of New match lockstore.ErrInvalid.
func New(client API, table string, opt Options) (*Store, error) {
	if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, invalid("the client is nil")
	}
	if err := validateTable(table); err != nil {
		return nil, err
	}
	if opt.Skew == 0 {
		opt.Skew = DefaultSkew
	}
	if opt.Skew < 0 || opt.Skew > MaxSkew {
		return nil, invalid("Skew is %v; want 0 to %v", opt.Skew, MaxSkew)
	}
	n, err := opt.names()
	if err != nil {
		return nil, err
	}
	return &Store{api: client, table: table, names: n, skew: opt.Skew, log: opt.Logger, random: rand.N[time.Duration]}, nil
}

// where names the table in errors. It adds the region and the endpoint if the client
// shows them.
func (s *Store) where() string {
	name := "table " + s.table
	c, ok := s.api.(interface{ Options() dynamodb.Options })
	if !ok {
		return name
	}
	opt := c.Options()
	if opt.Region != "" {
		name += " in " + opt.Region
	}
	if u, err := url.Parse(aws.ToString(opt.BaseEndpoint)); err == nil && u.Host != "" {
		name += " at " + u.Host // the rest of the URL may be secret
	}
	return name
}

func validateTable(name string) error {
	if len(name) < 3 || len(name) > 255 {
		return invalid("the table name %.300q has %d characters; want 3 to 255", name, len(name))
	}
	for _, r := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", r) {
			return invalid("the table name %q has the character %q; want letters, digits, '_', '.' and '-'", name, r)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return lockstore.Invalidf("dynamostore: "+format, args...)
}

// errNotMade is the error of a Store that New has not made.
var errNotMade = invalid("this Store was not made by New")

// write is one conditional update of a key's row.
type write struct {
	key       string
	update    string
	condition string // on a row that exists, see names.expressions
	makesRow  bool   // also if there is no row
	values    map[string]types.AttributeValue
	oldRow    bool // ask for the row before an applied write; a refusal always brings the row
}

// reply is DynamoDB's answer to a write or a read.
type reply struct {
	applied   bool
	ambiguous bool                            // refused, but another attempt of the same call may have been applied
	sentOnce  bool                            // the client has sent one attempt
	item      map[string]types.AttributeValue // the row before the write, or at a refusal, or at a read
	sent      time.Time                       // local time before the request
	date      time.Time                       // DynamoDB's time in whole seconds; zero without a Date header
}

// update sends a write. A refused condition is a reply, not an error.
func (s *Store) update(ctx context.Context, w write) (reply, error) {
	if s.api == nil {
		return reply{}, errNotMade
	}
	update, condition := s.names.expressions(w)
	in := &dynamodb.UpdateItemInput{
		TableName:                           &s.table,
		Key:                                 s.names.row(w.key),
		UpdateExpression:                    &update,
		ConditionExpression:                 &condition,
		ExpressionAttributeNames:            s.names.aliases(update, condition),
		ExpressionAttributeValues:           w.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	if w.oldRow {
		in.ReturnValues = types.ReturnValueAllOld
	}
	r := reply{sent: s.clock.local()}
	out, seen, err := call(ctx, s.api.UpdateItem, in)
	if refusal, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		r.item, r.ambiguous = refusal.Item, seen.ambiguous()
		r.date = failureDate(err)
	} else if err != nil {
		s.clock.learn(r.sent, failureDate(err))
		return reply{}, s.explain(ofKey(w.key), unknownWrite, err, seen)
	} else {
		r.applied = true
		r.item = out.Attributes
		r.date = serverTime(out.ResultMetadata)
	}
	r.sentOnce = seen.watched && seen.sent == 1
	s.clock.learn(r.sent, r.date)
	return r, nil
}

// serverTime is the Date header of a response; zero without one.
func serverTime(m middleware.Metadata) time.Time {
	date, _ := awsmiddleware.GetServerTime(m)
	return date
}

// failureDate is the Date header of an error's response.
func failureDate(err error) time.Time {
	resp, ok := errors.AsType[*awshttp.ResponseError](err)
	if !ok || resp.Response == nil || resp.Response.Response == nil {
		return time.Time{}
	}
	date, err := http.ParseTime(resp.Response.Header.Get("Date"))
	if err != nil {
		return time.Time{}
	}
	return date
}

// Inspect implements lockstore.Inspector by one consistent read. Status.Fence can be
// larger than the fence of the last grant, because an abandon makes it larger too.
func (s *Store) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := lockstore.ValidateKey(key); err != nil {
		return lockstore.Status{}, err
	}
	entry, r, err := s.read(ctx, key)
	if err != nil {
		return lockstore.Status{}, err
	}
	return s.status(key, entry, r), nil
}

// status is the state of a row that a reply has brought.
func (s *Store) status(key string, entry row, r reply) lockstore.Status {
	status := lockstore.Status{Key: key, Fence: entry.fence, Waiting: len(entry.queue)}
	switch {
	case entry.owner != "" && !takeable(entry, r.date):
		status.Held, status.Kept, status.Broken = true, entry.owner == closedOwner, entry.owner == brokenOwner
		status.Holder = entry.holder
		status.Remaining = s.remaining(entry, r)
	case inDoubt(entry, r.date):
		status.Held, status.InDoubt = true, true
		status.Holder = entry.holder
	}
	return status
}
