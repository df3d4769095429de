package httpapi

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/internal/lib/eventsource"
)

// Request is an HTTP request. It is read from the event of any source in the package's documentation; every other
// event is an error, and nothing runs.
type Request struct {
	Method string

	// URL has a path and a query. The path is decoded once, and has no name of a stage in front. RawPath is
	// the path as the client sent it, where the source tells it. URL.Query reads the query; where the source gives
	// a parameter only once, that is the last one.
	URL url.URL

	Header http.Header // with canonical names. Of a repeated header a source may give only the last one, or all of them in one value
	Body   []byte      // decoded, where the source sends base64

	API            string            // the API's id and stage, the ARN of the target group or of the service, or with event version 1 of VPC Lattice the host
	Route          string            // such as "POST /accounts/{id}"; "" where the source has no routes
	PathParameters map[string]string // of the route, decoded once

	// Caller is who sends the request, as the source has authenticated it. It is "" where the source has
	// authenticated nobody, or does not say whom.
	//
	//	IAM                 the ARN, for a role without the session; then "#" and the identity, if Cognito knows one
	//	a JWT that the gateway or Cognito has checked   the claims iss and sub: ISS#SUB
	//	a Lambda authorizer   lambda# and the principalId that it returned, which has to be the user's own; in payload format 2.0 the one in its context
	//	a load balancer, VPC Lattice with event version 1   ""
	Caller string

	Authorizer map[string]any  // requestContext.authorizer of the event: claims, scopes, context; nil without an authorizer
	Event      json.RawMessage // the whole event, for what is not in the other fields

	source source
}

// source says in which form a request is answered.
type source int

const (
	unknown  source = iota // a request that no event was read for
	format2                // payload format 2.0
	format1                // payload format 1.0
	balancer               // a load balancer, or VPC Lattice
	multi                  // a load balancer with multi-value headers
)

// UnmarshalJSON reads the event of any source.
func (r *Request) UnmarshalJSON(text []byte) error {
	var e eventsource.Event
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("httpapi: the event is %s, and cannot be read: %w", eventsource.Name(text), err)
	}
	in, err := read(&e)
	if err != nil {
		return fmt.Errorf("httpapi: the event is %s; %w", eventsource.Name(text), err)
	}
	in.Event = slices.Clone(text)
	*r = in
	return nil
}

var errNotHTTP = errors.New("want an HTTP request of API Gateway, a function URL, a load balancer or VPC Lattice, with a method and a path; nothing was run")

func read(e *eventsource.Event) (in Request, err error) {
	context := e.RequestContext
	if context == nil {
		context = &eventsource.Context{}
	}
	var forms []string // by a field that only one has
	for _, f := range []struct {
		field string
		ok    bool
	}{{"requestContext.http", context.HTTP != nil}, {"httpMethod", e.HTTPMethod != ""}, {"method", e.Method != ""}} {
		if f.ok {
			forms = append(forms, f.field)
		}
	}
	switch {
	case len(forms) == 0, e.Records != nil, e.MethodArn+e.RouteArn+context.ConnectionID != "":
		return in, errNotHTTP
	case len(forms) > 1:
		return in, fmt.Errorf("it has %s; want one of them", strings.Join(forms, " and "))
	}
	in = Request{PathParameters: e.PathParameters, Authorizer: context.Authorizer, Caller: caller(context)}
	switch {
	case context.HTTP != nil:
		err = in.readFormat2(e, context)
	case e.Method != "":
		err = in.readLattice(e, context)
	case context.ELB != nil:
		in.readBalancer(e, context)
	default:
		err = in.readFormat1(e, context)
	}
	if err != nil {
		return in, err
	}
	if in.Method == "" || in.URL.Path == "" {
		return in, errNotHTTP
	}
	in.Body = []byte(e.Body)
	if e.IsBase64Encoded || e.LatticeBase64 {
		if in.Body, err = base64.StdEncoding.DecodeString(e.Body); err != nil {
			return in, fmt.Errorf("body: %w", err)
		}
	}
	return in, nil
}

// readFormat2 reads what an HTTP API or a function URL sends. A function URL leaves the path as the client sent it.
func (r *Request) readFormat2(e *eventsource.Event, context *eventsource.Context) error {
	if e.Version != "2.0" {
		return fmt.Errorf(`version: is %.20q; want "2.0"`, e.Version)
	}
	r.source, r.Method, r.Route, r.API = format2, context.HTTP.Method, e.RouteKey, api(context)
	r.URL = url.URL{Path: withoutStage(context, e.RawPath), RawQuery: e.RawQueryString}
	if strings.Contains(context.DomainName, ".lambda-url.") {
		r.encodedPath(e.RawPath)
	}
	r.Header = e.Headers.Header()
	if len(e.Cookies) > 0 {
		r.Header.Set("Cookie", strings.Join(e.Cookies, "; "))
	}
	return nil
}

