package lambdatest

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
)

const (
	httpTimeout = 30 * time.Second // how long an HTTP API waits for its function
	maxHTTPBody = 6 << 20          // bytes; a function gets no larger event
)

// HTTPAPI is an http.Handler that stands before a function in the place of an
// HTTP API of API Gateway. It makes the event (payload format 2.0) of each
// request, and the HTTP response of the function's answer. It checks no
// identity: every caller is anonymous. The field cookies of an event is empty;
// cookies are in the header cookie.
//
// As the gateway does, it decodes the path once and then takes the path as it
// is: it joins no slashes and follows no dots. An http.ServeMux does both, so an
// HTTPAPI must not be behind one.
type HTTPAPI struct {
	// Routes are route keys, such as "POST /accounts/{id}/withdrawals" or
	// "ANY /locks/{key+}". {name} stands for one segment of the path. {name+} is
	// the last segment and stands for the rest of the path, also an empty one.
	// The first route that fits counts. Another path gets the status 404.
	Routes []string

	// Invoke runs the function with an event, as that of a lambda.Handler does. Its context
	// ends when the client has gone, and after 30 seconds. When it returns an
	// error, the client gets the status 500 and slog's default logger the error.
	Invoke func(ctx context.Context, event []byte) (answer []byte, err error)
}

// ServeHTTP answers with what the function answers.
func (a HTTPAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route, params := a.route(r.Method, r.URL.Path)
	if route == "" {
		refuse(w, http.StatusNotFound)
		return
	}
	if !utf8.ValidString(r.URL.Path) { // an event is JSON, and would have another path
		refuse(w, http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxHTTPBody+1))
	if err != nil {
		refuse(w, http.StatusBadRequest)
		return
	}
	if len(body) > maxHTTPBody {
		refuse(w, http.StatusRequestEntityTooLarge)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), httpTimeout)
	defer cancel()
	answer, err := a.ask(ctx, httpEvent(r, route, params, body))
	text := []byte(answer.Body)
	if err == nil && answer.IsBase64Encoded {
		text, err = base64.StdEncoding.DecodeString(answer.Body)
	}
	if err != nil {
		slog.Error("the function failed", "error", err.Error())
		refuse(w, http.StatusInternalServerError)
		return
	}
	for name, value := range answer.Headers {
		w.Header().Set(name, value)
	}
	for _, cookie := range answer.Cookies {
		w.Header().Add("Set-Cookie", cookie)
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(text) // an error means that the client has gone
}

// ask runs the function.
func (a HTTPAPI) ask(ctx context.Context, r events.APIGatewayV2HTTPRequest) (answer events.APIGatewayV2HTTPResponse, err error) {
	event, err := json.Marshal(r)
	if err != nil {
		return answer, err
	}
	text, err := a.Invoke(ctx, event)
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(text, &answer)
}

// route finds the first route that fits, and its path parameters.
func (a HTTPAPI) route(method, path string) (key string, params map[string]string) {
	for _, key := range a.Routes {
		want, pattern, _ := strings.Cut(key, " ")
		if want != "ANY" && want != method {
			continue
		}
		if params, ok := matchPath(pattern, path); ok {
			return key, params
		}
	}
	return "", nil
}

func matchPath(pattern, path string) (params map[string]string, ok bool) {
	for pattern != "" {
		segment, rest, more := strings.Cut(pattern, "/")
		name, isParam := strings.CutPrefix(segment, "{")
		name = strings.TrimSuffix(name, "}")
		if isParam && params == nil {
			params = map[string]string{}
		}
		if name, greedy := strings.CutSuffix(name, "+"); isParam && greedy {
			params[name] = path
			return params, true
		}
		value, left, moreLeft := strings.Cut(path, "/")
		if more != moreLeft || isParam && value == "" || !isParam && value != segment {
			return nil, false
		}
		if isParam {
			params[name] = value
		}
		pattern, path = rest, left
	}
	return params, path == ""
}

func httpEvent(r *http.Request, route string, params map[string]string, body []byte) events.APIGatewayV2HTTPRequest {
	now := time.Now().UTC()
	e := events.APIGatewayV2HTTPRequest{
		Version:        "2.0",
		RouteKey:       route,
		RawPath:        r.URL.Path,
		RawQueryString: r.URL.RawQuery,
		Headers:        map[string]string{"host": r.Host},
		PathParameters: params,
		Body:           string(body),
		RequestContext: events.APIGatewayV2HTTPRequestContext{
			RouteKey:  route,
			Stage:     "$default",
			RequestID: rand.Text(),
			Time:      now.Format("02/Jan/2006:15:04:05 -0700"),
			TimeEpoch: now.UnixMilli(),
			HTTP: events.APIGatewayV2HTTPRequestContextHTTPDescription{
				Method:    r.Method,
				Path:      r.URL.Path,
				Protocol:  r.Proto,
				UserAgent: r.UserAgent(),
			},
		},
	}
	if query := r.URL.Query(); len(query) > 0 {
		e.QueryStringParameters = map[string]string{}
		for name, values := range query {
			e.QueryStringParameters[name] = strings.Join(values, ",")
		}
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

// refuse answers in the gateway's own name.
func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": http.StatusText(status)}) // an error means that the client has gone
}
