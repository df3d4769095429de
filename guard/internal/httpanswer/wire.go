package httpanswer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Answer is what a client gets, and what is stored for a repeat of its request.
type Answer struct {
	Status  int
	Header  http.Header
	Body    []byte
	Trailer http.Header // is sent, and not stored
}

// repeatable is what is stored, and sent again.
func (a Answer) repeatable() Answer {
	return Answer{Status: a.Status, Header: Repeatable(a.Header), Body: a.Body}
}

// MarshalJSON makes the form of an answer in the store, and in the command of an operator who resolves a key: that of a
// response of API Gateway.
func (a Answer) MarshalJSON() ([]byte, error) {
	w := Wire{StatusCode: a.Status, MultiValueHeaders: maps.Clone(a.Header), BinaryHeaders: map[string][][]byte{}}
	for name, values := range a.Header {
		if utf8.ValidString(strings.Join(values, ",")) {
			continue
		}
		delete(w.MultiValueHeaders, name)
		for _, value := range values {
			w.BinaryHeaders[name] = append(w.BinaryHeaders[name], []byte(value))
		}
	}
	return w.Encode(a.Body)
}

// Wire is an answer in JSON: as API Gateway, a load balancer and VPC Lattice read it, and as it is stored for a repeat.
type Wire struct {
	StatusCode        int                 `json:"statusCode"`
	StatusDescription string              `json:"statusDescription,omitempty"`
	Headers           map[string]string   `json:"headers,omitzero"`
	MultiValueHeaders map[string][]string `json:"multiValueHeaders,omitzero"`
	BinaryHeaders     map[string][][]byte `json:"binaryHeaders,omitempty"` // those that are no UTF-8; only of package httpguard
	Body              string              `json:"body"`
	IsBase64Encoded   *bool               `json:"isBase64Encoded,omitempty"`
	Cookies           []string            `json:"cookies,omitzero"`
}

// Encode writes an answer with this body, in base64 if it is no UTF-8.
func (w Wire) Encode(body []byte) ([]byte, error) {
	if w.Body = string(body); !utf8.Valid(body) {
		w.Body, w.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), new(true)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(w)
	return b.Bytes(), err
}

// UnmarshalJSON reads an answer in any form. Its cookies are in Set-Cookie. What cannot be sent is an error.
func (a *Answer) UnmarshalJSON(text []byte) error {
	var w Wire
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return err
	}
	if w.StatusCode < 200 || w.StatusCode > 999 {
		return fmt.Errorf("statusCode: is %d; want 200 to 999", w.StatusCode)
	}
	body, header := []byte(w.Body), http.Header{}
	if w.IsBase64Encoded != nil && *w.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(w.Body); err != nil {
			return fmt.Errorf("body: %w", err)
		}
	}
	for name, value := range w.Headers {
		header.Add(name, value)
	}
	for name, values := range w.MultiValueHeaders { // an empty Content-Type says that there is none
		name = http.CanonicalHeaderKey(name)
		header[name] = append(header[name], values...)
	}
	for name, values := range w.BinaryHeaders {
		for _, value := range values {
			header.Add(name, string(value))
		}
	}
	for _, cookie := range w.Cookies {
		header.Add("Set-Cookie", cookie)
	}
	*a = Answer{Status: w.StatusCode, Header: header, Body: body}
	return nil
}
