package dynamostore

import (
	"cmp"
	"context"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

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
	// DefaultSkew; at most a minute. Users of one table may have different values.
	Skew time.Duration
	// Key, Sort and TTL are the names of the table's partition key, of its sort key and of
	// the attribute of its time to live. "" means "key", no sort key, and "ttl". So locks
	// can be in a table that has other items. Key and Sort are of type S; the value of
	// Sort is "lambdalock" in each row of a lock. All users of a row need the same TTL: a row
	// that has no attribute of this name is refused, with an error that matches
	// lockstore.ErrCorrupt.
	Key, Sort, TTL string
	// Prefix is written before each key, at most 1024 bytes of text. Items that do not
	// belong to the locks must not have a partition key that begins with it and, if there
	// is a sort key, "lambdalock" there. All users of a resource need the same Prefix.
	Prefix string
}

// DefaultSkew is Options.Skew by default.
const DefaultSkew = time.Second

const maxSkew = time.Minute

// Store keeps leases in a DynamoDB table. It has the methods of [lockstore.Store], and
// StillHeld, CompleteItem and IsStale for transactions of the caller's own.
type Store struct {
	*lockstore.Store
	table *table
}

// New returns a store that keeps its locks in the table of this name and calls client. The
// client's retryer should allow at least two attempts, with short pauses: DynamoDB refuses
// the first request of a client whose clock is wrong, and the SDK corrects the second one.
// The errors of New match lockstore.ErrInvalid.
func New(client API, name string, opt Options) (*Store, error) {
	if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, invalid("the client is nil")
	}
	other := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
	switch {
	case len(name) < 3 || len(name) > 255:
		return nil, invalid("the table name %.300q has %d characters; want 3 to 255", name, len(name))
	case other != "":
		return nil, invalid("the table name %q has the character %.1q; want letters, digits, '_', '.' and '-'", name, other)
	}
	opt.Skew = cmp.Or(opt.Skew, DefaultSkew)
	if opt.Skew < 0 || opt.Skew > maxSkew {
		return nil, invalid("Skew is %v; want 0 to %v", opt.Skew, maxSkew)
	}
	n, err := opt.names()
	if err != nil {
		return nil, err
	}
	t := &table{api: client, name: name, names: n, skew: opt.Skew, clock: clock{now: time.Now, started: time.Now()}, random: rand.N[time.Duration]}
	return &Store{lockstore.New("dynamostore", t), t}, nil
}

// invalid makes an error that matches lockstore.ErrInvalid. The functions that check a setting call it, and so does Fenced.
func invalid(format string, args ...any) error {
	return lockstore.Invalidf("dynamostore: "+format, args...)
}
