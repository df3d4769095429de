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
	maxEventBytes  = 255
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
	work       string // "" does not coalesce
	event      string
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
	// The first field that is wrong is the error.
	whole := func(name, unit string, low, high, without int64) (n int64) {
		if _, ok := values[name]; !ok && name != "ttl" {
			return without
		}
		if err == nil {
			n, err = strictjson.Whole(values, name, unit, low, high)
		}
		return n
	}
	printed := func(name string, most int) (s string) {
		if err == nil {
			s, err = text(values, name, most)
		}
		return s
	}
	t = terms{
		ttl:        time.Duration(whole("ttl", "whole seconds", 1, maxTTL, 0)) * time.Second,
		wait:       time.Duration(whole("wait", "whole seconds", 0, maxWait, 0)) * time.Second,
		maxHolders: int(whole("maxHolders", "a whole number", 1, lockstore.MaxHolders, 1)),
		holder:     printed("holder", maxHolderBytes),
		work:       printed("coalesce", lockstore.MaxWorkBytes),
		event:      printed("event", maxEventBytes),
	}
	switch {
	case err != nil:
		return t, err
	case (t.work == "") != (t.event == ""):
		return t, errors.New("coalesce: only one of coalesce and event is given; want both or none")
	case t.work != "" && lockstore.ValidateWork(t.work) != nil:
		return t, fmt.Errorf("coalesce: is %q; want printable ASCII without spaces", t.work)
	case t.work != "" && t.wait == 0:
		return t, errors.New("coalesce: is given, and wait is 0; want a wait, because only who waits is covered")
	}
	return t, nil
}

// text is a field that may be left out.
func text(values map[string]json.Token, name string, most int) (string, error) {
	if _, ok := values[name]; !ok {
		return "", nil
	}
	text, err := strictjson.String(values, name)
	switch {
	case err != nil:
		return "", err
	case len(text) < 1 || len(text) > most:
		return "", fmt.Errorf("%s: has %d bytes; want 1 to %d", name, len(text), most)
	case strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) >= 0:
		return "", fmt.Errorf("%s: has a character that cannot be printed", name)
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
