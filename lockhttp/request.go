package lockhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"regexp"
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
)

// checkKey is stricter than the stores: one key has one path. Proxies join or
// drop segments that are empty or made of dots. Its error is a *problem.
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
func parseTerms(r httpapi.Request, fields ...string) (terms, error) {
	if text, ok := header(r, "Content-Type"); ok {
		if mediaType, _, err := mime.ParseMediaType(text); err != nil || mediaType != "application/json" {
			return terms{}, errMediaType
		}
	}
	if len(r.Body) > maxBodyBytes {
		return terms{}, newProblem(http.StatusRequestEntityTooLarge, "too-large", strictjson.TooLong(maxBodyBytes).Error())
	}
	t, err := readTerms(string(r.Body), fields)
	if err != nil {
		return terms{}, invalid(err.Error())
	}
	return t, nil
}

func readTerms(body string, fields []string) (t terms, err error) {
	values, err := strictjson.Object(body, maxBodyBytes, fields...)
	if err != nil {
		return t, err
	}
	ttl, wait, most := int64(0), int64(0), int64(1)
	for _, f := range [...]struct {
		value      *int64
		name, unit string
		low, high  int64
	}{
		{&ttl, "ttl", "whole seconds", 1, maxTTL},
		{&wait, "wait", "whole seconds", 0, maxWait},
		{&most, "maxHolders", "a whole number", 1, lockstore.MaxHolders},
	} {
		if _, ok := values[f.name]; !ok && f.name != "ttl" {
			continue
		}
		if *f.value, err = strictjson.Whole(values, f.name, f.unit, f.low, f.high); err != nil {
			return t, err
		}
	}
	t = terms{ttl: time.Duration(ttl) * time.Second, wait: time.Duration(wait) * time.Second, maxHolders: int(most)}
	t.holder, err = holder(values)
	return t, err
}

func holder(values map[string]json.Token) (string, error) {
	if _, ok := values["holder"]; !ok {
		return "", nil
	}
	text, err := strictjson.String(values, "holder")
	switch {
	case err != nil:
		return "", err
	case len(text) < 1 || len(text) > maxHolderBytes:
		return "", fmt.Errorf("holder: has %d bytes; want 1 to %d", len(text), maxHolderBytes)
	case strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) >= 0:
		return "", errors.New("holder: has a character that cannot be printed")
	}
	return text, nil
}

// header is a header's values, as one.
func header(r httpapi.Request, name string) (value string, ok bool) {
	all := r.Header.Values(name)
	return strings.Join(all, ","), len(all) > 0
}

// idempotencyKey is what the header Idempotency-Key may be.
var idempotencyKey = regexp.MustCompile("^[ -~]{1,255}$")

func parseIdempotencyKey(r httpapi.Request) (string, error) {
	text, ok := header(r, "Idempotency-Key")
	if ok && !idempotencyKey.MatchString(text) {
		return "", invalid("Idempotency-Key: want 1 to 255 bytes of printable ASCII")
	}
	return text, nil
}
