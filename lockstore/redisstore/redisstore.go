package redisstore

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
)

// DefaultPrefix stands before every lock's key on the server.
const DefaultPrefix = "lambdalock:"

// Options are settings of New. The zero value is good.
type Options struct {
	// Prefix stands before every lock's key on the server; "" is DefaultPrefix.
	// All users of a resource need the same prefix and key. Two locks are the same
	// if prefix and key together are the same text: with the prefix "shop:" the key
	// "eu:7" is the key "7" of the prefix "shop:eu:". To keep stores apart, choose
	// prefixes of which none begins with another.
	Prefix string
}

// Store keeps leases on a Redis or Valkey server. It also implements
// lockstore.Inspector, lockstore.CooldownReleaser and lockstore.Checker.
type Store struct {
	client  redis.UniversalClient
	ends    bool // the client's connections are this package's, see ending
	prefix  string
	scripts [scriptNames]script
}

var (
	_ lockstore.Store            = (*Store)(nil)
	_ lockstore.Inspector        = (*Store)(nil)
	_ lockstore.CooldownReleaser = (*Store)(nil)
	_ lockstore.Checker          = (*Store)(nil)
)

// New returns a store over a client of the caller's, who closes it. Each call of
// the store ends with its context, whatever the client's settings are. The client
// may wait for the reply a while longer, with a connection of its pool: until its
// ReadTimeout, or until the context's deadline if ContextTimeoutEnabled is set.
// Client has the settings that suit a Lambda function.
//
// The client's own retries are safe here, since every request is idempotent. None
// is written after the call has ended.
//
// These clients are refused with lockstore.ErrInvalid, also when another type
// embeds them: a nil one; one without a ReadTimeout or a WriteTimeout, whose
// commands might never end; a *redis.Ring, which moves a key to another server when
// one is down, and then two would hold the lock; and a *redis.AutoPipeliner, which
// writes commands after their context has ended.
func New(client redis.UniversalClient, opt Options) (*Store, error) {
	if refused := refusal(client); refused != "" {
		return nil, lockstore.Invalidf("redisstore: the client %s", refused)
	}
	if opt.Prefix == "" {
		opt.Prefix = DefaultPrefix
	}
	return &Store{
		client:  client,
		ends:    hasEnds(client),
		prefix:  opt.Prefix,
		scripts: newScripts(),
	}, nil
}

// refusal says why a client cannot be used, or "".
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
	if v = reflect.Indirect(v); v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			if !v.Type().Field(i).Anonymous || !v.Field(i).CanInterface() {
				continue
			}
			if inner, ok := v.Field(i).Interface().(redis.UniversalClient); ok {
				return refusal(inner)
			}
		}
	}
	return ""
}

// Acquire implements lockstore.Store.
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Lease{}, err
	}
	r, err := s.run(ctx, acquireScript, req.Key, req.Owner, micros(req.TTL), req.Holder.Encode(), retention(req.TTL))
	if err != nil {
		return lockstore.Lease{}, err
	}
	if r.code != granted {
		return lockstore.Lease{}, r.refusal(req.Key)
	}
	// The server may say more than req.TTL: it rounds up, the lease may have been
	// renewed, or the server's clock has stepped back. Cap it: what is beyond req.TTL
	// cannot be trusted in the last case and is not needed in the others.
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
	return s.end(ctx, lease, 0)
}

// ReleaseAfter implements lockstore.CooldownReleaser.
func (s *Store) ReleaseAfter(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	if err := lockstore.ValidateReleaseAfter(lease, d); err != nil {
		return err
	}
	return s.end(ctx, lease, d)
}

func (s *Store) end(ctx context.Context, lease lockstore.Lease, closed time.Duration) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	r, err := s.run(ctx, releaseScript, lease.Key, lease.Owner, int64(lease.Fence), micros(closed))
	if err != nil {
		return err
	}
	switch {
	case r.code == released:
		return nil
	case r.code == lost && r.doubt:
		// That attempt may have released it, and others had the key since then.
		// ErrLost would say that the lease vanished under its holder.
		return fmt.Errorf("redisstore: key %q: outcome unknown: a reply was lost, and the entry has no trace of this lease", lease.Key)
	}
	return r.refusal(lease.Key)
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
	case held:
		return lockstore.Status{Key: key, Held: true, Holder: r.holder, Fence: r.fence, Remaining: r.left}, nil
	case free:
		return lockstore.Status{Key: key, Fence: r.fence}, nil
	}
	return lockstore.Status{}, r.refusal(key)
}

// retention is how long the server keeps an entry after a grant or a renewal, in
// milliseconds: an hour longer than the lease. It rounds up.
func retention(ttl time.Duration) int64 {
	return int64((ttl + time.Hour + time.Millisecond - 1) / time.Millisecond)
}

// micros rounds up, so that a lease is not shorter than what was asked for.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
