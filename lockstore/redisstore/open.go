package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Opener opens redis, rediss, valkey and valkeys URLs. Close of the store ends its connections.
var Opener = lockstore.SchemeOpener{Schemes: schemes, Open: open}

var schemes = []string{"redis", "rediss", "valkey", "valkeys"}

func open(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
	return OpenWith(cfg, nil)
}

// OpenWith opens a store as Opener, with the credentials of [ClientWithCredentials]; nil are those of the URL. It makes no
// network call.
func OpenWith(cfg lockstore.Config, credentials func(context.Context) (user, password string, err error)) (*lockstore.Store, error) {
	client, err := ClientWithCredentials(cfg, credentials)
	if err != nil {
		return nil, err
	}
	s, err := New(client, Options{Prefix: cfg.URL.Query().Get("prefix")})
	if err != nil {
		return nil, err
	}
	s.Driver().(*server).owns = true
	return s, nil
}

// Client returns a client for the server that cfg.URL names, with settings for a Lambda
// function. It makes no network call. A function can also use the client for its own data.
//
//   - The client makes a connection when a request needs one.
//   - It does not use a connection again that was idle for 30 s. Such a connection may be
//     dead, because Lambda had frozen the process.
//   - It sends a request once. In a cluster it sends it again only if a node has refused it, for
//     example because the key has moved. The requests of a store may be repeated, see [New].
//   - The request ends with its context.
//
// In a hook of this client a store's context has a deadline that only the connection keeps.
// A time limit of more than 0.8 s that a hook makes of this context may never end. Make it
// of context.WithoutCancel(ctx).
func Client(cfg lockstore.Config) (redis.UniversalClient, error) {
	return ClientWithCredentials(cfg, nil)
}

// ClientWithCredentials is Client for a server whose password changes. The client calls
// credentials for each new connection, and does not use the URL's user and password. The
// function's context is that of the request that needs the connection, with its deadline.
// The client uses a connection for at most an hour, so that the server does not end the
// connection during a request.
func ClientWithCredentials(cfg lockstore.Config, credentials func(context.Context) (user, password string, err error)) (redis.UniversalClient, error) {
	opt, err := options(cfg)
	if err != nil {
		return nil, err
	}
	if credentials == nil && opt.Username != "" && opt.Password == "" {
		// The client would send neither, and work as the server's user default.
		return nil, lockstore.Invalidf("redisstore: the %s URL has a user without a password; "+
			"want user:password@host, or no user to work as the server's user default", cfg.URL.Scheme)
	}
	if credentials != nil {
		opt.Username, opt.Password = "", ""
		opt.CredentialsProviderContext = credentials
		opt.ConnMaxLifetime = time.Hour
	}
	return newClient(opt), nil
}

func newClient(opt *redis.UniversalOptions) redis.UniversalClient {
	opt.Dialer = endable(failAtFirstUse(opt.Dialer))
	if credentials := opt.CredentialsProviderContext; credentials != nil {
		opt.CredentialsProviderContext = func(ctx context.Context) (user, password string, err error) {
			return credentials(callersContext(ctx))
		}
	}
	if !opt.IsClusterMode {
		return redis.NewClient(opt.Simple())
	}
	cluster := opt.Cluster()
	// The keys of a script are on one node, and the first one says on which. So the client needs no table of
	// commands. Routing by command would ask the server for that table first.
	cluster.DisableRoutingPolicies = true
	client := redis.NewClusterClient(cluster)
	client.AddHook(once{})
	return client
}

// once keeps a cluster's client from a repeat after a lost reply, which its MaxRetries does not: a write of the user that is
// not idempotent would count twice. It still follows redirects. A store's request may be sent again, see New.
type once struct{}

func (once) DialHook(next redis.DialHook) redis.DialHook { return next }

func (once) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if ctx.Value(callKey{}) == nil { // not of a store
			cmd = notAgain{cmd}
		}
		return next(ctx, cmd)
	}
}

func (once) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		cmds = slices.Clone(cmds) // the pipeline's caller reads its own
		for i := range cmds {
			cmds[i] = notAgain{cmds[i]}
		}
		return next(ctx, cmds)
	}
}

type notAgain struct{ redis.Cmder }

func (notAgain) NoRetry() bool { return true }

