// Command serve is the lock service on this machine, to try it out: make serve.
// LOCK_URL says where the locks are; with memory:// they end with the process. Its
// tokens always do, and then a lease in another store ends by its ttl. Whoever reaches
// this machine's loopback interface may use every key.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/locks/lockservice"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/gateway"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
)

const (
	everybody   = `{"` + lockservice.Anonymous + `": [""]}`
	defaultPort = "8080"
	storeTime   = 5 * time.Second  // for the first requests to the store
	headerTime  = 10 * time.Second // to send a request's headers
	stopTime    = 5 * time.Second  // for answers that are under way
)

func main() {
	port := defaultPort
	if len(os.Args) > 1 {
		port = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, lockstore.Config{URL: boot.MustURL("LOCK_URL"), Getenv: boot.Getenv}, port, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

// run serves the locks of a store until the context ends.
func run(ctx context.Context, cfg lockstore.Config, port string, out io.Writer) error {
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("PORT is %q; want 1 to 65535, or 0 for any that is free", port)
	}
	store, err := openStore(ctx, cfg, out)
	if err != nil {
		return fmt.Errorf("LOCK_URL: %w", err)
	}
	service, err := newService(store)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %s is taken; choose another one, for example make serve PORT=8081", port)
	}
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           service,
		ReadHeaderTimeout: headerTime,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // who waits for a lock waits no longer
	}
	fmt.Fprintf(out, welcome, listener.Addr(), cfg.URL.Scheme+"://"+cfg.URL.Host)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if server.Shutdown(late) != nil {
		return server.Close() // some connections have sent nothing yet, or read nothing
	}
	return nil
}

// openStore opens a store and uses it once, so that an address or a password that is
// wrong is told now and not to the first client. It prints what the store would have
// changed in its server's set-up.
func openStore(ctx context.Context, cfg lockstore.Config, out io.Writer) (lockstore.Store, error) {
	store, err := lockstore.Open(ctx, cfg.URL.String(), cfg.Getenv,
		memstore.Opener, dynamostore.Opener, redisstore.Opener, elasticache.Opener)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	if s, ok := lockstore.As[lockstore.Inspector](store); ok {
		if _, err := s.Inspect(ctx, "lambdalock/serve"); err != nil {
			return nil, err
		}
	}
	if s, ok := lockstore.As[lockstore.Checker](store); ok {
		findings, err := s.Check(ctx)
		for _, f := range findings {
			fmt.Fprintf(out, "%s %s\n", f.Problem, f.Fix)
		}
		if err != nil { // it may need a permission that locking does not
			fmt.Fprintln(out, "The server's set-up cannot be checked:", err)
		}
	}
	return store, nil
}

// newService makes a lock service with a secret that ends with it.
func newService(store lockstore.Store) (gateway.Function, error) {
	g, err := guard.New(store, guard.Options{})
	if err != nil {
		return nil, err
	}
	service, err := lockservice.Open(g, &url.URL{Scheme: "text", Path: "/" + rand.Text() + rand.Text()},
		func(name string) string { return map[string]string{"LOCK_CALLERS": everybody}[name] })
	if err != nil {
		return nil, err
	}
	return service.Handle, nil
}

// welcome has one line for each thing to try, for a POSIX shell.
const welcome = `Locks over HTTP at http://%[1]s, kept in %[2]s. Take a lock, look at it, give it back:

had=$(curl -s -X PUT -H content-type:application/json -d '{"ttl": 60, "holder": "me"}' http://%[1]s/locks/shared/reports/daily); echo "$had"
curl -s -w '\n' http://%[1]s/locks/shared/reports/daily
curl -s -i -X DELETE -H "lock-token: $(echo "$had" | sed 's/.*"token":"//; s/".*//')" http://%[1]s/locks/shared/reports/daily

Ctrl-C ends it. What can be asked: http://%[1]s/openapi.json
`
