//go:build sam

package samtest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
)

// fakeAWS plays the services that a run on a stack uses, behind one endpoint, by what their documentation says. Which
// service a request is for is in its signature. Its functions run nothing.
type fakeAWS struct {
	*httptest.Server
	t         *testing.T
	template  *template.Template
	lockStack string // the stack that it imports its locks from: a cache's
	seen      []string
}

const fakeStack = "it"

// getenv is the environment of somebody for whom the fake is AWS.
func (f *fakeAWS) getenv(name string) string {
	return map[string]string{
		"AWS_REGION": region, "AWS_ENDPOINT_URL": f.URL, "AWS_ACCESS_KEY_ID": "local",
		"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG", "AWS_SESSION_TOKEN": "session+/=",
	}[name]
}

var credential = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=local/\d{8}/` + region + `/([^/]+)/aws4_request, SignedHeaders=[^,]+, Signature=[0-9a-f]{64}$`)

func (f *fakeAWS) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(f.t, err)
	m := credential.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil || r.Header.Get("X-Amz-Security-Token") != "session+/=" {
		f.t.Errorf("%s %s: the signature is %q", r.Method, r.URL, r.Header.Get("Authorization"))
		return
	}
	f.seen = append(f.seen, m[1]+" "+r.Method+" "+r.URL.RequestURI())
	switch m[1] {
	case "cloudformation":
		f.formation(w, body)
	case "dynamodb":
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		_, _ = io.WriteString(w, "{}")
	default:
		_, _ = w.Write(body)
	}
}

func (f *fakeAWS) formation(w http.ResponseWriter, body []byte) {
	form, err := url.ParseQuery(string(body))
	assert.NoError(f.t, err)
	action, name := form.Get("Action"), form.Get("StackName")
	fmt.Fprintf(w, `<%sResponse><%sResult>`, action, action)
	switch {
	case action == "DescribeStackResources":
		fmt.Fprint(w, "<StackResources>")
		for id := range f.template.Resources {
			fmt.Fprintf(w, `<member><LogicalResourceId>%s</LogicalResourceId><PhysicalResourceId>it-%s-1A2B3C</PhysicalResourceId></member>`, id, id)
		}
		fmt.Fprint(w, "</StackResources>")
	case name == f.lockStack:
		fmt.Fprint(w, `<Stacks><member><StackName>locks</StackName><StackStatus>CREATE_COMPLETE</StackStatus>
<Outputs><member><OutputKey>Url</OutputKey><OutputValue>elasticache://u@cache.invalid:6379?cache=c</OutputValue></member></Outputs></member></Stacks>`)
	default:
		fmt.Fprintf(w, `<Stacks><member><StackName>%s</StackName><StackStatus>UPDATE_COMPLETE</StackStatus><Parameters>
<member><ParameterKey>LockTtl</ParameterKey><ParameterValue>60s</ParameterValue></member>
<member><ParameterKey>LockStack</ParameterKey><ParameterValue>%s</ParameterValue></member></Parameters>
<Outputs><member><OutputKey>ApiUrl</OutputKey><OutputValue>%s/stage</OutputValue></member></Outputs></member></Stacks>`, fakeStack, f.lockStack, f.URL)
	}
	fmt.Fprintf(w, `</%sResult></%sResponse>`, action, action)
}

// TestFakeAWS looks at what a run in AWS asks for. What it then tries, TestSAM tries, too.
func TestFakeAWS(t *testing.T) {
	t.Chdir("../../..")
	fake := &fakeAWS{t: t, template: readTemplate(t)}
	fake.Server = httptest.NewServer(http.HandlerFunc(fake.serve))
	t.Cleanup(fake.Close)
	at := openCloud(t, fake.getenv)
	s := at.suite(t, t.Context(), fakeStack)
	require.NotNil(t, s.locks, "else tests would be skipped")
	on, withdraw := s.serve(t, ""), s.fixtures[slices.IndexFunc(s.fixtures, func(f fixture) bool { return f.Name == "withdraw" })]
	got, err := on.once(t.Context(), withdraw)
	require.NoError(t, err)
	require.Equal(t, withdraw.Event, got)
	r, ok := withdraw.request(t)
	require.True(t, ok)
	r.Path = "/a%2Fb//c"
	_, err = on.call(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, []string{"lambda POST /2015-03-31/functions/it-WithdrawFunction-1A2B3C/invocations?Qualifier=live", "execute-api POST /stage/a%2Fb//c"},
		fake.seen[len(fake.seen)-2:], "only the alias follows a deployment, and a path stays as it is")
	require.True(t, slices.Contains(fake.seen, "dynamodb POST /"))

	fake.lockStack = "locks"
	require.Equal(t, "elasticache://u@cache.invalid:6379?cache=c", at.describe(t, t.Context(), fakeStack, fake.template).locks)
	require.Nil(t, at.suite(t, t.Context(), fakeStack).locks, "a cache is out of reach")
}
