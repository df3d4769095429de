package locallambda

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lambdatest"
)

func TestReadEvent(t *testing.T) {
	for text, want := range map[string][2]string{
		`{"id": "{{run}}-{{n}}", "n": {{n}}}`:       {`{"id": "abc-11", "n": 11}`, `{"id": "abc-12", "n": 12}`},
		"{\"read\": {{n}}}\n\n{\"write\": {{n}}}\n": {`{"read": 11}`, `{"write": 12}`},
		`[1, "{{x}}"]`: {`[1, "{{x}}"]`, `[1, "{{x}}"]`}, // only what is named here is replaced
	} {
		e, err := readEvent(eventFile(t, text))
		require.NoError(t, err)
		assert.JSONEq(t, want[0], string(e.event(11, "abc")))
		assert.JSONEq(t, want[1], string(e.event(12, "abc")))
	}
}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		result lambdatest.Result
		want   answer
	}{
		"success":            {lambdatest.Result{Payload: []byte(`{"statusCode": 200, "body": "x"}`)}, answer{}},
		"no HTTP answer":     {lambdatest.Result{Payload: []byte(`"text"`)}, answer{}},
		"a status of a text": {lambdatest.Result{Payload: []byte(`{"statusCode": "500"}`)}, answer{}},
		"LockBusy":           {lambdatest.Result{ErrorType: "LockBusy", ErrorMessage: "x"}, answer{busy: true, detail: "x"}},
		"409":                {lambdatest.Result{Payload: []byte(`{"statusCode": 409, "body": "held"}`)}, answer{busy: true, detail: "held"}},
		"covered":            {lambdatest.Result{ErrorType: "LockCovered", ErrorMessage: "x"}, answer{failed: "LockCovered", detail: "x"}},
		"covered, HTTP":      {lambdatest.Result{Payload: []byte(`{"statusCode": 409, "body": "{\"code\":\"covered\"}"}`)}, answer{failed: "LockCovered", detail: `{"code":"covered"}`}},
		"in doubt, HTTP":     {lambdatest.Result{Payload: []byte(`{"statusCode": 409, "body": "{\"code\":\"in-doubt\"}"}`)}, answer{failed: "HTTP 409", detail: `{"code":"in-doubt"}`}},
		"no store":           {lambdatest.Result{ErrorType: "LockStoreUnavailable", ErrorMessage: "x"}, answer{failed: "LockStoreUnavailable", detail: "x", again: true}},
		"no store, HTTP":     {lambdatest.Result{Payload: []byte(`{"statusCode": 503, "headers": {"Retry-After": "1"}, "body": "no"}`)}, answer{failed: "HTTP 503", detail: "no", again: true}},
		"503 of another":     {lambdatest.Result{Payload: []byte(`{"statusCode": 503, "body": "no"}`)}, answer{failed: "HTTP 503", detail: "no"}},
		"another error":      {lambdatest.Result{ErrorType: "LockLost", ErrorMessage: "lost"}, answer{failed: "LockLost", detail: "lost"}},
		"500":                {lambdatest.Result{Payload: []byte(`{"statusCode": 500, "body": "no"}`)}, answer{failed: "HTTP 500", detail: "no"}},
		"a whole batch":      {lambdatest.Result{Payload: []byte(`{"batchItemFailures": []}`)}, answer{}},
	} {
		assert.Equal(t, c.want, read(c.result, nil, said{}), name)
	}
}

