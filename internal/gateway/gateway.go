// Package gateway is what stands before the lock service on this machine, in
// the place of an HTTP API of API Gateway. It makes the event (payload format
// 2.0) of each request, and the response of the function's answer. It knows no
// identities: every caller is anonymous.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard/httpapi"
)

const (
	// Timeout is what the function has in the template.
	Timeout = 29 * time.Second

	// maxBody is more than the service takes. What is longer reaches it cut, so
	// that it is refused in the service's own words.
	maxBody = 64 << 10
)

// Function is what a Lambda behind an HTTP API does.
type Function func(context.Context, httpapi.Request) (httpapi.Response, error)

// ServeHTTP has the function answer. Its context ends after Timeout, or when the
// client has gone.
//
// Like the gateway it decodes the path once and takes it as it is: it joins no
// slashes and follows no dots. So it must not be behind an http.ServeMux.
func (f Function) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	params, found := route(r.URL.Path)
	if !found {
		problem(w, http.StatusNotFound, "not-found", "There is nothing at this path; want /locks/KEY or /openapi.json.")
		return
	}
	if !utf8.ValidString(r.URL.Path) { // an event is JSON, and would have another path
		problem(w, http.StatusBadRequest, "invalid", "path: is not UTF-8.")
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		problem(w, http.StatusBadRequest, "invalid", "body: cannot be read.")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), Timeout)
	defer cancel()
	answer, err := f(ctx, event(r, params, body))
	if err != nil {
		slog.Error("the function failed", "error", err.Error())
		problem(w, http.StatusInternalServerError, "internal", "The service failed.")
		return
	}
	for name, value := range answer.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = io.WriteString(w, answer.Body) // an error means that the client has gone
}

// route finds the path parameters, by the routes of the template.
func route(path string) (params map[string]string, found bool) {
	if key, ok := strings.CutPrefix(path, "/locks/"); ok {
		return map[string]string{"key": key}, true
	}
	return nil, path == "/openapi.json"
}

func event(r *http.Request, params map[string]string, body []byte) httpapi.Request {
	e := httpapi.Request{
		Version:        "2.0",
		RawPath:        r.URL.Path,
		RawQueryString: r.URL.RawQuery,
		Headers:        map[string]string{"host": r.Host},
		PathParameters: params,
		Body:           string(body),
		RequestContext: events.APIGatewayV2HTTPRequestContext{
			Stage:     "$default",
			RequestID: rand.Text(),
			TimeEpoch: time.Now().UnixMilli(),
			HTTP: events.APIGatewayV2HTTPRequestContextHTTPDescription{
				Method:    r.Method,
				Path:      r.URL.Path,
				Protocol:  r.Proto,
				UserAgent: r.UserAgent(),
			},
		},
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		e.RequestContext.HTTP.SourceIP = host
	}
	for name, values := range r.Header {
		e.Headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	if !utf8.Valid(body) {
		e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	return e
}

// problem is one of RFC 9457, in the form of the service's own.
func problem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
		Code   string `json:"code"`
	}{"about:blank", http.StatusText(status), status, detail, code}) // an error means that the client has gone
}
