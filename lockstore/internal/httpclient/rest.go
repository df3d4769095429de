// Package httpclient is what stores share that talk to a service over HTTP.
package httpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// MaxReply bounds a reply, in bytes. The services' largest entries have 2 MB.
const MaxReply = 4 << 20

// ReplyTimeout is for a service that is asked once in a call.
const ReplyTimeout = 1500 * time.Millisecond

// Client has short timeouts: a connection may die while Lambda freezes the process. reply is
// how long a reply may take to begin.
func Client(reply time.Duration) *http.Client {
	dialer := net.Dialer{Timeout: 800 * time.Millisecond, KeepAlive: 15 * time.Second}
	return &http.Client{
		Timeout: 1900 * time.Millisecond,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer.DialContext,
			TLSHandshakeTimeout:   1200 * time.Millisecond,
			ResponseHeaderTimeout: reply,
			IdleConnTimeout:       60 * time.Second,
			MaxIdleConnsPerHost:   16,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Sent says whether a request may have been sent: without a connection it was not.
type Sent struct{ connected atomic.Bool }

// Begin returns a context for one request.
func Begin(ctx context.Context) (context.Context, *Sent) {
	s := &Sent{}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { s.connected.Store(true) }}), s
}

// Failed is the error of a request without an answer. It matches lockstore.ErrUnavailable if
// the request was certainly not sent.
func (s *Sent) Failed(service string, err error) error {
	if !s.connected.Load() {
		return fmt.Errorf("there is no connection to %s: %w: %w", service, lockstore.ErrUnavailable, err)
	}
	return err
}

// Plain is an error of net/http without what the server sent, which could quote a secret,
// and without types that an SDK knows and would send the request again for.
func Plain(err error) error {
	if errors.Is(err, context.Canceled) {
		return errors.New("the caller has cancelled the request")
	}
	if network, ok := errors.AsType[*net.OpError](err); ok {
		return errors.New(network.Error())
	}
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return errors.New(certificate.Error())
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return errors.New("there is no answer in time")
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the connection ended within the answer")
	case errors.Is(err, io.EOF), strings.Contains(err.Error(), closedIdle):
		return errors.New("the connection ended before the answer")
	}
	return errors.New("the answer is not HTTP")
}

// closedIdle is the text of an error that net/http does not export: the server closed a
// connection that it had kept open, while a request that must not be repeated was sent on it.
const closedIdle = "http: server closed idle connection"

// Corrupt is an error that matches lockstore.ErrCorrupt.
func Corrupt(text string) error { return fmt.Errorf("%s: %w", text, lockstore.ErrCorrupt) }

// Unavailable is an error that matches lockstore.ErrUnavailable.
func Unavailable(text string) error { return fmt.Errorf("%s: %w", text, lockstore.ErrUnavailable) }
