package httpanswer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"
)

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

// Decode reads an answer in any form. Its cookies are in Set-Cookie. What cannot be sent is an error.
func Decode(text []byte) (status int, header http.Header, body []byte, err error) {
	var w Wire
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return 0, nil, nil, err
	}
	if w.StatusCode < 200 || w.StatusCode > 999 {
		return 0, nil, nil, fmt.Errorf("statusCode: is %d; want 200 to 999", w.StatusCode)
	}
	body = []byte(w.Body)
	if w.IsBase64Encoded != nil && *w.IsBase64Encoded {
		if body, err = base64.StdEncoding.DecodeString(w.Body); err != nil {
			return 0, nil, nil, fmt.Errorf("body: %w", err)
		}
	}
	header = http.Header{}
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
	return w.StatusCode, header, body, nil
}
