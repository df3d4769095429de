package lockhttp

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/openapitest"
	"github.com/lambdalock/lambdalock/lockstore"
)

// described is openapi.json.
var described = func() description {
	d, err := openapitest.Parse(openAPI, "Grant", "State", "Seated", "Holder")
	if err != nil {
		panic(err)
	}
	return description{d}
}()

type object = openapitest.Object

// description looks requests and answers up in the service's document.
type description struct{ openapitest.Document }

// operation is the described one, nil if there is none.
func (d description) operation(r httpapi.Request) object {
	path := r.URL.Path
	if _, ok := lockKey(r); ok {
		path = "/locks/{key}"
	} else if isDescription(r) {
		path = "/openapi.json"
	}
	method := r.Method
	if method != strings.ToUpper(method) {
		return nil
	}
	op, _ := d.At("paths", path, strings.ToLower(method)).(object)
	return op
}

// check tells how an answer differs from the description.
func (d description) check(r httpapi.Request, answer httpapi.Response) error {
	op := d.operation(r)
	response := d.Response(op, answer.StatusCode)
	if op == nil && answer.StatusCode == http.StatusMethodNotAllowed {
		response = d.At("components", "responses", "MethodNotAllowed").(object)
	}
	if _, ok := lockKey(r); !ok && !isDescription(r) {
		response = d.At("components", "responses", "NoPath").(object)
	}
	if err := d.Check(response, answer); err != nil {
		return fmt.Errorf("%s: %w", r.Method, err)
	}
	return nil
}

// codes are those of a described response, "" when it has no problem.
func (d description) codes(response object) (all []string) {
	own, ok := openapitest.At(response, "content", "application/problem+json", "schema", "allOf").([]any)
	if !ok {
		return []string{""}
	}
	for _, code := range openapitest.At(own[1], "properties", "code", "enum").([]any) {
		all = append(all, code.(string))
	}
	return all
}

// promised are the operations with their statuses and codes, such as "PUT 409
// busy".
func (d description) promised() map[string]bool {
	all := map[string]bool{"POST 405 method": true}
	for path, item := range d.At("paths").(object) {
		for method, op := range item.(object) {
			op, ok := op.(object)
			if !ok {
				continue
			}
			name := strings.ToUpper(method)
			if path == "/openapi.json" {
				name += " description"
			}
			for status, response := range op["responses"].(object) {
				for _, code := range d.codes(d.Resolve(response.(object))) {
					all[strings.TrimSpace(name+" "+status+" "+code)] = true
				}
			}
		}
	}
	return all
}

// TestDescription makes every answer that the document promises. That there is no
// other, send checks in all tests of this package.
func TestDescription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := map[string]bool{}
		note := func(w *world, name string, r httpapi.Request) {
			a := send(t, t.Context(), w.Service, r)
			code, _ := a.said["code"].(string)
			made[strings.TrimSpace(fmt.Sprint(name, " ", a.StatusCode, " ", code))] = true
		}
		for _, method := range []string{"PUT", "PATCH", "DELETE", "GET"} {
			held := newWorld(t)
			token := acquire(t, held.Service, key, thirty).token()
			ended := newWorld(t)
			doubt := newWorld(t)
			doubt.Service = newService(t, lockstore.New("in doubt", inState{Status: driver.Status{State: driver.InDoubt, Holder: "someone"}}))
			covers := newWorld(t)
			acquire(t, covers.Service, key, thirty)
			_, err := covers.plain.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "waits", TTL: time.Minute, JoinQueue: true, Work: "index", Event: "1"})
			require.ErrorIs(t, err, lockstore.ErrRefused)
			require.Equal(t, http.StatusNoContent, ask(t, ended.Service, "DELETE", key, "",
				"Lock-Token", acquire(t, ended.Service, key, thirty, idem, "7").token()).StatusCode)
			for _, c := range []struct {
				w           *world
				trouble     error
				as, at, say string
				header      [2]string
			}{
				{w: newWorld(t)},
				{w: held, as: web},
				{w: ended, header: [2]string{idem, "7"}},
				{w: doubt},
				{w: covers, say: `{"ttl": 30, "wait": 20, "coalesce": "index", "event": "2"}`},
				{w: newWorld(t), as: web, at: "payroll"},
				{w: newWorld(t), at: "a//b"},
				{w: newWorld(t), say: strings.Repeat(" ", maxBodyBytes+1)},
				{w: newWorld(t), header: [2]string{"Content-Type", "text/plain"}},
				{w: newWorld(t), trouble: lockstore.ErrCorrupt},
				{w: newWorld(t), trouble: lockstore.ErrInvalid},
				{w: newWorld(t), trouble: lockstore.ErrUnavailable},
				{w: newWorld(t), trouble: errLostReply},
			} {
				c.w.fail(c.trouble)
				note(c.w, method, request(cmp.Or(c.as, cron), method, cmp.Or(c.at, key), cmp.Or(c.say, thirty), "Lock-Token", token, c.header[0], c.header[1]))
			}
		}
		note(newWorld(t), "POST", request(cron, "POST", key, ""))
		r := request(cron, "GET", key, "")
		r.PathParameters, r.URL.Path = nil, "/openapi.json"
		note(newWorld(t), "GET description", r)
		require.Equal(t, slices.Sorted(maps.Keys(described.promised())), slices.Sorted(maps.Keys(made)))
	})
}

// TestStatusesOfThePage compares the table in docs/http.md with the document.
func TestStatusesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/http.md")
	require.NoError(t, err)
	shown := map[string]bool{"GET description 200": true} // named in the text
	for _, row := range regexp.MustCompile("(?m)^\\| (\\d{3}) \\| (?:`([a-z-]+)`)? ?\\| ([A-Za-z, ]+) \\| \\S").FindAllStringSubmatch(string(page), -1) {
		if row[3] == "all" { // of a path that has no methods
			require.Equal(t, "404 "+errPath.code, row[1]+" "+row[2])
			continue
		}
		for method := range strings.SplitSeq(strings.Replace(row[3], "other", "POST", 1), ", ") {
			shown[strings.TrimSpace(method+" "+row[1]+" "+row[2])] = true
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(described.promised())), slices.Sorted(maps.Keys(shown)))
	for name, bound := range map[string]string{
		"ttl":    fmt.Sprintf("1 to %d seconds", maxTTL),
		"wait":   fmt.Sprintf("0 to %d seconds", maxWait),
		"holder": fmt.Sprintf("at most %d bytes", maxHolderBytes),
	} {
		require.Regexp(t, "\n\\| `"+name+"` \\|.*"+bound, string(page))
	}
}

func TestDescriptionIsRight(t *testing.T) {
	examples, err := described.Examples()
	require.NoError(t, err)
	require.Greater(t, examples, 20)
}
