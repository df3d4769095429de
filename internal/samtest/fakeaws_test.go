package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lambdatest"
)

// fakeAWS plays the services that a run against a stack uses, behind one
// endpoint: CloudFormation and API Gateway by what their documentation says,
// Lambda by the functions' own binaries in lambdatest, DynamoDB by DynamoDB
// Local. Which service a request is for is in its signature, which must be right.
type fakeAWS struct {
	*httptest.Server
	t         *testing.T
	template  template
	lockStore string
	status    string
	dynamo    *httputil.ReverseProxy

	// before may answer a request itself and return true.
	before func(w http.ResponseWriter, r *http.Request, service string) bool
	// bootstrap is the binary of each function, by logical id.
	bootstrap map[string]string
	env       []string // of the functions
	clerk     string   // the desk's program

	mu   sync.Mutex
	idle map[string][]*lambdatest.Env // by logical id
	seen map[string]int               // requests by service
}

const fakeStack = "it"

// physical is the name that CloudFormation has made for a resource.
func physical(id string) string { return fakeStack + "-" + id + "-1A2B3C" }

func logical(name string) string {
	return strings.TrimSuffix(strings.TrimPrefix(name, fakeStack+"-"), "-1A2B3C")
}

var fakeKeys = aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG", SessionToken: "session+/="}

// getenv is a desk at which the fake is AWS.
func (f *fakeAWS) getenv(name string) string {
	return map[string]string{
		"AWS_REGION": region, "AWS_ENDPOINT_URL": f.URL, "AWS_ACCESS_KEY_ID": fakeKeys.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY": fakeKeys.SecretAccessKey, "AWS_SESSION_TOKEN": fakeKeys.SessionToken,
	}[name]
}

// startFakeAWS builds the functions and deploys them. The test's directory is
// the repository's from then on.
func startFakeAWS(t *testing.T) *fakeAWS {
	t.Chdir("../..")
	tm, _, err := readAll()
	require.NoError(t, err)
	cache, err := cacheFolder(os.Getenv)
	require.NoError(t, err)
	dir := t.TempDir()
	tables := tm
	tables.tables = nil
	for _, table := range tm.tables {
		tables.tables = append(tables.tables, dynamoTable{physical(table.id), table.key})
	}
	s, err := startDynamo(t.Context(), tables, cache, dir)
	mustStart(t, err)
	t.Cleanup(s.server.stop)
	require.NoError(t, s.fresh(t.Context()))
	locks, err := url.Parse(s.url(loopback, physical("LockTable")))
	require.NoError(t, err)
	endpoint, err := url.Parse(locks.Query().Get("endpoint"))
	require.NoError(t, err)

	f := &fakeAWS{
		t: t, template: tm, lockStore: "dynamodb", status: "UPDATE_COMPLETE",
		dynamo:    &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(endpoint) }},
		bootstrap: map[string]string{}, idle: map[string][]*lambdatest.Env{}, seen: map[string]int{},
		// A short wait, so that a busy answer does not take two seconds.
		env: []string{"LOCK_WAIT=300ms"},
	}
	for name, table := range tm.urls {
		f.env = append(f.env, name+"="+s.url(loopback, physical(table)))
	}
	for _, fn := range tm.functions {
		f.bootstrap[fn.id] = filepath.Join(dir, fn.name)
		require.NoError(t, lambdatest.Build(t.Context(), "./functions/"+fn.name, f.bootstrap[fn.id]))
	}
	f.clerk, err = buildDesk(t.Context(), dir)
	require.NoError(t, err)
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.Close()
		f.forget()
	})
	return f
}

// forget ends all environments.
func (f *fakeAWS) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, all := range f.idle {
		for _, e := range all {
			assert.NoError(f.t, e.Close())
		}
		delete(f.idle, id)
	}
}

// requests is how many came for a service.
func (f *fakeAWS) requests(service string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[service]
}

func (f *fakeAWS) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	service, err := verify(r, body)
	if err != nil {
		f.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	f.mu.Lock()
	f.seen[service]++
	f.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	if f.before != nil && f.before(w, r, service) {
		return
	}
	switch service {
	case "cloudformation":
		f.formation(w, body)
	case "lambda":
		f.lambda(w, r, body)
	case "execute-api":
		f.api(w, r, body)
	case "dynamodb":
		f.dynamo.ServeHTTP(w, r)
	default:
		f.t.Errorf("a request to the service %q", service)
	}
}

