// Package serve is the command serve: the lock service on this machine.
package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockhttp"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const (
	everybody      = `{"` + lockhttp.Anonymous + `": [""]}`
	defaultStore   = "memory://"
	defaultAddress = "127.0.0.1:8080"

	maxBody      = 6 << 20          // bytes; a function gets no larger event, and the service refuses much smaller ones
	functionTime = 29 * time.Second // what the function has in the template
	requestTime  = 10 * time.Second // to send a request
	idleTime     = time.Minute      // between two requests of a connection
	stopTime     = 5 * time.Second  // for answers that are under way
)

func Command() *cobra.Command {
	var store string
	cmd := &cobra.Command{
		Use:   "serve [ADDRESS]",
		Short: "Serve locks over HTTP on this machine",
		Long: `Serve locks over HTTP on this machine, as functions/locks does on AWS. ADDRESS is HOST:PORT or
PORT, default ` + defaultAddress + `; port 0 is any port that is free. HOST, and the header Host of a request,
has to be localhost or a loopback address: everybody who reaches it may use every key.

Tokens end with the process. A lease in a store other than memory:// then ends by its ttl.`,
		Example: `  lockctl serve
  lockctl serve --store redis://127.0.0.1:6379 8081`,
		Args: exit.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address := defaultAddress
			if len(args) > 0 {
				address = args[0]
			}
			return run(cmd.Context(), cmp.Or(store, os.Getenv(stores.Variable), defaultStore), os.Getenv, address, exit.Writer{To: cmd.OutOrStdout()})
		},
	}
	cmd.Flags().StringVar(&store, "store", "", stores.Flag+", or "+defaultStore)
	return cmd
}

// run serves the locks of a store until the context ends.
func run(ctx context.Context, lockURL string, getenv func(string) string, address string, out io.Writer) error {
	address, err := loopback(address)
	if err != nil {
		return err
	}
	listener, err := listen(address)
	if err != nil {
		return err
	}
	defer listener.Close()
	store, err := stores.Reach(ctx, lockURL, getenv, memstore.Opener)
	if err != nil {
		return err
	}
	g, err := guard.New(store, guard.Options{})
	if err != nil {
		return err
	}
	secret := &url.URL{Scheme: "text", Path: "/" + rand.Text() + rand.Text()} // ends with the process
	service, err := lockhttp.Open(g, secret, func(name string) string { return map[string]string{"LOCK_CALLERS": everybody}[name] })
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, welcome, listener.Addr(), stores.Address(lockURL)); err != nil {
		return err
	}
	return Until(ctx, listener, gateway(service.Handle))
}

// Until serves this machine until the context ends. The requests' contexts end with it.
func Until(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := newServer(handler, requestTime)
	server.BaseContext = func(net.Listener) context.Context { return ctx } // who waits for a lock waits no longer
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

// newServer has a bound for each read. That of ReadTimeout ends with the body: a wait for a
// lock may take longer.
func newServer(service http.Handler, requestTime time.Duration) *http.Server {
	return &http.Server{Handler: onlyHere(service), ReadTimeout: requestTime, IdleTimeout: idleTime}
}

// onlyHere refuses a request for another host. A web page could otherwise let its own name
// point to this machine, and read the answers as its own (DNS rebinding).
func onlyHere(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if !isLoopback(strings.Trim(host, "[]")) {
			http.Error(w, fmt.Sprintf("the header Host is %.60q; want localhost or a loopback address", r.Host), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// loopback reads the argument ADDRESS.
func loopback(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = "127.0.0.1", address
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || !isLoopback(host) {
		return "", exit.WrongUsage("ADDRESS is %.60q; want a port from 1 to 65535, 0 for any that is free, or a loopback address with a port, such as %s", address, defaultAddress)
	}
	return net.JoinHostPort(host, port), nil
}

// isLoopback reports whether a host is a loopback address, or a name that should have one. storeurl.IsThisMachine is no such check: Docker
// gives host.docker.internal an address of the network.
func isLoopback(host string) bool {
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// listen listens at a loopback address. It resolves a name before, because the hosts file or a DNS server may give each name an address of the
// network.
func listen(address string) (net.Listener, error) {
	resolved, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	if !resolved.IP.IsLoopback() {
		return nil, exit.WrongUsage("ADDRESS is %.60q, which is %s here; want a loopback address, such as %s", address, resolved, defaultAddress)
	}
	listener, err := net.ListenTCP("tcp", resolved)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("the address %s is taken; choose another port: %q or make serve PORT=0 takes one that is free", address, "lockctl serve 0")
	}
	return listener, err
}

// gateway stands before the function in the place of an HTTP API: it decodes the path once, and then takes it as it is. An
// http.ServeMux would join slashes and follow dots.
func gateway(function func(context.Context, httpapi.Request) (httpapi.Response, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		if err != nil {
			http.Error(w, "the body cannot be read: "+err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), functionTime)
		defer cancel()
		answer, err := function(ctx, httpapi.Request{Method: r.Method, URL: *r.URL, Header: r.Header, Body: body})
		if err != nil {
			slog.Error("the request failed", "error", err.Error())
			http.Error(w, "the reason is in the log", http.StatusInternalServerError)
			return
		}
		maps.Copy(w.Header(), answer.Header)
		w.WriteHeader(answer.StatusCode)
		_, _ = w.Write(answer.Body) // an error means that the client has gone
	})
}

// welcome has one line for each thing to try, for a POSIX shell.
const welcome = `Locks over HTTP at http://%[1]s, in the store %[2]s. Take a lock, look at it, give it back:

had=$(curl -s -X PUT -H content-type:application/json -d '{"ttl": 60, "holder": "me"}' http://%[1]s/locks/shared/reports/daily); echo "$had"
curl -s -w '\n' http://%[1]s/locks/shared/reports/daily
curl -s -i -X DELETE -H "lock-token: $(echo "$had" | sed 's/.*"token":"//; s/".*//')" http://%[1]s/locks/shared/reports/daily

Ctrl-C ends it. What can be asked: http://%[1]s/openapi.json
`
