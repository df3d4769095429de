package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Response is the answer to a request.
type Response struct {
	StatusCode int
	Header     http.Header // cookies are in Set-Cookie
	Body       []byte      // is sent as base64 if it is no UTF-8

	source source
}

// For returns the answer in the form that the source of the request wants. Wrap and Once do this themselves; a handler of
// guard.WrapUnlocked has to.
func (r Response) For(in Request) Response {
	r.source = in.source
	return r
}

// wire is an answer in JSON.
type wire struct {
	StatusCode        int                 `json:"statusCode"`
	StatusDescription string              `json:"statusDescription,omitempty"`
	Headers           map[string]string   `json:"headers,omitzero"`
	MultiValueHeaders map[string][]string `json:"multiValueHeaders,omitzero"`
	Body              string              `json:"body"`
	IsBase64Encoded   bool                `json:"isBase64Encoded"`
	Cookies           []string            `json:"cookies,omitzero"`
}

const setCookie = "Set-Cookie"

// MarshalJSON writes the answer. Without For it is the form in which Once stores it: a repeated header is in
// multiValueHeaders, and each other one in headers.
func (r Response) MarshalJSON() ([]byte, error) {
	w := wire{StatusCode: r.StatusCode, Headers: map[string]string{}, Body: string(r.Body)}
	if !utf8.Valid(r.Body) {
		w.Body, w.IsBase64Encoded = base64.StdEncoding.EncodeToString(r.Body), true
	}
	header := http.Header{}
	for name, all := range r.Header {
		for _, value := range all {
			header.Add(name, value)
		}
	}
	switch r.source {
	case format1, multi:
		w.Headers, w.MultiValueHeaders = nil, header
	case balancer:
		// A name in another case is another field, and the same header.
		for i, cookie := range header[setCookie] {
			w.Headers[inCase(setCookie, i)] = cookie
		}
		header.Del(setCookie)
	default:
		w.Cookies = header[setCookie]
		header.Del(setCookie)
	}
	if r.source == balancer || r.source == multi {
		w.StatusDescription = strings.TrimSpace(strconv.Itoa(r.StatusCode) + " " + http.StatusText(r.StatusCode))
	}
	for name, all := range header {
		switch {
		case w.Headers == nil:
		case r.source == unknown && len(all) > 1:
			if w.MultiValueHeaders == nil {
				w.MultiValueHeaders = map[string][]string{}
			}
			w.MultiValueHeaders[name] = all
		default:
			w.Headers[name] = strings.Join(all, ", ")
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(w)
	return b.Bytes(), err
}

// inCase is the name with other capitals for each n.
func inCase(name string, n int) string {
	b := []byte(name)
	for i, c := range b {
		if c != '-' {
			if n&1 == 1 {
				b[i] ^= 'a' ^ 'A'
			}
			n >>= 1
		}
	}
	return string(b)
}

// UnmarshalJSON reads an answer in any form.
func (r *Response) UnmarshalJSON(text []byte) error {
	var w wire
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return fmt.Errorf("httpapi: an answer: %w", err)
	}
	if w.StatusCode < 200 || w.StatusCode > 999 {
		return fmt.Errorf("httpapi: an answer: statusCode: is %d; want 200 to 999", w.StatusCode)
	}
	out := Response{StatusCode: w.StatusCode, Header: http.Header{}, Body: []byte(w.Body)}
	if w.IsBase64Encoded {
		var err error
		if out.Body, err = base64.StdEncoding.DecodeString(w.Body); err != nil {
			return fmt.Errorf("httpapi: an answer: body: %w", err)
		}
	}
	for name, value := range w.Headers {
		out.Header.Add(name, value)
	}
	for name, all := range w.MultiValueHeaders {
		for _, value := range all {
			out.Header.Add(name, value)
		}
	}
	for _, cookie := range w.Cookies {
		out.Header.Add(setCookie, cookie)
	}
	*r = out
	return nil
}