var credential = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/\d{8}/([^/]+)/([^/]+)/aws4_request, SignedHeaders=([^,]+), Signature=[0-9a-f]{64}$`)

// verify signs the request again, as far as its signature says it is signed, and
// compares. So the key, the body, the path and the time are right too.
func verify(r *http.Request, body []byte) (service string, err error) {
	m := credential.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil {
		return "", fmt.Errorf("the signature is %q", r.Header.Get("Authorization"))
	}
	signed := strings.Split(m[4], ";")
	for _, name := range []string{"host", "x-amz-date", "x-amz-security-token", "content-type", "lock-token"} {
		if r.Header.Get(name) != "" && !slices.Contains(signed, name) {
			return "", fmt.Errorf("the header %s is not signed", name)
		}
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || time.Since(at).Abs() > 5*time.Minute {
		return "", fmt.Errorf("signed at %q", r.Header.Get("X-Amz-Date"))
	}
	again := r.Clone(context.Background())
	again.URL.Host, again.URL.Scheme = r.Host, "http"
	again.Header = http.Header{}
	again.ContentLength = 0
	for _, name := range signed {
		switch name {
		case "content-length":
			again.ContentLength = int64(len(body))
		case "host", "x-amz-date", "x-amz-security-token":
		default:
			again.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}
	sum := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(context.Background(), fakeKeys, again, hex.EncodeToString(sum[:]), m[3], region, at); err != nil {
		return "", err
	}
	if got, want := r.Header.Get("Authorization"), again.Header.Get("Authorization"); got != want {
		return "", fmt.Errorf("the signature is %s, want %s", got, want)
	}
	return m[3], nil
}

func (f *fakeAWS) formation(w http.ResponseWriter, body []byte) {
	form, err := url.ParseQuery(string(body))
	assert.NoError(f.t, err)
	assert.Equal(f.t, "2010-05-15", form.Get("Version"))
	if form.Get("StackName") != fakeStack {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `<ErrorResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><Error><Type>Sender</Type><Code>ValidationError</Code><Message>Stack with id %s does not exist</Message></Error><RequestId>1</RequestId></ErrorResponse>`, form.Get("StackName"))
		return
	}
	switch action := form.Get("Action"); action {
	case "DescribeStacks":
		fmt.Fprintf(w, `<DescribeStacksResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult><Stacks><member>
<StackName>%s</StackName><StackStatus>%s</StackStatus>
<Parameters><member><ParameterKey>LockTtl</ParameterKey><ParameterValue>60s</ParameterValue></member>
<member><ParameterKey>LockStore</ParameterKey><ParameterValue>%s</ParameterValue></member></Parameters>
<Outputs><member><OutputKey>ApiUrl</OutputKey><OutputValue>%s</OutputValue><Description>x</Description></member></Outputs>
</member></Stacks></DescribeStacksResult></DescribeStacksResponse>`, fakeStack, f.status, f.lockStore, f.URL)
	case "DescribeStackResources":
		fmt.Fprint(w, `<DescribeStackResourcesResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStackResourcesResult><StackResources>`)
		for _, fn := range f.template.functions {
			fmt.Fprintf(w, `<member><LogicalResourceId>%s</LogicalResourceId><PhysicalResourceId>%s</PhysicalResourceId></member>`, fn.id, physical(fn.id))
		}
		for _, table := range f.template.tables {
			fmt.Fprintf(w, `<member><LogicalResourceId>%s</LogicalResourceId><PhysicalResourceId>%s</PhysicalResourceId></member>`, table.id, physical(table.id))
		}
		fmt.Fprint(w, `</StackResources></DescribeStackResourcesResult></DescribeStackResourcesResponse>`)
	default:
		f.t.Errorf("CloudFormation's action %q", action)
	}
}

// lambda is the Invoke API.
func (f *fakeAWS) lambda(w http.ResponseWriter, r *http.Request, body []byte) {
	name, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/2015-03-31/functions/"), "/invocations")
	if !ok || f.bootstrap[logical(name)] == "" {
		w.Header().Set("X-Amzn-ErrorType", "ResourceNotFoundException")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"Type":"User","Message":"Function not found: %s"}`, name)
		return
	}
	result := f.run(logical(name), body)
	if result.ErrorType != "" {
		w.Header().Set("X-Amz-Function-Error", "Unhandled")
	}
	if r.Header.Get("X-Amz-Log-Type") == "Tail" {
		log := `{"type":"platform.report","record":{"metrics":{"durationMs":1.5}}}`
		if result.Init > 0 {
			log = `{"type":"platform.report","record":{"metrics":{"durationMs":1.5,"initDurationMs":40.1}}}`
		}
		w.Header().Set("X-Amz-Log-Result", base64.StdEncoding.EncodeToString([]byte(log)))
	}
	_, _ = w.Write(result.Payload)
}

