package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
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

const setCookie = "Set-Cookie"

// MarshalJSON writes the answer. Without For, as for Prepare of package idempotency, a repeated header is in
// multiValueHeaders, and each other one in headers.
func (r Response) MarshalJSON() ([]byte, error) {
	w := httpanswer.Wire{StatusCode: r.StatusCode, Headers: map[string]string{}, IsBase64Encoded: new(false)}
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
	return w.Encode(r.Body)
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
	var a httpanswer.Answer
	if err := a.UnmarshalJSON(text); err != nil {
		return fmt.Errorf("httpapi: an answer: %w", err)
	}
	*r = response(a)
	return nil
}
