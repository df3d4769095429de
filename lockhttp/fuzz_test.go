package lockhttp

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/lib/strictjson"
	"github.com/lambdalock/lambdalock/lockstore"
)

// FuzzRequest: whatever comes in, the answer is one that is described, a request
// that is described is not refused as a bad one, and only a 200 has locked
// anything.
func FuzzRequest(f *testing.F) {
	for _, method := range []string{"PUT", "PATCH", "DELETE", "GET", "POST"} {
		for _, body := range []string{`{"ttl": 30}`, `{"ttl":900,"wait":20,"holder":"ä"}`, `{"ttl": 3e1}`, `{"ttl": 30.0}`, `{"ttl": 30.5}`, `{"ttl":30,"ttl":30}`, `{`, ""} {
			f.Add(method, "shared/k", body, "application/json", "7", "AQ", cron)
		}
	}
	f.Add("PUT", "a/../b", `{"ttl": 30}`, "application/json; charset=utf-8", "\x00", "\n", "")
	f.Add("get", "a%2Fb", "\xff", "text/plain", "", "", web)
	f.Fuzz(func(t *testing.T, method, key, body, contentType, idempotencyKey, token, caller string) {
		w := newWorld(t)
		r := request(caller, method, key, body, "Content-Type", contentType, "Idempotency-Key", idempotencyKey, "Lock-Token", token)
		began := time.Now()
		a := send(t, t.Context(), w.Service, r)
		require.Less(t, time.Since(began), 5*time.Second)
		require.NotContains(t, []int{http.StatusInternalServerError, http.StatusServiceUnavailable}, a.StatusCode)
		if a.StatusCode == http.StatusBadRequest {
			require.Error(t, described.request(r), "described, but refused: %s", a.Body)
		}
		if a.StatusCode == http.StatusOK && method != http.MethodGet {
			require.NoError(t, described.request(r), "not described, but done")
			require.Equal(t, lockstore.Held, w.state(t, key))
			require.Equal(t, http.StatusNoContent, send(t, t.Context(), w.Service, request(cron, "DELETE", key, "", "Lock-Token", a.token())).StatusCode)
		}
		if lockstore.ValidateKey(key) == nil {
			require.Equal(t, lockstore.Free, w.state(t, key))
		}
	})
}

// request compares a request with its description: key, headers and body, and
// what the description says of the body in words.
func (d description) request(r httpapi.Request) error {
	op := d.operation(r)
	parameters := d.At("paths", "/locks/{key}", "parameters").([]any)
	if own, ok := op["parameters"].([]any); ok {
		parameters = append(parameters, own...)
	}
	for _, p := range parameters {
		parameter := d.Resolve(p.(object))
		value, ok := r.PathParameters["key"], true
		if parameter["in"] == "header" {
			value, ok = header(r, parameter["name"].(string))
		}
		if !ok && parameter["required"] == false {
			continue
		}
		if err := d.Validate(parameter["schema"], value); err != nil {
			return err
		}
	}
	if err := checkKey(r.PathParameters["key"]); err != nil {
		return err // bytes
	}
	described, ok := op["requestBody"].(object)
	if !ok {
		return nil
	}
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	if err := d.Validate(described["content"].(object)["application/json"].(object)["schema"], body); err != nil {
		return err
	}
	values, err := strictjson.Object(string(r.Body), maxBodyBytes, "ttl", "wait", "holder", "maxHolders", "coalesce", "event") // each name once
	if err != nil {
		return err
	}
	for name, most := range map[string]int{"holder": maxHolderBytes, "event": maxEventBytes} { // bytes that can be printed
		if _, err := text(values, name, most); err != nil {
			return err
		}
	}
	return nil
}