// run runs a function in an environment that has nothing to do, or a new one.
func (f *fakeAWS) run(id string, event []byte) lambdatest.Result {
	f.mu.Lock()
	var e *lambdatest.Env
	if all := f.idle[id]; len(all) > 0 {
		e, f.idle[id] = all[len(all)-1], all[:len(all)-1]
	}
	f.mu.Unlock()
	if e == nil {
		var err error
		env := f.env
		if id == "LocksFunction" {
			env = append(slices.Clone(env), "LOCK_TOKEN_SECRET="+localSecret, `LOCK_CALLERS={"*": ["shared/"]}`)
		}
		e, err = lambdatest.Start(context.Background(), lambdatest.Config{Binary: f.bootstrap[id], Name: physical(id), Env: env, Timeout: 30 * time.Second})
		if !assert.NoError(f.t, err) {
			return lambdatest.Result{ErrorType: "Runtime.ExitError"}
		}
	}
	result, err := e.Invoke(context.Background(), event)
	assert.NoError(f.t, err)
	f.mu.Lock()
	f.idle[id] = append(f.idle[id], e)
	f.mu.Unlock()
	return result
}

// routes are those of the HTTP API, by function. A group of a path's pattern is a
// parameter of the path.
var routes = []struct {
	route, function string
	path            *regexp.Regexp
}{
	{"POST /accounts/{id}/withdrawals", "WithdrawFunction", regexp.MustCompile(`^/accounts/(?P<id>[^/]+)/withdrawals$`)},
	{"ANY /locks/{key+}", "LocksFunction", regexp.MustCompile(`^/locks/(?P<key>.+)$`)},
	{"GET /openapi.json", "LocksFunction", regexp.MustCompile(`^/openapi\.json$`)},
}

// api is the HTTP API.
func (f *fakeAWS) api(w http.ResponseWriter, r *http.Request, body []byte) {
	for _, route := range routes {
		method, _, _ := strings.Cut(route.route, " ")
		found := route.path.FindStringSubmatch(r.URL.Path)
		if found == nil || method != "ANY" && method != r.Method {
			continue
		}
		parameters := map[string]string{}
		for i, name := range route.path.SubexpNames()[1:] {
			parameters[name] = found[i+1]
		}
		headers := map[string]string{}
		for name, values := range r.Header {
			headers[strings.ToLower(name)] = values[0]
		}
		event, err := json.Marshal(map[string]any{
			"version": "2.0", "routeKey": route.route, "rawPath": r.URL.Path,
			"headers": headers, "body": string(body), "pathParameters": parameters,
			"requestContext": map[string]any{
				"http":       map[string]string{"method": r.Method, "path": r.URL.Path},
				"authorizer": map[string]any{"iam": map[string]string{"userArn": "arn:aws:iam::123456789012:user/it"}},
			},
		})
		assert.NoError(f.t, err)
		f.answer(w, f.run(route.function, event))
		return
	}
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprint(w, `{"message":"Not Found"}`)
}

// answer writes the response that a function's answer asks for.
func (f *fakeAWS) answer(w http.ResponseWriter, result lambdatest.Result) {
	var answer struct {
		StatusCode int
		Headers    map[string]string
		Body       string
	}
	if result.ErrorType != "" || json.Unmarshal(result.Payload, &answer) != nil {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"message":"Internal Server Error"}`)
		return
	}
	for name, value := range answer.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(answer.StatusCode)
	fmt.Fprint(w, answer.Body)
}