func options(cfg lockstore.Config) (*redis.UniversalOptions, error) {
	params, err := storeurl.Params(cfg.URL, storeurl.Parts{
		Want: "rediss://USER:PASSWORD@HOST:PORT/DATABASE?prefix=TEXT",
		User: true, Host: true, Port: true, Path: true, Params: []string{"cluster", "connections", "plaintext", "prefix"},
	})
	if err != nil {
		return nil, err
	}
	u := cfg.URL
	invalid := func(format string, args ...any) error {
		return lockstore.Invalidf("redisstore: the %s URL %s", u.Scheme, fmt.Sprintf(format, args...))
	}

	cluster, clusterErr := strconv.ParseBool(cmp.Or(params["cluster"], "false"))
	plaintext, plaintextErr := strconv.ParseBool(cmp.Or(params["plaintext"], "false"))
	connections, connectionsErr := strconv.Atoi(cmp.Or(params["connections"], "10")) // an invocation uses one or two
	db, dbErr := strconv.Atoi(cmp.Or(strings.TrimPrefix(u.Path, "/"), "0"))
	encrypted := u.Scheme == "rediss" || u.Scheme == "valkeys"

	switch host := u.Hostname(); {
	case clusterErr != nil:
		return nil, invalid("has a parameter cluster that is not true or false")
	case plaintextErr != nil:
		return nil, invalid("has a parameter plaintext that is not true or false")
	case connectionsErr != nil || connections < 2 || connections > 1000:
		return nil, invalid("has a parameter connections that is not 2 to 1000")
	case !slices.Contains(schemes, u.Scheme):
		return nil, invalid("has an unknown scheme; want redis, rediss, valkey or valkeys")
	case encrypted && plaintext:
		return nil, invalid("has plaintext=true, but its scheme means TLS")
	case host == "":
		return nil, invalid("has no host")
	case strings.Contains(host, ","):
		return nil, invalid("names several hosts; want one, from which a cluster's client finds the others")
	case !encrypted && !plaintext && !storeurl.IsThisMachine(host):
		// Anyone on the network path could read the password and the owners, and end leases.
		return nil, invalid("is without TLS and its host is not this machine; want %ss://, "+
			"or plaintext=true if nobody else can read or change the traffic", u.Scheme)
	case dbErr != nil || db < 0: // the error does not show the path, which may contain a secret by mistake
		return nil, invalid("has a path that is not a database number")
	case cluster && db != 0:
		return nil, invalid("names a database and has cluster=true; a cluster has database 0 only")
	}
	password, _ := u.User.Password()
	dialer := dial
	if encrypted {
		dialer = dialTLS
	}
	return &redis.UniversalOptions{
		Addrs:         []string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379"))},
		Username:      u.User.Username(),
		Password:      password,
		DB:            db,
		IsClusterMode: cluster,
		Dialer:        dialer,

		Protocol:                 2, // protocol 3 adds push messages, which have no use here
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},

		// The guard repeats requests, because the guard knows how much time is left.
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		DialTimeout:           dialTimeout,
		ReadTimeout:           waitTimeout,
		WriteTimeout:          waitTimeout,

		PoolSize:        connections,
		ConnMaxIdleTime: 30 * time.Second,
	}, nil
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// failAtFirstUse turns a failed dial into a connection that fails at its first use, which
// is the greeting. There are two reasons:
//
//   - The client's pool prints a line for each failed dial. One client alone cannot turn
//     that off.
//   - After as many failures as it may have connections, the pool does not dial for a
//     request any more. A goroutine dials once a second, but not in a frozen process.
func failAtFirstUse(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil || errors.Is(ctx.Err(), context.Canceled) {
			return conn, err // cancelled: the pool would keep a connection that nobody uses
		}
		unused, _ := net.Pipe()
		return unreachable{unused, fmt.Errorf("%w", err)}, nil // the client unwraps the greeting's error once
	}
}

type unreachable struct {
	net.Conn
	err error
}

func (u unreachable) Write([]byte) (int, error) { return 0, u.err }

const (
	dialTimeout   = 900 * time.Millisecond
	answerTimeout = 800 * time.Millisecond
	// waitTimeout is for a wait for an element, which takes longer, and for commands that only list or check.
	waitTimeout = 4 * (maxBlock + silence) / 3
)

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, network, addr)
}

// dialTLS verifies the server's certificate for the host of addr. The handshake of the
// client's own dialer would not end with the context.
func dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: &tls.Config{MinVersion: tls.VersionTLS12}}
	return d.DialContext(ctx, network, addr)
}