// readFormat1 reads what a REST API sends, or an HTTP API, which alone writes a version, and decodes the path.
func (r *Request) readFormat1(e *eventsource.Event, context *eventsource.Context) error {
	if e.RequestContext == nil {
		return errors.New("requestContext: is missing")
	}
	r.source, r.Method, r.API = format1, e.HTTPMethod, api(context)
	if e.Resource != "" {
		r.Route = e.HTTPMethod + " " + e.Resource
	}
	switch e.Version {
	case "":
		r.encodedPath(e.Path)
		r.PathParameters = maps.Clone(r.PathParameters)
		for name, value := range r.PathParameters {
			r.PathParameters[name] = unescaped(value)
		}
	case "1.0":
		r.URL.Path = withoutStage(context, e.Path)
	default:
		return fmt.Errorf(`version: is %.20q; want "1.0", or none`, e.Version)
	}
	r.URL.RawQuery = e.MultiValueQueryStringParameters.Or(e.QueryStringParameters).Query().Encode()
	r.Header = e.MultiValueHeaders.Or(e.Headers).Header()
	return nil
}

// readBalancer reads what a load balancer sends, which decodes nothing.
func (r *Request) readBalancer(e *eventsource.Event, context *eventsource.Context) {
	r.source, r.Method, r.API = balancer, e.HTTPMethod, context.ELB.TargetGroupArn
	if e.MultiValueHeaders != nil {
		r.source = multi
	}
	r.encodedPath(e.Path)
	parameters := e.MultiValueQueryStringParameters.Or(e.QueryStringParameters)
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		for _, value := range parameters[name] {
			pairs = append(pairs, name+"="+value)
		}
	}
	r.URL.RawQuery = strings.Join(pairs, "&")
	r.Header = e.MultiValueHeaders.Or(e.Headers).Header()
}

// readLattice reads both event versions of VPC Lattice. Version 1 has no requestContext.
func (r *Request) readLattice(e *eventsource.Event, context *eventsource.Context) error {
	path := e.LatticePath
	if path == "" {
		if e.Version != "2.0" || context.ServiceArn == "" {
			return errors.New(`want raw_path (event version 1), or version "2.0" and requestContext.serviceArn`)
		}
		path = e.Path
	}
	r.Header = e.Headers.Header()
	r.source, r.Method, r.API = balancer, e.Method, cmp.Or(context.ServiceArn, r.Header.Get("Host"))
	path, _, _ = strings.Cut(path, "?")
	r.encodedPath(path)
	r.URL.RawQuery = e.QueryStringParameters.Or(e.LatticeQuery).Query().Encode()
	return nil
}

// encodedPath sets a path that the source has not decoded.
func (r *Request) encodedPath(raw string) {
	r.URL.Path, r.URL.RawPath = unescaped(raw), raw
}

// unescaped is the text itself where it has wrong escapes.
func unescaped(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

func api(c *eventsource.Context) string {
	if c.Stage == "" || c.Stage == "$default" {
		return c.APIID
	}
	return c.APIID + "/" + c.Stage
}

// withoutStage cuts off the stage, with which the paths of an HTTP API's own domain begin.
func withoutStage(c *eventsource.Context, path string) string {
	if !strings.Contains(c.DomainName, ".execute-api.") {
		return path
	}
	switch rest, ok := strings.CutPrefix(path, "/"+c.Stage); {
	case ok && rest == "":
		return "/"
	case ok && rest[0] == '/':
		return rest
	}
	return path
}

func caller(c *eventsource.Context) string {
	a := c.Authorizer // of format 1.0, or with the one field that names its kind
	iam, lambda := object(a["iam"]), object(a["lambda"])
	arn, cognito := c.Identity.UserArn, c.Identity.CognitoIdentityID
	claims, principal := object(a["claims"]), a["principalId"]
	if c.HTTP != nil {
		arn, cognito = text(iam["userArn"]), text(object(iam["cognitoIdentity"])["identityId"])
		claims, principal = object(object(a["jwt"])["claims"]), lambda["principalId"]
	}
	if c.Identity.Type == "AWS_IAM" { // of VPC Lattice
		arn = c.Identity.Principal
	}
	switch {
	case arn != "" && cognito != "": // all users of an identity pool have one role
		return withoutSession(arn) + "#" + cognito
	case strings.HasSuffix(arn, "/CognitoIdentityCredentials"): // of one of them, and nobody knows of which
		return ""
	case arn != "":
		return withoutSession(arn)
	case text(claims["sub"]) != "":
		return text(claims["iss"]) + "#" + text(claims["sub"])
	case text(principal) != "":
		return "lambda#" + text(principal)
	}
	return ""
}

func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func text(v any) string {
	t, _ := v.(string)
	return t
}

// withoutSession is arn:aws:sts::ACCOUNT:assumed-role/NAME, of an assumed role: a repeat may come in a later session.
// The path of a user may look like one.
func withoutSession(arn string) string {
	parts := strings.SplitN(arn, "/", 3)
	if len(parts) < 2 || strings.Count(parts[0], ":") != 5 || !strings.HasSuffix(parts[0], ":assumed-role") {
		return arn
	}
	return parts[0] + "/" + parts[1]
}
