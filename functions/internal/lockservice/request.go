package lockservice

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/functions/internal/strictjson"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Bounds of a request.
const (
	MaxBodyBytes   = 8 << 10
	maxTTL         = 900 // seconds
	maxWait        = 20
	maxHolderBytes = 128
	maxIdemBytes   = 255
)

// terms are what a caller asks for.
type terms struct {
	ttl, wait time.Duration
	holder    string
}

// parseKey checks a key beyond what every store checks: one key has one path.
// Proxies join or drop segments that are empty or made of dots.
func parseKey(key string) error {
	if err := lockstore.ValidateKey(key); err != nil {
		return err
	}
	for s := range strings.SplitSeq(key, "/") {
		if s == "" || s == "." || s == ".." {
			return fmt.Errorf("key: has the segment %q; want none that is empty or made of dots", s)
		}
	}
	return nil
}

// parseTerms reads the body of a request that may have the named fields; ttl is
// needed.
func parseTerms(r httpapi.Request, fields ...string) (terms, error) {
	var t terms
	body, err := requestBody(r)
	if err != nil {
		return t, err
	}
	values, err := strictjson.Object(body, MaxBodyBytes, fields...)
	if err != nil {
		return t, err
	}
	if _, ok := values["ttl"]; !ok {
		return t, errors.New("ttl: is missing")
	}
	if t.ttl, err = wholeSeconds(values, "ttl", 1, maxTTL); err != nil {
		return t, err
	}
	if t.wait, err = wholeSeconds(values, "wait", 0, maxWait); err != nil {
		return t, err
	}
	if v, ok := values["holder"]; ok {
		if t.holder, ok = v.(string); !ok {
			return t, errors.New("holder: want a string")
		}
		if len(t.holder) < 1 || len(t.holder) > maxHolderBytes {
			return t, fmt.Errorf("holder: has %d bytes; want 1 to %d", len(t.holder), maxHolderBytes)
		}
		if strings.IndexFunc(t.holder, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) >= 0 {
			return t, errors.New("holder: has a character that cannot be printed")
		}
	}
	return t, nil
}

func wholeSeconds(values map[string]json.Token, name string, low, high int64) (time.Duration, error) {
	v, ok := values[name]
	if !ok {
		return 0, nil
	}
	number, ok := v.(json.Number)
	if !ok {
		return 0, fmt.Errorf("%s: want a number", name)
	}
	n, err := number.Int64()
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s: is %s; want whole seconds, %d to %d", name, strictjson.Shown(number.String()), low, high)
	}
	return time.Duration(n) * time.Second, nil
}

func requestBody(r httpapi.Request) (string, error) {
	if len(r.Body) > base64.StdEncoding.EncodedLen(MaxBodyBytes) {
		return "", errTooLong
	}
	body := r.Body
	if r.IsBase64Encoded {
		b, err := base64.StdEncoding.DecodeString(r.Body)
		if err != nil {
			return "", errors.New("body: is not valid base64")
		}
		body = string(b)
	}
	if len(body) > MaxBodyBytes {
		return "", errTooLong
	}
	return body, nil
}

var errTooLong = strictjson.TooLong(MaxBodyBytes)

// header finds a header, whatever way its name is spelt: HTTP APIs write small
// letters, other gateways do not.
func header(r httpapi.Request, name string) (string, bool) {
	for k, v := range r.Headers {
		if strings.EqualFold(k, name) {
			return v, true
		}
	}
	return "", false
}

func parseIdempotencyKey(r httpapi.Request) (string, error) {
	text, ok := header(r, "Idempotency-Key")
	if !ok {
		return "", nil
	}
	if len(text) < 1 || len(text) > maxIdemBytes {
		return "", fmt.Errorf("Idempotency-Key: has %d bytes; want 1 to %d", len(text), maxIdemBytes)
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return "", fmt.Errorf("Idempotency-Key: has a byte at %d that is not printable ASCII", i)
		}
	}
	return text, nil
}
