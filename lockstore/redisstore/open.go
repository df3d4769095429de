package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Opener opens redis, rediss, valkey and valkeys URLs.
var Opener = lockstore.Opener{Schemes: []string{"redis", "rediss", "valkey", "valkeys"}, Open: Open}

// Open opens the store that cfg.URL names, see the package comment. It makes
// no network call.
func Open(_ context.Context, cfg lockstore.Config) (lockstore.Store, error) {
	client, err := Client(cfg)
	if err != nil {
		return nil, err
	}
	params, err := cfg.Params(parameters...)
	if err != nil {
		return nil, err
	}
	return New(client, Options{Prefix: params[paramPrefix]})
}

const (
	paramCluster   = "cluster"
	paramPlaintext = "plaintext"
	paramPrefix    = "prefix"
)

var parameters = []string{paramCluster, paramPlaintext, paramPrefix}

// Client returns a client for the server that cfg.URL names, with settings for
// a Lambda function: connections are made when they are needed, one that was
// idle for 30 s is not used again (after a thaw it may be dead), a request is
// sent once and is bounded by its context. It makes no network call. A function
// can use it for its own data beside a store from New.
func Client(cfg lockstore.Config) (redis.UniversalClient, error) {
	return ClientWithCredentials(cfg, nil)
}

// ClientWithCredentials is Client for servers that take a user and a token that
// changes, which credentials returns for each new connection, instead of the
// URL's. A connection is used for an hour at most, so that no server ends it for
// its age in the middle of a request.
func ClientWithCredentials(cfg lockstore.Config, credentials func(context.Context) (user, password string, err error)) (redis.UniversalClient, error) {
	opt, err := options(cfg)
	if err != nil {
		return nil, err
	}
	if credentials != nil {
		opt.Username, opt.Password = "", ""
		opt.CredentialsProviderContext = credentials
		opt.ConnMaxLifetime = time.Hour
	}
	return newClient(opt), nil
}

func newClient(opt *redis.UniversalOptions) redis.UniversalClient {
	opt.Dialer = withEnds(failLater(opt.Dialer))
	if !opt.IsClusterMode {
		return redis.NewClient(opt.Simple())
	}
	cluster := opt.Cluster()
	// One key per script needs no routing by command, which would ask the server
	// for its command table first.
	cluster.DisableRoutingPolicies = true
	return redis.NewClusterClient(cluster)
}

func options(cfg lockstore.Config) (*redis.UniversalOptions, error) {
	if cfg.URL == nil {
		return nil, lockstore.Invalidf("redisstore: Config.URL is nil")
	}
	params, err := cfg.Params(parameters...)
	if err != nil {
		return nil, err
	}
	u := cfg.URL
	invalid := func(format string, args ...any) error {
		return lockstore.Invalidf("redisstore: the %s URL %s", u.Scheme, fmt.Sprintf(format, args...))
	}

	flags := map[string]bool{}
	for _, name := range []string{paramCluster, paramPlaintext} {
		if text, ok := params[name]; ok {
			if flags[name], err = strconv.ParseBool(text); err != nil {
				return nil, invalid("has a parameter %s that is not true or false", name)
			}
		}
	}
	cluster, plaintext := flags[paramCluster], flags[paramPlaintext]

	dialer, encrypted := dial, false
	switch u.Scheme {
	case "redis", "valkey":
	case "rediss", "valkeys":
		if dialer, encrypted = dialTLS, true; plaintext {
			return nil, invalid("has plaintext=true, but its scheme means TLS")
		}
	default:
		return nil, invalid("has an unknown scheme; want redis, rediss, valkey or valkeys")
	}
	switch host := u.Hostname(); {
	case host == "":
		return nil, invalid("has no host")
	case strings.Contains(host, ","):
		return nil, invalid("names several hosts; want one, from which a cluster's client finds the others")
	case !encrypted && !plaintext && !here(host):
		// Whoever reads along learns the password and the owners, and can end leases.
		return nil, invalid("is without TLS and its host is not this machine; want %ss://, "+
			"or plaintext=true if nobody else can read or change what is sent there", u.Scheme)
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	db := 0
	if path := strings.TrimPrefix(u.Path, "/"); path != "" {
		// The path is not shown: a secret may have slipped into it.
		if db, err = strconv.Atoi(path); err != nil || db < 0 {
			return nil, invalid("has a path that is not a database number")
		}
	}
	if cluster && db != 0 {
		return nil, invalid("names a database and has cluster=true; a cluster has database 0 only")
	}
	password, _ := u.User.Password()

	return &redis.UniversalOptions{
		Addrs:         []string{net.JoinHostPort(u.Hostname(), port)},
		Username:      u.User.Username(),
		Password:      password,
		DB:            db,
		IsClusterMode: cluster,
		Dialer:        dialer,

		Protocol:                 2, // push messages, which 3 adds, have no use here
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},

		// The guard repeats what may be repeated, and knows for how long.
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		DialTimeout:           dialTimeout,
		ReadTimeout:           answerTimeout,
		WriteTimeout:          answerTimeout,

		// One invocation uses one or two connections; more are made only when
		// several invocations run in one process.
		PoolSize:        10,
		ConnMaxIdleTime: 30 * time.Second,
	}, nil
}

// here reports whether a host is the machine that this process or its container
// runs on. It looks at the name only and resolves nothing.
func here(host string) bool {
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") || host == "host.docker.internal" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// failLater makes a dial that fails look like a connection that fails when it is
// first used, which is for the greeting. The client's pool prints a line for each
// dial that fails, and no setting of one client turns that off. And after as many
// failures as it may have connections, it no longer dials for a request: a goroutine
// tries once a second, which a frozen environment does not have.
func failLater(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil || errors.Is(ctx.Err(), context.Canceled) {
			return conn, err // cancelled: nobody would use it, and the pool would keep it
		}
		nobody, _ := net.Pipe()
		return unreachable{nobody, fmt.Errorf("%w", err)}, nil // the client unwraps what fails the greeting
	}
}

type unreachable struct {
	net.Conn
	err error
}

func (u unreachable) Read([]byte) (int, error)  { return 0, u.err }
func (u unreachable) Write([]byte) (int, error) { return 0, u.err }

const (
	dialTimeout   = 900 * time.Millisecond
	answerTimeout = 900 * time.Millisecond
)

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, network, addr)
}

// dialTLS verifies the server's certificate for the host of addr. The client's
// own dialer would not end its handshake with the context.
func dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: &tls.Config{MinVersion: tls.VersionTLS12}}
	return d.DialContext(ctx, network, addr)
}
