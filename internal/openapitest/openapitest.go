// Package openapitest compares the answers of a function with an OpenAPI document.
package openapitest

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// Object is a JSON object.
type Object = map[string]any

// Document is an OpenAPI document.
type Document struct {
	Root     Object
	compiler *jsonschema.Compiler
	schemas  map[uintptr]*jsonschema.Schema // by the object that they are in Root
}

// Parse reads a document. Clients are to pass over what they do not know, but here the
// responses in components, and the named schemas, have nothing that is not described.
func Parse(text string, closed ...string) (Document, error) {
	root, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return Document{}, err
	}
	d := Document{root.(Object), jsonschema.NewCompiler(), map[uintptr]*jsonschema.Schema{}}
	for _, name := range closed {
		d.At("components", "schemas", name).(Object)["unevaluatedProperties"] = false
	}
	for _, r := range d.At("components", "responses").(Object) {
		for _, media := range r.(Object)["content"].(Object) {
			media.(Object)["schema"].(Object)["unevaluatedProperties"] = false
		}
	}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource("openapi.json", d.Root); err != nil {
		return d, err
	}
	return d, d.compile("", d.Root)
}

// compile finds all schemas below the pointer, and what is referred to and not
// there.
func (d Document) compile(pointer string, in any) error {
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	switch in := in.(type) {
	case Object:
		if d.Resolve(in) == nil {
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

// At is what is found by these names, nil if there is nothing.
func (d Document) At(path ...string) any { return At(d.Root, path...) }

// At is what is found by these names in an object, nil if there is nothing.
func At(in any, path ...string) any {
	for _, name := range path {
		o, _ := in.(Object)
		in = o[name]
	}
	return in
}

// Resolve follows a reference. It is nil if nothing is there.
func (d Document) Resolve(o Object) Object {
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	found, _ := d.At(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(Object)
	return found
}

// Response is an operation's response with this status, nil if there is none.
func (d Document) Response(operation Object, status int) Object {
	all, _ := operation["responses"].(Object)
	found, ok := all[strconv.Itoa(status)].(Object)
	if !ok {
		return nil
	}
	return d.Resolve(found)
}

// Check tells how an answer differs from the described response, which is nil if the
// answer's status is not described: headers, media type and body.
func (d Document) Check(response Object, answer httpapi.Response) error {
	if response == nil {
		return fmt.Errorf("the status %d is not described", answer.StatusCode)
	}
	described := map[string]bool{}
	headers, _ := response["headers"].(Object)
	for name, h := range headers {
		described[name] = true
		header := d.Resolve(h.(Object))
		values, sent := answer.Header[name]
		if !sent && header["required"] != true {
			continue
		}
		if err := d.Validate(header["schema"], strings.Join(values, ", ")); err != nil {
			return fmt.Errorf("the header %s: %w", name, err)
		}
	}
	content, _ := response["content"].(Object)
	for name := range answer.Header {
		if !described[name] && !(name == "Content-Type" && content != nil) {
			return fmt.Errorf("the header %s is not described", name)
		}
	}
	if content == nil {
		if len(answer.Body) > 0 {
			return fmt.Errorf("a body is not described: %s", answer.Body)
		}
		return nil
	}
	media, ok := content[answer.Header.Get("Content-Type")].(Object)
	if !ok {
		return fmt.Errorf("the media type %q is not described", answer.Header.Get("Content-Type"))
	}
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(answer.Body))
	if err != nil {
		return err
	}
	return d.Validate(media["schema"], body)
}

// Validate compares a value with a schema of the document.
func (d Document) Validate(schema, value any) error {
	return d.schemas[reflect.ValueOf(schema).Pointer()].Validate(value)
}

// Examples compares all examples with their schemas, and returns how many there are.
func (d Document) Examples() (examples int, err error) {
	err = d.examples(d.Root, &examples)
	return examples, err
}

func (d Document) examples(in any, n *int) error {
	var below []any
	switch in := in.(type) {
	case []any:
		below = in
	case Object:
		for _, v := range in {
			below = append(below, v)
		}
		var all []any
		if e, ok := in["example"]; ok {
			all = append(all, e)
		}
		named, _ := in["examples"].(Object)
		for _, e := range named {
			all = append(all, e.(Object)["value"])
		}
		schema, ok := in["schema"].(Object)
		for _, e := range all {
			if !ok {
				return fmt.Errorf("an example has no schema: %v", e)
			}
			*n++
			if err := d.Validate(d.Resolve(schema), e); err != nil {
				return err
			}
		}
	}
	for _, v := range below {
		if err := d.examples(v, n); err != nil {
			return err
		}
	}
	return nil
}
