package redisstore

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
)

// DefaultPrefix is the beginning of every lock's key on the server.
const DefaultPrefix = "lambdalock:"

// Options are settings of New. The zero value is good.
type Options struct {
	// Prefix is the beginning of every lock's key on the server; "" means DefaultPrefix.
	// All users of a resource need the same prefix and the same key.
	//
	// Two locks are the same if prefix + key is the same text: the prefix "shop:" with the
	// key "eu:7" is the prefix "shop:eu:" with the key "7". To separate stores, choose
	// prefixes that are not the beginning of one another.
	Prefix string
}

// Store keeps leases on a Redis or Valkey server. It also implements lockstore.Inspector,
// lockstore.Keeper, lockstore.Settler, lockstore.Checker, lockstore.Queuer,
// lockstore.Breaker and lockstore.Lister.
type Store struct {
	client  redis.UniversalClient
	server  string // its address in the client's settings
	wakeUps *wakeUps
	ends    bool // a call can end its connection's wait, see callContext
	prefix  string
	scripts [scriptNames]script
}

var (
	_ lockstore.Store     = (*Store)(nil)
	_ lockstore.Inspector = (*Store)(nil)
	_ lockstore.Keeper    = (*Store)(nil)
	_ lockstore.Settler   = (*Store)(nil)
	_ lockstore.Checker   = (*Store)(nil)
	_ lockstore.Queuer    = (*Store)(nil)
)

// New returns a store that uses client. The caller closes the client.
//
// Each call of the store ends with its context, whatever the client's settings are. The
// client itself may use a connection of its pool for longer: until its ReadTimeout, or
// until the context's deadline if ContextTimeoutEnabled is set. [Client] has settings for
// a Lambda function.
//
// The client may send a request again, because every request is idempotent. It sends
// nothing after the call has ended.
//
// The client is a *redis.Client or a *redis.ClusterClient. Tracing and metrics are hooks of
// it, see its AddHook. New refuses other clients. The error matches lockstore.ErrInvalid.
//
//	nil
//	no ReadTimeout or no WriteTimeout  a command might never end
//	*redis.Ring                        moves a key to another server when one is down, so
//	                                   two owners could hold the lock
//	*redis.AutoPipeliner               writes commands after their context has ended
//	another type                       also one that embeds a client: the store could not
//	                                   see a cluster behind it, and its listings would miss
//	                                   keys
func New(client redis.UniversalClient, opt Options) (*Store, error) {
	if refused := refusal(client); refused != "" {
		return nil, lockstore.Invalidf("redisstore: the client %s", refused)
	}
	if opt.Prefix == "" {
		opt.Prefix = DefaultPrefix
	}
	return &Store{
		client:  client,
		server:  address(client),
		wakeUps: newWakeUps(client),
		ends:    isEndable(client),
		prefix:  opt.Prefix,
		scripts: newScripts(),
	}, nil
}

// address is where a client connects, or the addresses of a cluster's first nodes.
func address(client redis.UniversalClient) string {
	if c, ok := client.(*redis.ClusterClient); ok {
		return strings.Join(c.Options().Addrs, ", ")
	}
	return client.(*redis.Client).Options().Addr
}

// refusal is the reason why a client cannot be used, or "".
func refusal(client redis.UniversalClient) (why string) {
	const want = "; want a *redis.Client or *redis.ClusterClient"
	v := reflect.ValueOf(client)
	if client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return "is nil" + want
	}
	unlimited := func(read, write time.Duration) string {
		name := "ReadTimeout"
		switch {
		case read > 0 && write > 0:
			return ""
		case read > 0:
			name = "WriteTimeout"
		}
		return "has no " + name + ", so that a command without an answer might never end; want a " + name + " of more than 0"
	}
	defer func() {
		if recover() != nil { // it has no options
			why = "was not made by go-redis" + want
		}
	}()
	switch c := client.(type) {
	case *redis.Client:
		return unlimited(c.Options().ReadTimeout, c.Options().WriteTimeout)
	case *redis.ClusterClient:
		return unlimited(c.Options().ReadTimeout, c.Options().WriteTimeout)
	case *redis.Ring:
		return "is a Ring, which moves keys to another server when one is down" + want
	case *redis.AutoPipeliner:
		return "is an AutoPipeliner, whose commands outlive their context" + want
	}
	return fmt.Sprintf("is a %T", client) + want + ", with hooks for tracing"
}

// Acquire implements lockstore.Store.
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Lease{}, err
	}
	r, err := s.run(ctx, acquireScript, req.Key, req.Owner, micros(req.TTL), req.Holder.Encode(), retention(req.TTL), flag(req.Queue))
	if err != nil {
		return lockstore.Lease{}, err
	}
	if r.code != granted {
		return lockstore.Lease{}, r.refusal(req.Key)
	}
	s.wakeUps.expect(req.Owner, r.next)
	// r.left can be more than req.TTL: the server rounds up, the lease was renewed, or the
	// server's clock has stepped back. In the last case more than req.TTL is not safe.
	return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: r.fence, TTL: min(r.left, req.TTL)}, nil
}

