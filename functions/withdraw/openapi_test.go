package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/openapitest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

type object = openapitest.Object

// description looks requests and answers up in openapi.json.
type description struct{ openapitest.Document }

var described = func() description {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		panic(err)
	}
	d, err := openapitest.Parse(string(text))
	if err != nil {
		panic(err)
	}
	return description{d}
}()

func (d description) operation() object {
	return d.At("paths", "/accounts/{id}/withdrawals", "post").(object)
}

// check tells how an answer differs from the description.
func (d description) check(answer httpapi.Response) error {
	return d.Check(d.Response(d.operation(), answer.StatusCode), answer)
}

// request tells how a request differs from the description.
func (d description) request(r httpapi.Request) error {
	op := d.operation()
	for _, p := range op["parameters"].([]any) {
		parameter := d.Resolve(p.(object))
		value, sent := r.PathParameters["id"], true
		if parameter["in"] == "header" {
			name := parameter["name"].(string)
			value, sent = r.Header.Get(name), r.Header[name] != nil
		}
		if !sent && parameter["required"] == false {
			continue
		}
		if err := d.Validate(parameter["schema"], value); err != nil {
			return err
		}
	}
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	return d.Validate(op["requestBody"].(object)["content"].(object)["application/json"].(object)["schema"], body)
}

// promised are the statuses, and those of a replay: "422" and "422 replayed".
func (d description) promised() (all []string) {
	for status, response := range d.operation()["responses"].(object) {
		all = append(all, status)
		headers, _ := d.Resolve(response.(object))["headers"].(object)
		if headers["Idempotent-Replayed"] != nil {
			all = append(all, status+" replayed")
		}
	}
	return all
}

// TestDescription makes every answer that the document promises. That there is no other,
// send checks in all tests of this package.
func TestDescription(t *testing.T) {
	made := map[string]bool{}
	note := func(answer httpapi.Response) {
		name := fmt.Sprint(answer.StatusCode)
		if answer.Header.Get("Idempotent-Replayed") != "" {
			name += " replayed"
		}
		made[name] = true
	}
	a := newAPI(t)
	for account, body := range map[string]string{"7": five, "8": five, "9": `{"id": "w-1", "amount": 100001}`} {
		for range 2 {
			note(a.send(keyedRequest("k-"+account, account, body)))
		}
	}
	note(a.send(keyedRequest("k-7", "7", "{}")))
	note(a.send(keyedRequest("a,b", "7", five)))
	require.NoError(t, a.Guard.Do(t.Context(), "account/7", func(context.Context, guard.Lock) error {
		note(a.send(keyedRequest("", "7", five)))
		return nil
	}))
	synctest.Test(t, func(t *testing.T) {
		for _, trouble := range []error{lockstore.ErrUnavailable, lockstore.ErrCorrupt} {
			store := storetest.NewFaulty(memstore.New(nil), func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: trouble} })
			g, err := guard.New(store.Store, guard.Options{})
			require.NoError(t, err)
			broken := &api{t: t, serve: serve(g, key, handle(nil)).Handle} // nothing asks the ledger
			for _, idempotencyKey := range []string{"", "k-1"} {
				note(broken.send(keyedRequest(idempotencyKey, "7", five)))
			}
		}
	})
	require.ElementsMatch(t, described.promised(), slices.Collect(maps.Keys(made)))
}

// TestRequestsAreDescribed: what the document describes is not refused with 400, and what
// it does not describe is.
func TestRequestsAreDescribed(t *testing.T) {
	a := newAPI(t)
	body := func(id, amount string) string { return `{"id": "` + id + `", "amount": ` + amount + `}` }
	requests := map[string]httpapi.Request{}
	for name, key := range map[string]string{
		"of 255": strings.Repeat("k", 255), "of 256": strings.Repeat("k", 256), "in quotes": `"a, b; c"`, "escaped": `"\"\\"`, "wrongly escaped": `"\a"`,
		"255 in quotes": `"` + strings.Repeat(`\\`, 255) + `"`, "256 in quotes": `"` + strings.Repeat(`\\`, 256) + `"`, "empty in quotes": `""`,
		"two": "a,b", "two with a space": "a b", "with a parameter": "a;b", "not closed": `"a`, "not ASCII": "ä", "a quote inside": `a"b`,
		"all signs": "!#$%&'()*+-./0189:<=>?@AZ[\\]^_`az{|}~",
	} {
		requests["key "+name] = keyedRequest(key, "7", five)
	}
	for name, text := range map[string]string{
		"id of 64": body(strings.Repeat("x", 64), "1"), "id of 65": body(strings.Repeat("x", 65), "1"), "id of 0": body("", "1"),
		"the largest amount": body("w-2", "100000000000"), "a larger one": body("w-2", "100000000001"), "none": body("w-2", "0"), "a part": body("w-2", "0.5"),
		"a number for id": `{"id": 1, "amount": 1}`, "no id": `{"amount": 1}`, "more": `{"id": "w-2", "amount": 1, "x": 1}`, "no object": `[]`, "no JSON": `{`,
	} {
		requests["body "+name] = keyedRequest("", "7", text)
	}
	for _, account := range []string{"A-z_9", "", "a/b", strings.Repeat("a", 64), strings.Repeat("a", 65)} {
		requests["account "+account] = keyedRequest("", account, five)
	}
	refused := 0
	for name, r := range requests {
		answer := a.send(r)
		if answer.StatusCode == 400 {
			refused++
			assert.Error(t, described.request(r), name)
		} else {
			assert.NoError(t, described.request(r), "%s: %s", name, answer.Body)
		}
	}
	assert.True(t, refused > 15 && refused < len(requests)-8, "%d of %d are refused", refused, len(requests))
}

// TestEventsAreDescribed compares the events and their answers with the document.
func TestEventsAreDescribed(t *testing.T) {
	fixtures, err := eventfiles.Read("../../events", "withdraw")
	require.NoError(t, err)
	for _, f := range fixtures {
		var r httpapi.Request
		var answer httpapi.Response
		require.NoError(t, json.Unmarshal(f.Event, &r), f.Name)
		require.NoError(t, json.Unmarshal(f.Want, &answer), f.Name)
		assert.NoError(t, described.check(answer), f.Name)
		assert.Equal(t, answer.StatusCode == 400, described.request(r) != nil, f.Name)
	}
}

func TestDescriptionIsRight(t *testing.T) {
	examples, err := described.Examples()
	require.NoError(t, err)
	require.Greater(t, examples, 10)
}