// A store that was not available is seen in each form of an answer.
func TestReadRetryAfter(t *testing.T) {
	for name, event := range map[string]string{
		"format 2.0":                           `{"version": "2.0", "rawPath": "/", "requestContext": {"http": {"method": "GET"}}}`,
		"format 1.0":                           `{"version": "1.0", "httpMethod": "GET", "path": "/", "requestContext": {}}`,
		"REST":                                 `{"httpMethod": "GET", "path": "/", "requestContext": {}}`,
		"a load balancer":                      `{"httpMethod": "GET", "path": "/", "headers": {}, "requestContext": {"elb": {"targetGroupArn": "a"}}}`,
		"a load balancer, multi-value headers": `{"httpMethod": "GET", "path": "/", "multiValueHeaders": {}, "requestContext": {"elb": {"targetGroupArn": "a"}}}`,
		"VPC Lattice":                          `{"version": "2.0", "method": "GET", "path": "/", "requestContext": {"serviceArn": "a"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var in httpapi.Request
			require.NoError(t, json.Unmarshal([]byte(event), &in))
			again := func(header http.Header) bool {
				payload, err := json.Marshal(httpapi.Response{StatusCode: 503, Header: header, Body: []byte("no")}.For(in))
				require.NoError(t, err)
				got := read(lambdatest.Result{Payload: payload}, nil, said{})
				assert.Equal(t, answer{failed: "HTTP 503", detail: "no", again: got.again}, got)
				return got.again
			}
			assert.True(t, again(http.Header{"Retry-After": {"1"}}))
			assert.False(t, again(http.Header{"Content-Type": {"text/plain"}}), "of another")
		})
	}
}

// Items that failed are sent again only if the function logged no other cause than a busy lock.
func TestReadBatch(t *testing.T) {
	const event = `{"Records": [{"messageId": "a", "body": "1"}, {"messageId": "b", "body": "2"}, {"messageId": "c", "body": "3"}]}`
	const (
		busyItem  = `{"level":"INFO","msg":"message failed","messageId":"b","key":"k","error":"busy: held by x"}`
		poison    = `{"level":"WARN","msg":"message failed","messageId":"a","key":"k","error":"amount is -5"}`
		busyGuard = `{"level":"INFO","message":"lock","outcome":"busy","error":"held by x"}`
		failed    = `{"level":"INFO","message":"lock","outcome":"error","error":"amount is -5"}`
		ok        = `{"level":"INFO","message":"lock","outcome":"ok"}`
	)
	for name, c := range map[string]struct {
		log    []string
		busy   bool
		detail string
	}{
		"a lock was busy":            {[]string{busyItem}, true, `item "b": busy: held by x`},
		"poison":                     {[]string{poison}, false, `item "a": amount is -5`},
		"busy in a run that fails":   {[]string{failed, busyItem}, true, `item "b": busy: held by x`},
		"a busy one, and poison":     {[]string{busyItem, poison}, false, `item "a": amount is -5`},
		"a guard's busy lock":        {[]string{ok, busyGuard, busyItem}, true, "held by x"},
		"a guard's error":            {[]string{busyGuard, failed}, false, "amount is -5"},
		"nothing is logged":          {nil, false, "the function does not log why"},
		"another line of a function": {[]string{`{"level":"INFO","message":"payment failed","messageId":"b"}`}, false, "the function does not log why"},
		"a stream's record":          {[]string{`{"level":"WARN","message":"record failed","sequenceNumber":"4950","error":"no such table"}`}, false, `item "4950": no such table`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReports(0)
			r.read([]byte(poison)) // of the event before
			r.begin(2)
			for _, l := range c.log {
				r.read([]byte(l))
			}
			got := read(lambdatest.Result{Payload: []byte(`{"batchItemFailures": [{"itemIdentifier": "b"}, {"itemIdentifier": "a"}]}`)}, []byte(event), r.said())
			assert.JSONEq(t, `{"Records": [{"messageId": "a", "body": "1"}, {"messageId": "b", "body": "2"}]}`, string(got.rest))
			detail, _, _ := strings.Cut(got.detail, "\nits source would send it again")
			assert.Equal(t, answer{busy: c.busy, detail: c.detail}, answer{busy: got.busy, detail: detail})
			assert.Equal(t, c.busy, got.failed == "")
		})
	}
	assert.Nil(t, messages([]byte(`{"Records": [{"kinesis": {}}]}`), []string{"4950"}), "a stream sends all again")
}