// Renew implements lockstore.Store.
func (s *Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := lease.Validate(); err != nil {
		return 0, err
	}
	if err := lockstore.ValidateTTL(ttl); err != nil {
		return 0, err
	}
	r, err := s.run(ctx, renewScript, lease.Key, lease.Owner, micros(ttl), int64(lease.Fence), retention(ttl))
	if err != nil {
		return 0, err
	}
	if r.code != granted {
		return 0, r.refusal(lease.Key)
	}
	return r.left, nil
}

// Release implements lockstore.Store.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	r, err := s.release(ctx, lease)
	if err != nil {
		return err
	}
	if err := r.done(lease.Key); err != nil {
		return err
	}
	s.wake(ctx, lease.Owner, r.next)
	return nil
}

// Begin implements lockstore.Keeper.
func (s *Store) Begin(ctx context.Context, lease lockstore.Lease) error {
	if err := lockstore.ValidateGrant(lease); err != nil {
		return err
	}
	r, err := s.run(ctx, beginScript, lease.Key, lease.Owner, int64(lease.Fence))
	if err != nil {
		return err
	}
	return r.done(lease.Key)
}

// Keep implements lockstore.Keeper. Those who wait learn the answer when they ask next,
// within a second.
func (s *Store) Keep(ctx context.Context, lease lockstore.Lease, data []byte, d time.Duration) error {
	if err := lockstore.ValidateKeep(lease, data, d); err != nil {
		return err
	}
	if err := s.made(); err != nil {
		return err
	}
	s.wakeUps.expected(lease.Owner) // nobody is woken
	r, err := s.run(ctx, answerScript, lease.Key, lease.Owner, int64(lease.Fence), micros(d), secret(data))
	if err != nil {
		return err
	}
	return r.done(lease.Key)
}

// SettleKept implements lockstore.Settler.
func (s *Store) SettleKept(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	if err := lockstore.ValidateSettleKept(key, fence, data, d); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, data, d)
}

// SettleFree implements lockstore.Settler.
func (s *Store) SettleFree(ctx context.Context, key string, fence lockstore.Fence) error {
	if err := lockstore.ValidateSettleFree(key, fence); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, nil, 0)
}

func (s *Store) settle(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	r, err := s.run(ctx, settleScript, key, "", int64(fence), micros(d), secret(data))
	if err != nil {
		return err
	}
	if r.code == lost && !r.ambiguous {
		return fmt.Errorf("redisstore: key %q: it is not in doubt with this fence: %w", key, lockstore.ErrLost)
	}
	return r.done(key)
}

// secret is data of the user as an argument of a command. Hooks that print commands see
// its length.
type secret []byte

// MarshalBinary is called when the client writes the command.
func (s secret) MarshalBinary() ([]byte, error) { return s, nil }

func (s secret) String() string { return lockstore.Secret(s).String() }

// done is the error of a request that ends or begins something, or nil.
func (r reply) done(key string) error {
	switch {
	case r.code == released:
		return nil
	case r.code == lost && r.ambiguous:
		// The other attempt may have released the lease, and other owners may have had the
		// key since. ErrLost would say that the lease was lost before the release.
		return fmt.Errorf("redisstore: key %q: outcome unknown: a reply was lost, and the entry does not show this lease", key)
	}
	return r.refusal(key)
}

// Inspect implements lockstore.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := lockstore.ValidateKey(key); err != nil {
		return lockstore.Status{}, err
	}
	r, err := s.run(ctx, inspectScript, key, "")
	if err != nil {
		return lockstore.Status{}, err
	}
	switch r.code {
	case held, broken, answered, inDoubt:
		return lockstore.Status{
			Key: key, Held: true, Kept: r.code == answered, InDoubt: r.code == inDoubt, Broken: r.code == broken,
			Holder: r.holder, Fence: r.fence, Remaining: r.left, Waiting: r.queue,
		}, nil
	case free:
		return lockstore.Status{Key: key, Fence: r.fence, Waiting: r.queue}, nil
	}
	return lockstore.Status{}, r.refusal(key)
}

// retention is how long the server keeps an entry after a grant or a renewal: the TTL and
// an hour, in milliseconds, rounded up.
func retention(ttl time.Duration) int64 {
	return int64((ttl + time.Hour + time.Millisecond - 1) / time.Millisecond)
}

// flag is a bool as a script's argument.
func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// micros rounds up, so that a lease is not shorter than requested.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
