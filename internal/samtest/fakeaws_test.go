//go:build sam

package samtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// fakeAWS plays the services that a run on a stack uses, behind one endpoint:
// CloudFormation by what its documentation says, Lambda and API Gateway by lambdatest
// with the functions' own binaries, DynamoDB by DynamoDB Local. Which service a request is for is in its signature.
type fakeAWS struct {
	*httptest.Server
	t         *testing.T
	template  *template.Template
	lockStack string // the stack that it imports its locks from: a cache's
	dynamo    http.Handler

	// bootstrap is the binary of each function, by logical id.
	bootstrap map[string]string
	env       []string // of the functions

	mu   sync.Mutex
	idle map[string][]*lambdatest.Environment // by logical id
	seen map[string]int                       // requests by service
}

const fakeStack = "it"

// physical is the name that CloudFormation has made for a resource.
func physical(id string) string { return fakeStack + "-" + id + "-1A2B3C" }

func logical(name string) string {
	return strings.TrimSuffix(strings.TrimPrefix(name, fakeStack+"-"), "-1A2B3C")
}

// DynamoDB Local keeps the tables of access keys apart, and testservers makes those
// of the access key "local".
var fakeKeys = aws.Credentials{AccessKeyID: "local", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG", SessionToken: "session+/="}

// getenv is the environment of somebody for whom the fake is AWS.
func (f *fakeAWS) getenv(name string) string {
	return map[string]string{
		"AWS_REGION": region, "AWS_ENDPOINT_URL": f.URL, "AWS_ACCESS_KEY_ID": fakeKeys.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY": fakeKeys.SecretAccessKey, "AWS_SESSION_TOKEN": fakeKeys.SessionToken,
	}[name]
}

// startFakeAWS builds the functions and deploys them. The test's directory is the
// repository's from then on.
func startFakeAWS(t *testing.T) *fakeAWS {
	endpoint := testservers.DynamoDB(t) // skips where there is none
	t.Chdir("../..")
	tm, dir := readTemplate(t), t.TempDir()
	f := &fakeAWS{
		t: t, template: tm,
		dynamo:    testservers.Forward(t, endpoint),
		bootstrap: map[string]string{}, idle: map[string][]*lambdatest.Environment{}, seen: map[string]int{},
		// A short wait, so that a busy answer does not take two seconds.
		env: []string{"LOCK_WAIT=300ms"},
	}
	urls := map[string]string{}
	tables, err := tm.Tables()
	require.NoError(t, err)
	for _, table := range tables {
		urls[table.ID] = testservers.Table(t, endpoint, physical(table.ID), table.Key)
	}
	for name, table := range tableOf(t, tm) {
		f.env = append(f.env, name+"="+urls[table])
	}
	functions, err := tm.Functions()
	require.NoError(t, err)
	for _, of := range functions {
		f.bootstrap[of.ID] = filepath.Join(dir, of.Name())
		require.NoError(t, lambdatest.Build(t.Context(), "./"+of.CodeURI, f.bootstrap[of.ID]))
	}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() { f.Close(); f.forget() })
	return f
}

// forget ends all environments.
func (f *fakeAWS) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, all := range f.idle {
		for _, e := range all {
			assert.NoError(f.t, e.Close())
		}
	}
	clear(f.idle)
}

