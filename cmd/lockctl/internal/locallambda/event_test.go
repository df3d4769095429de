package locallambda

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lambdatest"
)

func TestReadEvent(t *testing.T) {
	e, err := readEvent("-", strings.NewReader(`{"id": "{{run}}-{{n}}", "n": {{n}}}`))
	require.NoError(t, err)
	assert.JSONEq(t, `{"id": "abc-12", "n": 12}`, string(e.event(12, "abc")))
	assert.JSONEq(t, `{"id": "abc-13", "n": 13}`, string(e.event(13, "abc")))

	file := filepath.Join(t.TempDir(), "event.json")
	require.NoError(t, os.WriteFile(file, []byte(`[1, "{{x}}"]`), 0o600))
	e, err = readEvent(file, nil)
	require.NoError(t, err)
	assert.Equal(t, `[1, "{{x}}"]`, string(e.event(1, "r")), "only what is named here is replaced")
}

func TestRead(t *testing.T) {
	const batch = `{"Records": [{"messageId": "a", "body": "1"}, {"messageId": "b", "body": "2"}]}`
	for name, c := range map[string]struct {
		result lambdatest.Result
		want   answer
	}{
		"success":             {lambdatest.Result{Payload: []byte(`{"statusCode": 200, "body": "x"}`)}, answer{}},
		"no HTTP answer":      {lambdatest.Result{Payload: []byte(`"text"`)}, answer{}},
		"nothing":             {lambdatest.Result{Payload: []byte(`null`)}, answer{}},
		"a status of a text":  {lambdatest.Result{Payload: []byte(`{"statusCode": "500"}`)}, answer{}},
		"LockBusy":            {lambdatest.Result{ErrorType: "LockBusy", ErrorMessage: "x"}, answer{busy: true}},
		"409":                 {lambdatest.Result{Payload: []byte(`{"statusCode": 409, "body": "held"}`)}, answer{busy: true, detail: "held"}},
		"another error":       {lambdatest.Result{ErrorType: "LockLost", ErrorMessage: "lost"}, answer{failed: "LockLost", detail: "lost"}},
		"a timeout":           {lambdatest.Result{ErrorType: lambdatest.ErrorTimeout, ErrorMessage: "late"}, answer{failed: lambdatest.ErrorTimeout, detail: "late"}},
		"500":                 {lambdatest.Result{Payload: []byte(`{"statusCode": 500, "body": "no"}`)}, answer{failed: "HTTP 500", detail: "no"}},
		"400":                 {lambdatest.Result{Payload: []byte(`{"statusCode": 400, "body": "no"}`)}, answer{failed: "HTTP 400", detail: "no"}},
		"a whole batch":       {lambdatest.Result{Payload: []byte(`{"batchItemFailures": []}`)}, answer{}},
		"a message failed":    {lambdatest.Result{Payload: []byte(`{"batchItemFailures": [{"itemIdentifier": "b"}]}`)}, answer{busy: true, detail: `batchItemFailures, the first "b"`, rest: []byte(`{"Records":[{"messageId":"b","body":"2"}]}`)}},
		"a stream's position": {lambdatest.Result{Payload: []byte(`{"batchItemFailures": [{"itemIdentifier": "4950"}]}`)}, answer{busy: true, detail: `batchItemFailures, the first "4950"`}},
	} {
		got := read(c.result, []byte(batch))
		assert.Equal(t, string(c.want.rest), string(got.rest), name)
		c.want.rest, got.rest = nil, nil
		assert.Equal(t, c.want, got, name)
	}
}
