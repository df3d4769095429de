package locallambda

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	const batch = `{"Records": [{"messageId": "a", "body": "1"}, {"messageId": "b", "body": "2"}]}`
	for name, c := range map[string]struct {
		result lambdatest.Result
		want   answer
	}{
		"success":            {lambdatest.Result{Payload: []byte(`{"statusCode": 200, "body": "x"}`)}, answer{}},
		"no HTTP answer":     {lambdatest.Result{Payload: []byte(`"text"`)}, answer{}},
		"nothing":            {lambdatest.Result{Payload: []byte(`null`)}, answer{}},
		"a status of a text": {lambdatest.Result{Payload: []byte(`{"statusCode": "500"}`)}, answer{}},
		"LockBusy":           {lambdatest.Result{ErrorType: "LockBusy", ErrorMessage: "x"}, answer{busy: true, detail: "x"}},
		"409":                {lambdatest.Result{Payload: []byte(`{"statusCode": 409, "body": "held"}`)}, answer{busy: true, detail: "held"}},
		"no store":           {lambdatest.Result{ErrorType: "LockStoreUnavailable", ErrorMessage: "x"}, answer{failed: "LockStoreUnavailable", detail: "x", again: true}},
		"no store, HTTP":     {lambdatest.Result{Payload: []byte(`{"statusCode": 503, "headers": {"Retry-After": "1"}, "body": "no"}`)}, answer{failed: "HTTP 503", detail: "no", again: true}},
		"503 of another":     {lambdatest.Result{Payload: []byte(`{"statusCode": 503, "body": "no"}`)}, answer{failed: "HTTP 503", detail: "no"}},
		"another error":      {lambdatest.Result{ErrorType: "LockLost", ErrorMessage: "lost"}, answer{failed: "LockLost", detail: "lost"}},
		"a timeout":          {lambdatest.Result{ErrorType: lambdatest.ErrorTimeout, ErrorMessage: "late"}, answer{failed: lambdatest.ErrorTimeout, detail: "late"}},
		"500":                {lambdatest.Result{Payload: []byte(`{"statusCode": 500, "body": "no"}`)}, answer{failed: "HTTP 500", detail: "no"}},
		"400":                {lambdatest.Result{Payload: []byte(`{"statusCode": 400, "body": "no"}`)}, answer{failed: "HTTP 400", detail: "no"}},
		"a whole batch":      {lambdatest.Result{Payload: []byte(`{"batchItemFailures": []}`)}, answer{}},
	} {
		got := read(c.result, []byte(batch), said{})
		assert.Equal(t, string(c.want.rest), string(got.rest), name)
		c.want.rest, got.rest = nil, nil
		assert.Equal(t, c.want, got, name)
	}
}

// An item that failed is sent again only if its lock was busy.
func TestReadBatch(t *testing.T) {
	const (
		batch = `{"Records": [{"messageId": "a", "body": "1"}, {"messageId": "b", "body": "2"}, {"messageId": "c", "body": "3"}]}`
		a, b  = `{"messageId":"a","body":"1"}`, `{"messageId":"b","body":"2"}`
	)
	busy := func(detail string) answer { return answer{busy: true, detail: detail} }
	failed := func(detail string) answer {
		return answer{failed: batchFailure, detail: detail + "\nits source would send it again, and in the end move it to a dead-letter queue or drop it; change --event or the function"}
	}
	line := func(level, message, id, text string) string {
		return fmt.Sprintf(`{"level":%q,"msg":%q,"requestId":"r","messageId":%q,"key":"k","error":%q}`, level, message, id, text)
	}
	report := func(outcome, text string) string {
		return fmt.Sprintf(`{"level":"INFO","message":"lock","outcome":%q,"error":%q}`, outcome, text)
	}
	for name, c := range map[string]struct {
		items string
		log   []string
		want  answer
		rest  string // the records that would be sent again
	}{
		"a lock was busy":             {`"b"`, []string{line("INFO", "message failed", "b", "busy: held by x")}, busy(`item "b": busy: held by x`), b},
		"poison":                      {`"a"`, []string{line("WARN", "message failed", "a", "amount is -5")}, failed(`item "a": amount is -5`), a},
		"a busy one, and poison":      {`"a","b"`, []string{line("INFO", "message failed", "a", "busy"), line("WARN", "message failed", "b", "amount is -5")}, failed(`item "b": amount is -5`), a + "," + b},
		"two, the first of the batch": {`"a","b"`, []string{line("WARN", "message failed", "b", "second"), line("WARN", "message failed", "a", "first")}, failed(`item "a": first`), a + "," + b},
		"a guard's busy lock":         {`"b"`, []string{report("ok", ""), report("busy", "held by x")}, busy(`item "b": held by x`), b},
		"a guard's error":             {`"b"`, []string{report("error", "amount is -5")}, failed(`item "b": amount is -5`), b},
		"nothing is logged":           {`"b"`, nil, failed(`item "b": the function does not log why`), b},
		"another line of a function":  {`"b"`, []string{`{"level":"INFO","message":"payment failed","messageId":"b"}`}, failed(`item "b": the function does not log why`), b},
		"a stream's position":         {`"4950"`, []string{`{"level":"WARN","message":"record failed","sequenceNumber":"4950","error":"no such table"}`}, failed(`item "4950": no such table`), ""},
		"a stream's busy record":      {`"4950"`, []string{`{"level":"INFO","message":"record failed","sequenceNumber":"4950","error":"busy"}`}, busy(`item "4950": busy`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReports(0)
			_, err := r.Write([]byte(line("WARN", "message failed", "a", "of the event before") + "\n"))
			require.NoError(t, err)
			r.begin()
			for _, l := range c.log {
				_, err := r.Write([]byte(l + "\n"))
				require.NoError(t, err)
			}
			var items []string
			for id := range strings.SplitSeq(c.items, ",") {
				items = append(items, `{"itemIdentifier": `+id+`}`)
			}
			got := read(lambdatest.Result{Payload: []byte(`{"batchItemFailures": [` + strings.Join(items, ",") + `]}`)}, []byte(batch), r.said())
			if c.rest != "" {
				assert.JSONEq(t, `{"Records":[`+c.rest+`]}`, string(got.rest))
				got.rest = nil
			}
			assert.Equal(t, c.want, got)
		})
	}
}
