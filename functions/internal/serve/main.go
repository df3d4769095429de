// Command serve is the lock service on this machine, to try it out: make serve.
// The locks are in memory and end with it, and whoever reaches this machine's
// loopback interface may use them all.
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

	"github.com/lambdalock/lambdalock/functions/internal/lockservice"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/gateway"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const (
	everybody   = `{"` + lockservice.Anonymous + `": [""]}`
	defaultPort = "8080"
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
	if err := run(ctx, port, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, port string, out io.Writer) error {
	service, err := newService()
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("PORT is %q; want 1 to 65535, or 0 for any that is free", port)
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
	fmt.Fprintf(out, welcome, listener.Addr())
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

// newService makes a lock service with a store and a secret that end with it.
func newService() (gateway.Function, error) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		return nil, err
	}
	service, err := lockservice.Open(g, lockstore.Config{
		URL:    &url.URL{Scheme: "text", Path: "/" + rand.Text() + rand.Text()},
		Getenv: func(name string) string { return map[string]string{"LOCK_CALLERS": everybody}[name] },
	})
	if err != nil {
		return nil, err
	}
	return service.Handle, nil
}

// welcome has one line for each thing to try, for a POSIX shell.
const welcome = `Locks over HTTP at http://%[1]s, in memory. Take a lock, look at it, give it back:

had=$(curl -s -X PUT -H content-type:application/json -d '{"ttl": 60, "holder": "me"}' http://%[1]s/locks/shared/reports/daily); echo "$had"
curl -s -w '\n' http://%[1]s/locks/shared/reports/daily
curl -s -i -X DELETE -H "lock-token: $(echo "$had" | sed 's/.*"token":"//; s/".*//')" http://%[1]s/locks/shared/reports/daily

Ctrl-C ends it. What can be asked: http://%[1]s/openapi.json
`
