package lockservice

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

// described is openapi.json.
var described = func() description {
	d, err := describe(openAPI)
	if err != nil {
		panic(err)
	}
	return d
}()

type object = map[string]any

// description looks requests and answers up in an OpenAPI document.
type description struct {
	doc      object
	compiler *jsonschema.Compiler
	schemas  map[uintptr]*jsonschema.Schema // by the object that they are in doc
}

func describe(text string) (description, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return description{}, err
	}
	d := description{doc.(object), jsonschema.NewCompiler(), map[uintptr]*jsonschema.Schema{}}
	// Clients are to pass over what they do not know, but here an answer has
	// nothing that is not described.
	for _, name := range []string{"Grant", "State", "Holder"} {
		d.at("components", "schemas", name).(object)["unevaluatedProperties"] = false
	}
	for _, r := range d.at("components", "responses").(object) {
		for _, media := range r.(object)["content"].(object) {
			media.(object)["schema"].(object)["unevaluatedProperties"] = false
		}
	}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource("openapi.json", d.doc); err != nil {
		return d, err
	}
	return d, d.compile("", d.doc)
}

// compile finds all schemas below the pointer, and what is referred to and not
// there.
func (d description) compile(pointer string, in any) error {
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	switch in := in.(type) {
	case object:
		if d.resolve(in) == nil {
			return fmt.Errorf("%s: there is no %s", pointer, in["$ref"])
		}
		for name, value := range in {
			below := pointer + "/" + escape.Replace(name)
			if name == "schema" || pointer == "/components/schemas" {
				schema, err := d.compiler.Compile("openapi.json#" + below)
				if err != nil {
					return err
				}
				d.schemas[reflect.ValueOf(value).Pointer()] = schema
			}
			if err := d.compile(below, value); err != nil {
				return err
			}
		}
	case []any:
		for i, value := range in {
			if err := d.compile(fmt.Sprint(pointer, "/", i), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// at is what is found by these names, nil if there is nothing.
func (d description) at(path ...string) any {
	var v any = d.doc
	for _, name := range path {
		v = v.(object)[name]
		if v == nil {
			return nil
		}
	}
	return v
}

// resolve follows a reference.
func (d description) resolve(o object) object {
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	found, _ := d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(object)
	return found
}

// operation is the described one, nil if there is none.
func (d description) operation(r httpapi.Request) object {
	path := "/locks/{key}"
	if _, ok := r.PathParameters["key"]; !ok {
		path = "/openapi.json"
	}
	method := r.RequestContext.HTTP.Method
	if method != strings.ToUpper(method) {
		return nil
	}
	op, _ := d.at("paths", path, strings.ToLower(method)).(object)
	return op
}

// response is the described one to a request, nil if there is none.
func (d description) response(op object, status int) object {
	if op == nil && status == http.StatusMethodNotAllowed {
		return d.at("components", "responses", "MethodNotAllowed").(object)
	}
	found, ok := op["responses"].(object)[strconv.Itoa(status)].(object)
	if !ok {
		return nil
	}
	return d.resolve(found)
}

// check tells how an answer differs from the description: status, headers, media
// type and body.
func (d description) check(r httpapi.Request, answer httpapi.Response) error {
	described := d.response(d.operation(r), answer.StatusCode)
	if described == nil {
		return fmt.Errorf("%s: the status %d is not described", r.RequestContext.HTTP.Method, answer.StatusCode)
	}
	headers := map[string]bool{}
	for name, h := range described["headers"].(object) {
		headers[name] = true
		if err := d.validate(d.resolve(h.(object))["schema"], answer.Headers[name]); err != nil {
			return fmt.Errorf("the header %s: %w", name, err)
		}
	}
	content, _ := described["content"].(object)
	for name := range answer.Headers {
		if !headers[name] && !(name == "Content-Type" && content != nil) {
			return fmt.Errorf("the header %s is not described", name)
		}
	}
	if content == nil {
		if answer.Body != "" {
			return fmt.Errorf("a body is not described: %s", answer.Body)
		}
		return nil
	}
	media, ok := content[answer.Headers["Content-Type"]].(object)
	if !ok {
		return fmt.Errorf("the media type %q is not described", answer.Headers["Content-Type"])
	}
	body, err := jsonschema.UnmarshalJSON(strings.NewReader(answer.Body))
	if err != nil {
		return err
	}
	return d.validate(media["schema"], body)
}

// validate compares a value with a schema of the document.
func (d description) validate(schema, value any) error {
	return d.schemas[reflect.ValueOf(schema).Pointer()].Validate(value)
}

// codes are those of a described response, "" when it has no problem.
func (d description) codes(response object) []string {
	problem, ok := response["content"].(object)
	if ok {
		problem, ok = problem["application/problem+json"].(object)
	}
	if !ok {
		return []string{""}
	}
	var own struct {
		AllOf []struct {
			Properties struct{ Code struct{ Enum []string } }
		}
	}
	text, err := json.Marshal(problem["schema"])
	if err == nil {
		err = json.Unmarshal(text, &own)
	}
	if err != nil {
		panic(err)
	}
	return own.AllOf[1].Properties.Code.Enum
}

// promised are the operations with their statuses and codes, such as "PUT 409
// busy".
func (d description) promised() map[string]bool {
	all := map[string]bool{"POST 405 method": true}
	for path, item := range d.at("paths").(object) {
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
				for _, code := range d.codes(d.resolve(response.(object))) {
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
		note := func(w world, name string, r httpapi.Request) {
			a := send(t, t.Context(), w.Service, r)
			code, _ := a.said["code"].(string)
			made[strings.TrimSpace(fmt.Sprint(name, " ", a.StatusCode, " ", code))] = true
		}
		for _, method := range []string{"PUT", "PATCH", "DELETE", "GET"} {
			held := newWorld(t)
			token := acquire(t, held.Service, key, thirty).token()
			ended := newWorld(t)
			require.Equal(t, http.StatusNoContent, ask(t, ended.Service, "DELETE", key, "",
				"Lock-Token", acquire(t, ended.Service, key, thirty, idem, "7").token()).StatusCode)
			for _, c := range []struct {
				w           world
				trouble     error
				as, at, say string
				header      [2]string
			}{
				{w: newWorld(t)},
				{w: held, as: web},
				{w: ended, header: [2]string{idem, "7"}},
				{w: newWorld(t), as: web, at: "payroll"},
				{w: newWorld(t), at: "a//b"},
				{w: newWorld(t), say: strings.Repeat(" ", maxBodyBytes+1)},
				{w: newWorld(t), header: [2]string{"Content-Type", "text/plain"}},
				{w: newWorld(t), trouble: lockstore.ErrCorrupt},
				{w: newWorld(t), trouble: lockstore.ErrInvalid},
				{w: newWorld(t), trouble: lockstore.ErrUnavailable},
				{w: newWorld(t), trouble: errLostReply},
			} {
				c.w.store.fail(c.trouble)
				note(c.w, method, request(cmp.Or(c.as, cron), method, cmp.Or(c.at, key), cmp.Or(c.say, thirty), "Lock-Token", token, c.header[0], c.header[1]))
			}
		}
		note(newWorld(t), "POST", request(cron, "POST", key, ""))
		r := request(cron, "GET", key, "")
		r.PathParameters = nil
		note(newWorld(t), "GET description", r)
		require.Equal(t, slices.Sorted(maps.Keys(described.promised())), slices.Sorted(maps.Keys(made)))
	})
}

// TestStatusesOfThePage compares the table in docs/http.md with the document.
func TestStatusesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/http.md")
	require.NoError(t, err)
	shown := map[string]bool{"GET description 200": true} // named in the text
	for _, row := range regexp.MustCompile("(?m)^\\| (\\d{3}) \\| (?:`([a-z-]+)`)? ?\\| ([A-Za-z, ]+) \\| \\S").FindAllStringSubmatch(string(page), -1) {
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

// TestDescriptionIsRight looks at what the document says without a service.
func TestDescriptionIsRight(t *testing.T) {
	t.Run("its examples are examples", func(t *testing.T) {
		examples := 0
		var walk func(in any)
		walk = func(in any) {
			o, ok := in.(object)
			if !ok {
				if list, ok := in.([]any); ok {
					for _, v := range list {
						walk(v)
					}
				}
				return
			}
			if schema, ok := o["schema"]; ok {
				if e, ok := o["example"]; ok {
					examples++
					require.NoError(t, described.validate(schema, e))
				}
				if all, ok := o["examples"].(object); ok {
					for name, e := range all {
						examples++
						schema := described.resolve(schema.(object))
						require.NoError(t, described.validate(schema, e.(object)["value"]), name)
					}
				}
			}
			for _, v := range o {
				walk(v)
			}
		}
		walk(described.doc)
		require.Greater(t, examples, 20)
	})
	t.Run("every parameter and code is described once", func(t *testing.T) {
		ids, codes := map[any]bool{}, map[string]bool{}
		for promise := range described.promised() {
			if fields := strings.Fields(promise); len(fields) == 3 && fields[1] != "description" {
				codes[fields[2]] = true
			}
		}
		var all []string
		for _, c := range described.at("components", "schemas", "Problem", "properties", "code", "enum").([]any) {
			all = append(all, c.(string))
		}
		require.Equal(t, slices.Sorted(maps.Keys(codes)), all)
		for _, item := range described.at("paths").(object) {
			for method, op := range item.(object) {
				op, ok := op.(object)
				if !ok {
					continue
				}
				require.NotEmpty(t, op["summary"], method)
				require.False(t, ids[op["operationId"]], method)
				ids[op["operationId"]] = true
			}
		}
	})
	t.Run("a document that says something else is found", func(t *testing.T) {
		answers := func(d description) (all error) {
			s := newWorld(t).Service
			for _, method := range []string{"PUT", "PUT", "GET", "POST"} {
				r := request(cron, method, "shared/k", `{"ttl": 30}`)
				a, err := s.Handle(t.Context(), r)
				all = errors.Join(all, err, d.check(r, a))
			}
			return all
		}
		require.NoError(t, answers(described))
		for old, changed := range map[string]string{
			`"#/components/schemas/Grant"`:         `"#/components/schemas/Grand"`,
			`"type": "integer"`:                    `"type": "whole"`,
			`"const": "no-store"`:                  `"const": "no-cache"`,
			`"remaining": {`:                       `"left": {`,
			`"application/json": {`:                `"text/json": {`,
			`"pattern": "^[A-Za-z0-9_-]{56,140}$"`: `"pattern": "^[a-z]*$"`,
			`"409": {`:                             `"410": {`,
			`"const": 409`:                         `"const": 410`,
			`"Allow": {`:                           `"Allows": {`,
			`"Retry-After": {`:                     `"Retry": {`,
		} {
			require.Contains(t, openAPI, old)
			d, err := describe(strings.ReplaceAll(openAPI, old, changed))
			if err == nil {
				err = answers(d)
			}
			require.Error(t, err, changed)
		}
	})
}
