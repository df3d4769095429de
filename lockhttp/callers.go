package lockhttp

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/guard/httpapi"
)

const (
	// Anonymous is the caller of a request without an identity: the service is
	// behind no authorizer, for example on a machine of one's own.
	Anonymous = "anonymous"
	// everybody is the entry for all callers but Anonymous.
	everybody = "*"
)

// caller is who has sent the request, as the gateway has authenticated it.
func caller(r httpapi.Request) string { return cmp.Or(r.Caller, Anonymous) }

// ofSession are the ARNs of a role's sessions. httpapi.Request.Caller has no session.
var ofSession = regexp.MustCompile("^[^/]*:assumed-role/[^/]*/")

// callers says which keys each caller may use: those that begin with one of its
// prefixes, or with one of everybody's.
type callers map[string][]string

// parseCallers reads a JSON object such as {"*": ["shared/"]}. It refuses what
// would silently allow too much or nothing.
func parseCallers(text string) (callers, error) {
	wrong := errors.New(`want a JSON object of callers with their lists of key prefixes, such as {"*": ["shared/"]}`)
	d := json.NewDecoder(strings.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, wrong
	}
	all := callers{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, wrong
		}
		name := t.(string)     // the decoder takes no other name
		var prefixes []*string // a null would else be "", which allows every key
		if d.Decode(&prefixes) != nil {
			return nil, fmt.Errorf("the caller %q: want a list of key prefixes", name)
		}
		switch _, twice := all[name]; {
		case twice:
			return nil, fmt.Errorf("the caller %q stands twice", name)
		case len(prefixes) == 0:
			return nil, fmt.Errorf("the caller %q has no key prefix; leave it out to refuse it", name)
		case strings.Contains(name, ":role/"), ofSession.MatchString(name):
			return nil, fmt.Errorf("the caller %q: want a role as arn:aws:sts::ACCOUNT:assumed-role/NAME, without path and session", name)
		}
		for _, p := range prefixes {
			if p == nil {
				return nil, fmt.Errorf("the caller %q: null is no key prefix", name)
			}
			if err := checkKey(*p + "x"); err != nil {
				return nil, fmt.Errorf("the caller %q: no key begins with %q: %w", name, *p, err)
			}
			all[name] = append(all[name], *p)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, wrong
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is something after the JSON object")
	}
	if len(all) == 0 {
		return nil, errors.New(`nobody could do anything; want for example {"*": ["shared/"]}`)
	}
	return all, nil
}

func (c callers) allow(caller, key string) bool {
	return begins(key, c[caller]) || caller != Anonymous && begins(key, c[everybody])
}

func begins(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}
