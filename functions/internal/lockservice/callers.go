package lockservice

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// Anonymous is the caller of a request without an identity: a service behind no
// authorizer, such as one on the own machine.
const Anonymous = "anonymous"

// caller is who the gateway says has sent the request: the ARN of IAM, without
// the session of an assumed role, or issuer and subject of a JWT.
func caller(r httpapi.Request) string {
	a := r.RequestContext.Authorizer
	switch {
	case a == nil:
		return Anonymous
	case a.IAM != nil && a.IAM.UserARN != "":
		arn := a.IAM.UserARN
		if strings.Contains(arn, ":assumed-role/") {
			arn = arn[:strings.LastIndexByte(arn, '/')]
		}
		return arn
	case a.JWT != nil && a.JWT.Claims["sub"] != "":
		return a.JWT.Claims["iss"] + "#" + a.JWT.Claims["sub"]
	}
	return Anonymous
}

// Callers says which keys each caller may use: those that begin with one of its
// prefixes. The entry "*" is for every caller but Anonymous, beside its own.
type Callers map[string][]string

// ParseCallers reads a JSON object such as {"*": ["shared/"]}.
func ParseCallers(text string) (Callers, error) {
	var c Callers
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf(`want a JSON object of callers with their lists of key prefixes, such as {"*": ["shared/"]}: %w`, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is something after the JSON object")
	}
	for name, prefixes := range c {
		if len(prefixes) == 0 {
			return nil, fmt.Errorf("the caller %q has no key prefix; leave the caller out to refuse it", name)
		}
	}
	if len(c) == 0 {
		return nil, errors.New(`no caller may do anything; want for example {"*": ["shared/"]}`)
	}
	return c, nil
}

func (c Callers) allow(caller, key string) bool {
	lists := [][]string{c[caller]}
	if caller != Anonymous {
		lists = append(lists, c["*"])
	}
	for _, prefixes := range lists {
		for _, p := range prefixes {
			if strings.HasPrefix(key, p) {
				return true
			}
		}
	}
	return false
}
