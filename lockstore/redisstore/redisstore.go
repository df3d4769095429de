package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/lanes"
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

// server is the driver: it keeps the entries on a Redis or Valkey server.
type server struct {
	client  redis.UniversalClient
	cluster bool
	address string // in the client's settings; of a cluster: the addresses of its first nodes
	wakeUps *wakeUps
	lanes   *lanes.Lanes // nil for a cluster: a node that hangs must not keep requests from the others
	ends    bool         // a call can end its connection's wait, see callContext
	prefix  string
	owns    bool // the client: nobody else can close it
}

// New returns a store that uses client. The caller closes the client, and Close of the store does not.
//
// Each call of the store ends with its context, whatever the client's settings are. The
// client itself may use a connection of its pool for longer: until its ReadTimeout, or
// until the context's deadline if ContextTimeoutEnabled is set. [Client] has settings for
// a Lambda function.
//
// The client may send a request again. Every request is idempotent, but for a lost reply to one that takes a wake-up or an address
// of a parked owner: that gets lost, too. The client sends nothing after the call has ended.
//
// The client is a *redis.Client or a *redis.ClusterClient. Tracing and metrics are hooks of
// it, see its AddHook. New refuses other clients, also one that embeds a client: the store could not see a cluster behind it.
// It refuses a client without timeouts, whose commands might never end. The error matches lockstore.ErrInvalid.
func New(client redis.UniversalClient, opt Options) (*lockstore.Store, error) {
	set, err := settingsOf(client)
	if err != nil {
		return nil, err
	}
	connections := set.PoolSize
	if set.MaxActiveConns > 0 {
		connections = min(connections, set.MaxActiveConns)
	}
	s := &server{
		client:  client,
		address: strings.Join(set.Addrs, ", "),
		wakeUps: newWakeUps(set.ReadTimeout, connections),
		ends:    isEndable(set.Dialer),
		prefix:  cmp.Or(opt.Prefix, DefaultPrefix),
	}
	if _, s.cluster = client.(*redis.ClusterClient); !s.cluster {
		s.lanes = lanes.New(connections)
	}
	return lockstore.New("redisstore", s), nil
}

// settingsOf has what a store needs of a client's settings, in the form that those of a cluster's client have. It refuses the clients that
// New names.
func settingsOf(client redis.UniversalClient) (set *redis.ClusterOptions, err error) {
	const want = "want a *redis.Client or *redis.ClusterClient"
	defer func() {
		if recover() != nil { // it has no options
			err = lockstore.Invalidf("redisstore: the client is nil, or was not made by go-redis; %s", want)
		}
	}()
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		set = &redis.ClusterOptions{
			Addrs: []string{o.Addr}, PoolSize: o.PoolSize, MaxActiveConns: o.MaxActiveConns, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, Dialer: o.Dialer,
		}
	case *redis.ClusterClient:
		set = c.Options()
	default:
		return nil, lockstore.Invalidf("redisstore: the client is a %T; %s, with hooks for tracing", client, want)
	}
	if min(set.ReadTimeout, set.WriteTimeout) <= 0 {
		return nil, lockstore.Invalidf("redisstore: the client has no ReadTimeout or no WriteTimeout, so that a command without an answer might never end; want both more than 0")
	}
	return set, nil
}

func (s *server) Close() error {
	if s.owns {
		return s.client.Close()
	}
	return nil
}

func (s *server) Do(ctx context.Context, key string, req driver.Request) (driver.Answer, error) {
	if err := s.lanes.Enter(ctx, lanes.Of(req)); err != nil {
		return driver.Answer{}, fmt.Errorf("redisstore: key %q: %w", key, err)
	}
	defer s.lanes.Leave()
	c, err := s.ask(ctx, key, req)
	if err != nil {
		return driver.Answer{}, err
	}
	a, handed, err := c.answer(req)
	if len(handed) > 0 {
		s.wake(ctx, key, req.Owner, handed)
	}
	return a, err
}

// ask sends a request.
func (s *server) ask(ctx context.Context, key string, r driver.Request) (*call, error) {
	switch r.Kind {
	case driver.Inspect:
		return s.run(ctx, key, "", "inspect")
	case driver.Acquire:
		args := []any{"acquire", micros(r.TTL) + " " + r.Holder, millis(r.TTL + time.Hour), most(r)}
		if r.Work != "" {
			args = append(args, r.Work+" "+r.Event)
		}
		return s.run(ctx, key, r.Owner, args...)
	case driver.Renew:
		return s.run(ctx, key, r.Owner, "renew", digits(r.Fence), micros(r.TTL))
	case driver.Release:
		return s.release(ctx, key, r)
	case driver.Abandon:
		return s.run(ctx, key, r.Owner, "abandon")
	case driver.Leave:
		return s.run(ctx, key, r.Owner, "leave")
	case driver.MarkStarted:
		return s.run(ctx, key, r.Owner, "started", digits(r.Fence))
	case driver.Complete:
		return s.run(ctx, key, r.Owner, "complete", digits(r.Fence), micros(r.TTL), secret{r.Result})
	case driver.Resolve:
		if !r.Effect {
			r.TTL = 0
		}
		return s.run(ctx, key, "", "resolve", digits(r.Fence), micros(r.TTL), secret{r.Result})
	case driver.Revoke:
		return s.run(ctx, key, "", "revoke", digits(r.Fence), r.Holder, r.AtOnce)
	}
	return nil, fmt.Errorf("redisstore: key %q: a request of the unknown kind %d: %w", key, r.Kind, lockstore.ErrUnavailable)
}

// most says how many may hold the key with an Acquire, + if it waits in the queue, and behind a space the fence of
// the lease that it extends.
func most(r driver.Request) string {
	most := strconv.Itoa(r.MaxHolders)
	switch {
	case r.Fence != 0:
		most += " " + digits(r.Fence)
	case r.Join && r.Parked > 0:
		most += "+" + micros(r.Parked)
	case r.Join:
		most += "+"
	}
	return most
}

// secret is data of the user, or has another owner, as an argument of a command. Hooks that print
// commands see its length.
type secret struct{ driver.HiddenBytes }

// MarshalBinary is called when the client writes the command.
func (s secret) MarshalBinary() ([]byte, error) { return s.HiddenBytes, nil }

// digits is a fence as an entry has it.
func digits(f driver.Fence) string { return fmt.Sprintf("%016d", f) }

// micros and millis round up, so that a lease is not shorter than requested.
func micros(d time.Duration) string { return strconv.FormatInt(units(d, time.Microsecond), 10) }

func millis(d time.Duration) int64 { return units(d, time.Millisecond) }

func units(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }
