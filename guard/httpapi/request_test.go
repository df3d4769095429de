package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// The request
//
//	POST /files/a%20b?x=1&x=%2F2&y=a%26b
//	Cookie: c=1; d=2
//	Idempotency-Key: k1
//	X-Two: one
//	X-Two: two
//
// with the body ff 00 7b, as each source sends it. Some sources give a repeated name only once.
const (
	oneHeaders   = `{"cookie": "c=1; d=2", "idempotency-key": "k1", "x-two": "one,two"}`
	lastHeaders  = `{"cookie": "c=1; d=2", "idempotency-key": "k1", "x-two": "two"}`
	multiHeaders = `{"cookie": ["c=1; d=2"], "Idempotency-Key": ["k1"], "X-Two": ["one", "two"]}`
	multiQuery   = `{"x": ["1", "/2"], "y": ["a&b"]}`
	rawQuery     = `{"x": ["1", "%2F2"], "y": ["a%26b"]}`
	binary       = `"body": "/wB7", "isBase64Encoded": true`
	elb          = `"requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/files/6d0ecf831eec9f09"}}`
	role         = "arn:aws:sts::123456789012:assumed-role/shop"
)

var sources = []struct {
	name, event        string
	api, route, caller string
	params             map[string]string
	x, two             []string // if not all values
	answer             string   // "" is that of format 2.0
}{
	{
		name: "HTTP API, payload format 2.0, JWT",
		event: `{"version": "2.0", "routeKey": "POST /files/{name}", "rawPath": "/files/a b", "rawQueryString": "x=1&x=%2F2&y=a%26b", "cookies": ["c=1", "d=2"],
			"headers": {"idempotency-key": "k1", "x-two": "one,two"}, "queryStringParameters": {"x": "1,/2", "y": "a&b"}, "pathParameters": {"name": "a b"}, ` + binary + `,
			"requestContext": {"apiId": "a1", "stage": "$default", "http": {"method": "POST", "path": "/files/a b"}, "domainName": "a1.execute-api.eu-west-1.amazonaws.com",
				"authorizer": {"jwt": {"claims": {"iss": "https://id.example.com", "sub": "ann", "exp": "1795235467"}, "scopes": ["files"]}}}}`,
		api: "a1", route: "POST /files/{name}", caller: "https://id.example.com#ann", params: map[string]string{"name": "a b"}, two: []string{"one,two"},
	},
	{
		name: "HTTP API, payload format 2.0, stage, IAM",
		event: `{"version": "2.0", "routeKey": "$default", "rawPath": "/dev/files/a b", "rawQueryString": "x=1&x=%2F2&y=a%26b", "headers": ` + oneHeaders + `, ` + binary + `,
			"requestContext": {"apiId": "a1", "stage": "dev", "http": {"method": "POST"}, "domainName": "a1.execute-api.eu-west-1.amazonaws.com",
				"authorizer": {"iam": {"userArn": "` + role + `/host-4", "callerId": "AROAQEXAMPLEEXAMPLEX:host-4", "cognitoIdentity": null}}}}`,
		api: "a1/dev", route: "$default", caller: role, two: []string{"one,two"},
	},
	{
		name: "HTTP API, payload format 2.0, own domain, Lambda authorizer",
		event: `{"version": "2.0", "routeKey": "$default", "rawPath": "/files/a b", "rawQueryString": "x=1&x=%2F2&y=a%26b", "headers": ` + oneHeaders + `, ` + binary + `,
			"requestContext": {"apiId": "a1", "stage": "files", "http": {"method": "POST"}, "domainName": "api.example.com", "authorizer": {"lambda": {"principalId": "ann", "tenant": 7}}}}`,
		api: "a1/files", route: "$default", caller: "lambda#ann", two: []string{"one,two"},
	},
	{
		name: "function URL",
		event: `{"version": "2.0", "routeKey": "$default", "rawPath": "/files/a%20b", "rawQueryString": "x=1&x=%2F2&y=a%26b", "cookies": ["c=1", "d=2"],
			"headers": {"idempotency-key": "k1", "x-two": "one,two"}, ` + binary + `,
			"requestContext": {"apiId": "u1", "stage": "$default", "http": {"method": "POST"}, "domainName": "u1.lambda-url.eu-west-1.on.aws",
				"authorizer": {"iam": {"userArn": "arn:aws:iam::123456789012:user/ann", "callerId": "AIDA"}}}}`,
		api: "u1", route: "$default", caller: "arn:aws:iam::123456789012:user/ann", two: []string{"one,two"},
	},
	{
		name: "HTTP API, payload format 1.0",
		event: `{"version": "1.0", "resource": "/files/{name}", "path": "/dev/files/a b", "httpMethod": "POST", "headers": ` + lastHeaders + `, "multiValueHeaders": ` + multiHeaders + `,
			"queryStringParameters": {"x": "/2", "y": "a&b"}, "multiValueQueryStringParameters": ` + multiQuery + `, "pathParameters": {"name": "a b"}, ` + binary + `,
			"requestContext": {"apiId": "a1", "stage": "dev", "httpMethod": "POST", "domainName": "a1.execute-api.eu-west-1.amazonaws.com", "identity": {"userArn": null},
				"authorizer": {"claims": {"iss": "https://id.example.com", "sub": "ann"}, "scopes": null}}}`,
		api: "a1/dev", route: "POST /files/{name}", caller: "https://id.example.com#ann", params: map[string]string{"name": "a b"},
		answer: `{"statusCode": 201, "multiValueHeaders": {"Content-Type": ["text/plain"], "Set-Cookie": ["a=1; Path=/", "b=2"], "Warning": ["1", "2"]}, %s}`,
	},
	{
		name: "REST API, IAM through a Cognito identity pool",
		event: `{"resource": "/files/{name}", "path": "/files/a%20b", "httpMethod": "POST", "headers": ` + lastHeaders + `, "multiValueHeaders": ` + multiHeaders + `,
			"queryStringParameters": {"x": "/2", "y": "a&b"}, "multiValueQueryStringParameters": ` + multiQuery + `, "pathParameters": {"name": "a%20b"}, ` + binary + `,
			"requestContext": {"apiId": "a1", "stage": "dev", "path": "/dev/files/a%20b", "httpMethod": "POST", "domainName": "a1.execute-api.eu-west-1.amazonaws.com",
				"identity": {"cognitoIdentityId": "eu-west-1:3f29", "userArn": "` + role + `/CognitoIdentityCredentials", "sourceIp": "203.0.113.24"}}}`,
		api: "a1/dev", route: "POST /files/{name}", caller: role + "#eu-west-1:3f29", params: map[string]string{"name": "a b"},
		answer: `{"statusCode": 201, "multiValueHeaders": {"Content-Type": ["text/plain"], "Set-Cookie": ["a=1; Path=/", "b=2"], "Warning": ["1", "2"]}, %s}`,
	},
	{
		name: "REST API, Lambda authorizer, without multi-value fields",
		event: `{"resource": "/{proxy+}", "path": "/files/a%20b", "httpMethod": "POST", "headers": ` + lastHeaders + `, "queryStringParameters": {"x": "/2", "y": "a&b"},
			"pathParameters": {"proxy": "files/a%20b"}, ` + binary + `, "requestContext": {"apiId": "a1", "stage": "dev", "authorizer": {"principalId": "ann", "integrationLatency": 7}}}`,
		api: "a1/dev", route: "POST /{proxy+}", caller: "lambda#ann", params: map[string]string{"proxy": "files/a b"}, x: []string{"/2"}, two: []string{"two"},
		answer: `{"statusCode": 201, "multiValueHeaders": {"Content-Type": ["text/plain"], "Set-Cookie": ["a=1; Path=/", "b=2"], "Warning": ["1", "2"]}, %s}`,
	},
	{
		name:  "load balancer",
		event: `{` + elb + `, "httpMethod": "POST", "path": "/files/a%20b", "queryStringParameters": {"x": "%2F2", "y": "a%26b"}, "headers": ` + lastHeaders + `, ` + binary + `}`,
		api:   "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/files/6d0ecf831eec9f09", x: []string{"/2"}, two: []string{"two"},
		answer: `{"statusCode": 201, "statusDescription": "201 Created", "headers": {"Content-Type": "text/plain", "Set-Cookie": "a=1; Path=/", "set-Cookie": "b=2", "Warning": "1, 2"}, %s}`,
	},
	{
		name: "load balancer, multi-value headers, a user's name that nobody has checked",
		event: `{` + elb + `, "httpMethod": "POST", "path": "/files/a%20b", "multiValueQueryStringParameters": ` + rawQuery + `, ` + binary + `,
			"multiValueHeaders": {"cookie": ["c=1; d=2"], "idempotency-key": ["k1"], "x-two": ["one", "two"], "x-amzn-oidc-identity": ["ann"]}}`,
		api:    "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/files/6d0ecf831eec9f09",
		answer: `{"statusCode": 201, "statusDescription": "201 Created", "multiValueHeaders": {"Content-Type": ["text/plain"], "Set-Cookie": ["a=1; Path=/", "b=2"], "Warning": ["1", "2"]}, %s}`,
	},
	{
		name: "VPC Lattice, event version 1, an identity that a client may have written",
		event: `{"raw_path": "/files/a%20b", "method": "POST", "query_string_parameters": {"x": "/2", "y": "a&b"}, "body": "/wB7", "is_base64_encoded": true,
			"headers": {"host": "files.example.com", "cookie": "c=1; d=2", "idempotency-key": "k1", "x-two": "one,two", "x-amzn-lattice-identity": "Principal=` + role + `"}}`,
		api: "files.example.com", x: []string{"/2"}, two: []string{"one,two"},
		answer: `{"statusCode": 201, "statusDescription": "201 Created", "headers": {"Content-Type": "text/plain", "Set-Cookie": "a=1; Path=/", "set-Cookie": "b=2", "Warning": "1, 2"}, %s}`,
	},
	{
		name: "VPC Lattice, event version 2",
		event: `{"version": "2.0", "path": "/files/a%20b", "method": "POST", "headers": ` + multiHeaders + `, "queryStringParameters": ` + multiQuery + `, ` + binary + `,
			"requestContext": {"serviceNetworkArn": "arn:aws:vpc-lattice:eu-west-1:123456789012:servicenetwork/sn-0bf3", "serviceArn": "arn:aws:vpc-lattice:eu-west-1:123456789012:service/svc-0a40",
				"targetGroupArn": "arn:aws:vpc-lattice:eu-west-1:123456789012:targetgroup/tg-6d0e", "region": "eu-west-1", "timeEpoch": "1690497599177430",
				"identity": {"sourceVpcArn": "arn:aws:ec2:eu-west-1:123456789012:vpc/vpc-0b82", "type": "AWS_IAM", "principal": "` + role + `/host-4", "sessionName": "host-4"}}}`,
		api: "arn:aws:vpc-lattice:eu-west-1:123456789012:service/svc-0a40", caller: role,
		answer: `{"statusCode": 201, "statusDescription": "201 Created", "headers": {"Content-Type": "text/plain", "Set-Cookie": "a=1; Path=/", "set-Cookie": "b=2", "Warning": "1, 2"}, %s}`,
	},
}

const answer2 = `{"statusCode": 201, "headers": {"Content-Type": "text/plain", "Warning": "1, 2"}, "cookies": ["a=1; Path=/", "b=2"], %s}`

// invoke runs a handler as Lambda does.
func invoke(t *testing.T, handle guard.Wrapped[Request, Response], event string) string {
	t.Helper()
	var in Request
	require.NoError(t, json.Unmarshal([]byte(event), &in))
	out, err := handle.Handle(t.Context(), in)
	require.NoError(t, err)
	text, err := json.Marshal(out)
	require.NoError(t, err)
	return string(text)
}

func TestSources(t *testing.T) {
	for _, c := range sources {
		t.Run(c.name, func(t *testing.T) {
			var read Request
			text := []byte(c.event)
			require.NoError(t, read.UnmarshalJSON(text))
			clear(text) // it belongs to the caller, as json.Unmarshaler says
			require.Equal(t, c.event, string(read.Event))
			var seen Request
			body := []byte("<ok>")
			handle := func(_ context.Context, _ guard.Lock, in Request) (Response, error) {
				seen = in
				return Response{StatusCode: 201, Body: body, Header: http.Header{"Content-Type": {"text/plain"}, "Set-Cookie": {"a=1; Path=/", "b=2"}, "warning": {"1", "2"}}}, nil
			}
			g, err := guard.New(memstore.New(nil), guard.Options{})
			require.NoError(t, err)
			if c.answer == "" {
				c.answer = answer2
			}
			require.JSONEq(t, fmt.Sprintf(c.answer, `"body": "<ok>", "isBase64Encoded": false`), invoke(t, Wrap(g, byPath, handle), c.event))
			if c.x == nil {
				c.x = []string{"1", "/2"}
			}
			if c.two == nil {
				c.two = []string{"one", "two"}
			}
			require.Equal(t, "POST", seen.Method)
			require.Equal(t, "/files/a b", seen.URL.Path)
			require.Equal(t, url.Values{"x": c.x, "y": {"a&b"}}, seen.URL.Query())
			require.Equal(t, c.two, seen.Header.Values("X-Two"))
			require.Equal(t, []string{"c=1; d=2"}, seen.Header.Values("Cookie"))
			require.Equal(t, []byte{255, 0, '{'}, seen.Body)
			require.Equal(t, c.params, seen.PathParameters)
			require.Equal(t, []string{c.api, c.route, c.caller}, []string{seen.API, seen.Route, seen.Caller})
			require.JSONEq(t, c.event, string(seen.Event))
			body = []byte{255, 0}
			require.JSONEq(t, fmt.Sprintf(c.answer, `"body": "/wA=", "isBase64Encoded": true`), invoke(t, Wrap(g, byPath, handle), c.event))

			busy := ""
			require.NoError(t, g.Do(t.Context(), "/files/a b", func(context.Context, guard.Lock) error {
				busy = invoke(t, Wrap(g, byPath, handle), c.event)
				return nil
			}))
			require.Contains(t, busy, `"statusCode":409`)
			require.Equal(t, strings.Contains(c.answer, "statusDescription"), strings.Contains(busy, `"statusDescription":"409 Conflict"`))
			require.Equal(t, strings.Contains(c.answer, "multiValueHeaders"), strings.Contains(busy, `"multiValueHeaders":{"Content-Type":["application/problem+json"],"Retry-After":["1"]}`))
		})
	}
}

// Two requests of one source with one Idempotency-Key are one only if nothing differs.
func TestOnceOfSources(t *testing.T) {
	for _, c := range sources {
		t.Run("F55 "+c.name, func(t *testing.T) {
			send := func(opt OnceOptions, event string) (answer string, runs int) {
				g, err := guard.New(memstore.New(nil), guard.Options{})
				require.NoError(t, err)
				o, err := idempotency.New(g, idempotency.Options{})
				require.NoError(t, err)
				handle := Once(o, opt, func(context.Context, guard.Lock, Request) (Response, error) {
					runs++
					return Response{StatusCode: 201, Body: []byte("first"), Header: http.Header{"Warning": {"1", "2"}}}, nil
				})
				first := invoke(t, handle, c.event)
				if opt.Caller == nil && c.caller == "" {
					require.Contains(t, first, "the caller is not known")
					require.Zero(t, runs)
					runs++
				}
				return invoke(t, handle, event), runs
			}
			for _, opt := range []OnceOptions{{}, {Caller: AnyCaller}} {
				replay, runs := send(opt, c.event)
				require.Equal(t, 1, runs)
				if opt.Caller != nil || c.caller != "" {
					require.Contains(t, replay, `"Idempotent-Replayed":`)
					require.Equal(t, strings.Contains(c.answer, "multiValueHeaders"), strings.Contains(replay, `"Warning":["1","2"]`))
				}
			}
			// A change of one part is another request: status 422, or with another API, route or caller a run of its own.
			for part, change := range map[string][]string{
				"method":   {`"POST"`, `"PUT"`},
				"path":     {`/a b"`, `/a c"`, `/a%20b"`, `/a%2520b"`},
				"escape":   {`/a%20b"`, `/%61%20b"`},
				"query":    {`a%26b"`, `a%26c"`, `a&b"`, `a&c"`},
				"body":     {`/wB7`, `/wB8`},
				"API":      {`"a1"`, `"a2"`, `"u1"`, `"u2"`, `targetgroup/files`, `targetgroup/other`, `svc-0a40`, `svc-0a41`, `files.example`, `other.example`},
				"stage":    {`"stage": "dev"`, `"stage": "live"`},
				"resource": {`{name}`, `{id}`, `{proxy+}`, `{all+}`},
				"caller":   {`"ann"`, `"bob"`, `/shop/host-4`, `/mail/host-4`, `:user/ann"`, `:user/bob"`, `:3f29`, `:3f30`},
				"session":  {`/shop/host-4`, `/shop/host-5`},
			} {
				event := strings.NewReplacer(change...).Replace(c.event)
				if event == c.event || c.caller == "" && part == "caller" {
					continue
				}
				opt := OnceOptions{}
				if c.caller == "" {
					opt.Caller = AnyCaller
				}
				answer, runs := send(opt, event)
				switch part {
				case "session":
					require.Contains(t, answer, `"Idempotent-Replayed":`, part)
				case "API", "stage", "resource", "caller":
					require.Equal(t, 2, runs, part)
				case "method":
					require.Equal(t, strings.HasPrefix(c.route, "POST ") && strings.Contains(event, `"resource"`), runs == 2, "the route has the method")
				default:
					require.Equal(t, 1, runs, part)
					require.Contains(t, answer, `"statusCode":422`, part)
				}
			}
		})
	}
}

// The events of aws-lambda-go's own tests.
func TestSamples(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/aws-lambda-go").Output()
	require.NoError(t, err)
	read := func(file string) (in Request, err error) {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "events", "testdata", file+".json"))
		require.NoError(t, err)
		return in, json.Unmarshal(text, &in)
	}
	const balancer = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/lambda-target/abcdefg"
	for file, want := range map[string]string{
		"alb-lambda-target-request-headers-only":       "GET /?key=hello " + balancer + " [] []",
		"alb-lambda-target-request-multivalue-headers": "GET /?key=hello " + balancer + "h [] []",
		"apigw-request":                      "POST /hello/world?name=me gy415nuibc/testStage [POST /{proxy+}] [theUserArn#theCognitoIdentityId]",
		"apigw-restapi-openapi-request":      "POST /hello/world?name=me gy415nuibc/testStage [POST /{proxy+}] [theUserArn#theCognitoIdentityId]",
		"apigw-v2-request-iam":               "GET /my/path?parameter1=value1&parameter1=value2&parameter2=value api-id [$default] [arn:aws:iam::1234567890:user/Admin#us-east-1:3f291106-8703-466b-8f2b-3ecee1ca56ce]",
		"apigw-v2-request-jwt-authorizer":    "GET /my/path?parameter1=value1&parameter1=value2&parameter2=value api-id [$default] []",
		"apigw-v2-request-lambda-authorizer": "GET /my/path?parameter1=value1&parameter1=value2&parameter2=value api-id [$default] []",
		"apigw-v2-request-no-authorizer":     "GET / aaaaaaaaaa [$default] []",
		"lambda-urls-request":                "POST /my/path?parameter1=value1&parameter1=value2&parameter2=value <urlid> [] [arn:aws:iam::111122223333:user/example-user]",
	} {
		in, err := read(file)
		require.NoError(t, err, file)
		require.Equal(t, want, fmt.Sprintf("%s %s %s [%s] [%s]", in.Method, &in.URL, in.API, in.Route, in.Caller), file)
	}
	_, err = read("sqs-event") // eventsource knows the names of all
	require.ErrorContains(t, err, "the event is a batch of SQS; want an HTTP request")
}

func TestNoRequests(t *testing.T) {
	const http2 = `"version": "2.0", "rawPath": "/x", "requestContext": {"http": {"method": "POST"}}`
	for event, want := range map[string]string{
		`null`:                 "the event is no JSON object",
		`[]`:                   "the event is no JSON object",
		`[{"version": "1.0"}]`: "the event is no JSON object",
		`"POST"`:               "the event is no JSON object",
		`{}`:                   "the event is an event of no known source, such as a direct call; want an HTTP request",
		`{"account": "7"}`:     "such as a direct call",
		`{"Records": []}`:      "the event is a batch without records",
		`{"Service": "Amazon S3", "Event": "s3:TestEvent"}`: "an event of S3 (a test)",
		// Half events.
		`{"version": "2.0", "rawPath": "/x", "requestContext": {"http": {}}}`:                 "with a method and a path",
		`{"version": "2.0", "rawPath": "/x", "requestContext": {}}`:                           "with a method and a path",
		`{"version": "2.0", "requestContext": {"http": {"method": "POST"}}}`:                  "with a method and a path",
		`{"rawPath": "/x", "requestContext": {"http": {"method": "POST"}}}`:                   `version: is ""; want "2.0"`,
		`{"version": "3.0", "rawPath": "/x", "requestContext": {"http": {"method": "POST"}}}`: `version: is "3.0"; want "2.0"`,
		`{"httpMethod": "POST", "path": "/x"}`:                                                "requestContext: is missing",
		`{"httpMethod": "POST", "path": "/x", "requestContext": null}`:                        "requestContext: is missing",
		`{"httpMethod": "POST", "requestContext": {"apiId": "a1"}}`:                           "with a method and a path",
		`{"path": "/x", "resource": "/x", "requestContext": {"apiId": "a1", "identity": {}}}`: "with a method and a path",
		`{"version": "2.0", "httpMethod": "POST", "path": "/x", "requestContext": {}}`:        `version: is "2.0"; want "1.0", or none`,
		`{"httpMethod": "POST", "requestContext": {"elb": {"targetGroupArn": "arn"}}}`:        "the event is a request of a load balancer; want",
		`{"method": "POST", "path": "/x", "requestContext": {"serviceArn": "arn"}}`:           `want raw_path (event version 1), or version "2.0"`,
		`{"method": "POST", "path": "/x", "version": "2.0"}`:                                  "requestContext.serviceArn",
		`{"raw_path": "/x"}`: "the event is a request of VPC Lattice; want",
		// Two forms at once.
		`{"httpMethod": "POST", "path": "/x", ` + http2 + `}`:                                      "it has requestContext.http and httpMethod",
		`{"method": "POST", "raw_path": "/x", ` + http2 + `}`:                                      "it has requestContext.http and method",
		`{"Records": [{"eventSource": "aws:sqs"}], ` + http2 + `}`:                                 "the event is a batch of SQS",
		`{"httpMethod": "POST", "path": "/x", "requestContext": {"elb": {}, "connectionId": "c"}}`: "a request of a WebSocket API",
		// Fields of another type.
		`{"body": {"a": 1}, ` + http2 + `}`:                              "cannot be read: json: cannot unmarshal object into Go struct field Event.Body of type string",
		`{"body": 7, ` + http2 + `}`:                                     "Event.Body of type string",
		`{"isBase64Encoded": "true", ` + http2 + `}`:                     "Event.IsBase64Encoded of type bool",
		`{"isBase64Encoded": true, "body": "###", ` + http2 + `}`:        "body: illegal base64 data",
		`{"headers": ["a"], ` + http2 + `}`:                              "Event.Headers of type",
		`{"headers": {"a": 7}, ` + http2 + `}`:                           "Event.Headers",
		`{"headers": {"a": {"b": "c"}}, ` + http2 + `}`:                  "Event.Headers",
		`{"rawPath": 7, "requestContext": {"http": {"method": "POST"}}}`: "Event.RawPath of type string",
	} {
		var in Request
		err := json.Unmarshal([]byte(event), &in)
		require.ErrorContains(t, err, want, event)
		require.ErrorContains(t, err, "httpapi: the event is ", event)
		require.Zero(t, in, event)
	}
}