var credential = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/\d{8}/([^/]+)/([^/]+)/aws4_request, SignedHeaders=[^,]+, Signature=[0-9a-f]{64}$`)

func (f *fakeAWS) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m := credential.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil || m[1] != fakeKeys.AccessKeyID || m[2] != region || r.Header.Get("X-Amz-Security-Token") != fakeKeys.SessionToken {
		f.t.Errorf("%s %s: the signature is %q", r.Method, r.URL, r.Header.Get("Authorization"))
		return
	}
	service := m[3]
	f.mu.Lock()
	f.seen[service]++
	f.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch service {
	case "cloudformation":
		f.formation(w, body)
	case "lambda":
		f.lambda(w, r, body)
	case "execute-api":
		f.api(w, r)
	case "dynamodb":
		f.dynamo.ServeHTTP(w, r)
	default:
		f.t.Errorf("a request to the service %q", service)
	}
}

func (f *fakeAWS) formation(w http.ResponseWriter, body []byte) {
	form, err := url.ParseQuery(string(body))
	assert.NoError(f.t, err)
	action := form.Get("Action")
	if name := form.Get("StackName"); name != fakeStack && (name == "" || name != f.lockStack) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `<ErrorResponse><Error><Type>Sender</Type><Code>ValidationError</Code><Message>Stack with id %s does not exist</Message></Error></ErrorResponse>`, form.Get("StackName"))
		return
	}
	fmt.Fprintf(w, `<%sResponse><%sResult>`, action, action)
	switch action {
	case "DescribeStacks":
		if form.Get("StackName") == f.lockStack {
			fmt.Fprint(w, `<Stacks><member><StackName>locks</StackName><StackStatus>CREATE_COMPLETE</StackStatus>
<Outputs><member><OutputKey>Url</OutputKey><OutputValue>elasticache://u@cache.invalid:6379?cache=c</OutputValue></member></Outputs></member></Stacks>`)
			break
		}
		fmt.Fprintf(w, `<Stacks><member><StackName>%s</StackName><StackStatus>UPDATE_COMPLETE</StackStatus><Parameters>
<member><ParameterKey>LockTtl</ParameterKey><ParameterValue>60s</ParameterValue></member>
<member><ParameterKey>LockStack</ParameterKey><ParameterValue>%s</ParameterValue></member></Parameters>
<Outputs><member><OutputKey>ApiUrl</OutputKey><OutputValue>%s</OutputValue></member></Outputs></member></Stacks>`, fakeStack, f.lockStack, f.URL)
	case "DescribeStackResources":
		fmt.Fprint(w, "<StackResources>")
		for id := range f.template.Resources {
			fmt.Fprintf(w, `<member><LogicalResourceId>%s</LogicalResourceId><PhysicalResourceId>%s</PhysicalResourceId></member>`, id, physical(id))
		}
		fmt.Fprint(w, "</StackResources>")
	default:
		f.t.Errorf("CloudFormation's action %q", action)
	}
	fmt.Fprintf(w, `</%sResult></%sResponse>`, action, action)
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
	assert.Equal(f.t, alias, r.URL.Query().Get("Qualifier"), "only the alias follows a deployment")
	result := f.run(logical(name), body)
	if result.ErrorType != "" {
		w.Header().Set("X-Amz-Function-Error", "Unhandled")
	}
	_, _ = w.Write(result.Payload)
}

// run runs a function in an environment that has nothing to do, or a new one.
func (f *fakeAWS) run(id string, event []byte) lambdatest.Result {
	f.mu.Lock()
	var e *lambdatest.Environment
	if all := f.idle[id]; len(all) > 0 {
		e, f.idle[id] = all[len(all)-1], all[:len(all)-1]
	}
	f.mu.Unlock()
	if e == nil {
		var err error
		env := f.env
		if id == "LocksFunction" {
			env = append(slices.Clone(env), "LOCK_TOKEN_SECRET="+localSecret, `LOCK_CALLERS={"*": ["shared/"], "anonymous": ["shared/"]}`)
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

// api is the HTTP API.
func (f *fakeAWS) api(w http.ResponseWriter, r *http.Request) {
	lambdatest.HTTPAPI{
		Routes: []string{"POST /accounts/{id}/withdrawals", "ANY /locks/{key+}", "GET /openapi.json"},
		Invoke: func(_ context.Context, event []byte) ([]byte, error) {
			id := "LocksFunction"
			if bytes.Contains(event, []byte(`{id}/withdrawals"`)) {
				id = "WithdrawFunction"
			}
			result := f.run(id, event)
			if result.ErrorType != "" {
				return nil, errors.New(result.ErrorMessage)
			}
			return result.Payload, nil
		},
	}.ServeHTTP(w, r)
}
