package lockhttp

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/lib/strictjson"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Bounds of a request.
const (
	maxBodyBytes   = 8 << 10
	maxTTL         = 900 // seconds
	maxWait        = 20  // seconds
	maxHolderBytes = 128
	maxIdemBytes   = 255
)

// The functions here return errors for the caller to see, each a *problem.

// checkKey is stricter than the stores: one key has one path. Proxies join or
// drop segments that are empty or made of dots.
func checkKey(key string) error {
	if err := lockstore.ValidateKey(key); err != nil {
		return invalid(strings.TrimPrefix(err.Error(), "lockstore: "))
	}
	// Gateways write it for each byte that is no text, so it is not one key.
	if strings.ContainsRune(key, utf8.RuneError) {
		return invalid("Key has the character U+FFFD; it stands for bytes that are no UTF-8")
	}
	for s := range strings.SplitSeq(key, "/") {
		if s == "" || s == "." || s == ".." {
			return invalid(fmt.Sprintf("Key has the segment %q; want none that is empty or made of dots", s))
		}
	}
	return nil
}

// terms are what a caller asks for.
type terms struct {
	ttl, wait  time.Duration
	holder     string
	maxHolders int
}

// parseTerms reads the body of a request that may have the named fields; ttl is
// needed.
func parseTerms(r httpapi.Request, fields ...string) (t terms, err error) {
	if text, ok := header(r, "Content-Type"); ok {
		if mediaType, _, err := mime.ParseMediaType(text); err != nil || mediaType != "application/json" {
			return t, errMediaType
		}
	}
	if len(r.Body) > maxBodyBytes {
		return t, newProblem(http.StatusRequestEntityTooLarge, "too-large", strictjson.TooLong(maxBodyBytes).Error())
	}
	values, err := strictjson.Object(string(r.Body), maxBodyBytes, fields...)
	if err != nil {
		return t, invalid(err.Error())
	}
	if _, ok := values["ttl"]; !ok {
		return t, invalid("ttl: is missing")
	}
	ttl, err := whole(values, "ttl", "whole seconds", 1, maxTTL)
	if err != nil {
		return t, err
	}
	wait, err := whole(values, "wait", "whole seconds", 0, maxWait)
	if err != nil {
		return t, err
	}
	most, err := whole(values, "maxHolders", "a whole number", 1, lockstore.MaxHolders)
	if err != nil {
		return t, err
	}
	t.ttl, t.wait, t.maxHolders = time.Duration(ttl)*time.Second, time.Duration(wait)*time.Second, int(max(1, most))
	t.holder, err = holder(values)
	return t, err
}

// whole is 0 where the field is left out.
func whole(values map[string]json.Token, name, unit string, low, high int64) (int64, error) {
	if _, ok := values[name]; !ok {
		return 0, nil
	}
	n, err := strictjson.Whole(values, name, unit, low, high)
	if err != nil {
		return 0, invalid(err.Error())
	}
	return n, nil
}

func holder(values map[string]json.Token) (string, error) {
	if _, ok := values["holder"]; !ok {
		return "", nil
	}
	text, err := strictjson.String(values, "holder")
	switch {
	case err != nil:
		return "", invalid(err.Error())
	case len(text) < 1 || len(text) > maxHolderBytes:
		return "", invalid(fmt.Sprintf("holder: has %d bytes; want 1 to %d", len(text), maxHolderBytes))
	case strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) >= 0:
		return "", invalid("holder: has a character that cannot be printed")
	}
	return text, nil
}

// header is a header's values, as one.
func header(r httpapi.Request, name string) (value string, ok bool) {
	all := r.Header.Values(name)
	return strings.Join(all, ","), len(all) > 0
}

func parseIdempotencyKey(r httpapi.Request) (string, error) {
	text, ok := header(r, "Idempotency-Key")
	if !ok {
		return "", nil
	}
	if len(text) < 1 || len(text) > maxIdemBytes {
		return "", invalid(fmt.Sprintf("Idempotency-Key: has %d bytes; want 1 to %d", len(text), maxIdemBytes))
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return "", invalid(fmt.Sprintf("Idempotency-Key: has a byte at %d that is not printable ASCII", i))
		}
	}
	return text, nil
}