func TestPaths(t *testing.T) {
	read := func(domain, stage, path string) string {
		var in Request
		require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"version": "2.0", "rawPath": %q, "requestContext": {"domainName": %q, "stage": %q, "http": {"method": "GET"}}}`, path, domain, stage), &in))
		return in.URL.Path
	}
	const own = "a1.execute-api.eu-west-1.amazonaws.com"
	for _, c := range [][4]string{
		{own, "$default", "/dev/x", "/dev/x"},
		{own, "dev", "/dev/x", "/x"},
		{own, "dev", "/dev", "/"},
		{own, "dev", "/dev/", "/"},
		{own, "dev", "/device", "/device"},
		{"api.example.com", "dev", "/dev/x", "/dev/x"},
		{own, "$default", "/100%/a%20b", "/100%/a%20b"},
		{"u1.lambda-url.eu-west-1.on.aws", "$default", "/a%20b%2Fc", "/a b/c"},
		{"u1.lambda-url.eu-west-1.on.aws", "$default", "/100%", "/100%"},
	} {
		require.Equal(t, c[3], read(c[0], c[1], c[2]), "%v", c)
	}
}

func TestCaller(t *testing.T) {
	for authorizer, want := range map[string]string{
		`null`:                     "",
		`{}`:                       "",
		`{"iam": {"userArn": ""}}`: "",
		`{"iam": {"userArn": "arn:aws:iam::123456789012:user/team/jo"}}`:                                                          "arn:aws:iam::123456789012:user/team/jo",
		`{"iam": {"userArn": "arn:aws:sts::123456789012:assumed-role/cron/host-4"}}`:                                              role[:len(role)-4] + "cron",
		`{"iam": {"userArn": "arn:aws-cn:sts::123456789012:assumed-role/cron/jo@example.com"}}`:                                   "arn:aws-cn:sts::123456789012:assumed-role/cron",
		`{"iam": {"userArn": "arn:aws:iam::123456789012:user/a:assumed-role/b/c"}}`:                                               "arn:aws:iam::123456789012:user/a:assumed-role/b/c",
		`{"iam": {"userArn": "arn:aws:sts::123456789012:assumed-role/pool/CognitoIdentityCredentials", "cognitoIdentity": null}}`: "",
		`{"jwt": {"claims": {"iss": "https://id.example.com", "sub": "7"}}}`:                                                      "https://id.example.com#7",
		`{"jwt": {"claims": {"iss": "https://id.example.com"}}}`:                                                                  "",
		`{"jwt": {"claims": {"sub": 7}}}`:                                                                                         "",
		`{"lambda": {"user": "jo"}}`:                                                                                              "",
		`{"lambda": {"principalId": "arn:aws:iam::1:user/jo"}}`:                                                                   "lambda#arn:aws:iam::1:user/jo",
		`{"principalId": "jo", "claims": {"sub": "jo"}}`:                                                                          "", // not of format 2.0
		`{"iam": {"userArn": "arn:aws:iam::1:user/jo"}, "jwt": {"claims": {"iss": "x", "sub": "arn:other"}}}`:                     "arn:aws:iam::1:user/jo",
	} {
		var in Request
		require.NoError(t, json.Unmarshal([]byte(`{"version": "2.0", "rawPath": "/x", "requestContext": {"http": {"method": "GET"}, "authorizer": `+authorizer+`}}`), &in))
		require.Equal(t, want, in.Caller, authorizer)
	}
}

// A load balancer without multi-value headers takes one value for each name, and names are the same in any case.
func TestManyCookies(t *testing.T) {
	r := Response{StatusCode: 200, Header: http.Header{}, source: balancer}
	for i := range 100 {
		r.Header.Add("Set-Cookie", fmt.Sprint(i))
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var back Response
	require.NoError(t, json.Unmarshal(text, &back))
	require.ElementsMatch(t, r.Header.Values("Set-Cookie"), back.Header.Values("Set-Cookie"))
}

func TestNoAnswers(t *testing.T) {
	for _, text := range []string{`null`, `{}`, `[]`, `{"statusCode": 199}`, `{"statusCode": 1000}`, `{"statusCode": "200"}`, `{"statusCode": 200, "body": "%", "isBase64Encoded": true}`, `{"statusCode": 200, "extra": 1}`} {
		require.Error(t, json.Unmarshal([]byte(text), new(Response)), text)
	}
}
