package lockhttp

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The service is the same behind every source of package httpapi, with routes and without.
func TestSources(t *testing.T) {
	const (
		headers = `{"content-type": "application/json", "lock-token": %[2]q}`
		multi   = `{"content-type": ["application/json"], "lock-token": [%[2]q]}`
		http2   = `"version": "2.0", "headers": ` + headers + `, "body": %[3]q, "requestContext": {"http": {"method": %[1]q}, "authorizer": {"iam": {"userArn": "` + cron + `/host-4"}}, `
		rest    = `{"resource": "/locks/{key+}", "path": "/locks/payroll/a%%20b", "pathParameters": {"key": "payroll/a%%20b"}, "httpMethod": %[1]q, "headers": ` + headers + `, "body": %[3]q, "requestContext": {"apiId": "a1", "identity": {"userArn": "` + cron + `/host-4"}}}`
		elb     = `{"requestContext": {"elb": {"targetGroupArn": "arn"}}, "httpMethod": %[1]q, "path": "/locks/shared/a%%20b", "body": %[3]q, `
		lattice = `{"version": "2.0", "path": "/locks/payroll/a%%20b", "method": %[1]q, "headers": ` + multi + `, "body": %[3]q, "requestContext": {"serviceArn": "arn", "identity": {"type": "AWS_IAM", "principal": "` + cron + `/host-4"}}}`
	)
	for name, c := range map[string]struct{ key, event string }{
		"HTTP API":                               {"payroll/a b", `{"rawPath": "/locks/payroll/a b", "pathParameters": {"key": "payroll/a b"}, ` + http2 + `"domainName": "api.example.com"}}`},
		"function URL":                           {"payroll/a b", `{"rawPath": "/locks/payroll/a%%20b", ` + http2 + `"domainName": "u1.lambda-url.eu-west-1.on.aws"}}`},
		"REST API":                               {"payroll/a b", rest},
		"load balancer":                          {"shared/a b", elb + `"headers": ` + headers + `}`},
		"load balancer with multi-value headers": {"shared/a b", elb + `"multiValueHeaders": ` + multi + `}`},
		"VPC Lattice, event version 1":           {"shared/a b", `{"raw_path": "/locks/shared/a%%20b", "method": %[1]q, "headers": ` + headers + `, "body": %[3]q}`},
		"VPC Lattice, event version 2":           {"payroll/a b", lattice},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			send := func(method, token, body string) (status int, said map[string]any) {
				var r httpapi.Request
				require.NoError(t, json.Unmarshal(fmt.Appendf(nil, c.event, method, token, body), &r))
				text, err := json.Marshal(send(t, t.Context(), w.Service, r).Response)
				require.NoError(t, err)
				var a struct {
					StatusCode int
					Body       string
				}
				require.NoError(t, json.Unmarshal(text, &a))
				_ = json.Unmarshal([]byte(a.Body), &said) // a 204 has no body
				return a.StatusCode, said
			}
			status, granted := send("PUT", "", thirty)
			require.Equal(t, 200, status, granted)
			require.Equal(t, lockstore.Held, w.store.state(t, c.key))
			status, _ = send("PUT", "", thirty)
			require.Equal(t, 409, status)
			status, seen := send("GET", "", "")
			require.Equal(t, 200, status)
			require.Equal(t, granted["fence"], seen["fence"])
			if c.key == "payroll/a b" { // which only an authenticated caller may use
				require.Equal(t, cron, seen["holder"].(object)["caller"])
			}
			status, _ = send("PATCH", granted["token"].(string), thirty)
			require.Equal(t, 200, status)
			status, _ = send("DELETE", granted["token"].(string), "")
			require.Equal(t, 204, status)
			require.Equal(t, lockstore.Free, w.store.state(t, c.key))
		})
	}
}
