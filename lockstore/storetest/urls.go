package storetest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/lambdalock/lambdalock/lockstore"
)

// URLs checks that an opener takes the URL good, and refuses each URL that differs from good in a part that the
// store does not use or that would be read as another part. No error may show what may be a secret. good has
// a parameter if the store has any, and a host without a port. uses are those of "user", "port" and "path" that
// the store's URL may have, and "others" if others than the store read some of its parameters. Opening sends nothing.
func URLs(t *testing.T, opener lockstore.SchemeOpener, getenv func(string) string, good string, uses ...string) {
	t.Helper()
	const secret = "s3cr3t"
	scheme, rest, _ := strings.Cut(good, "://")
	rest = rest[strings.Index(rest, "@")+1:]
	place, param, _ := strings.Cut(rest, "?")
	host, path, hasPath := strings.Cut(place, "/")
	name, _, _ := strings.Cut(param, "=")
	if hasPath {
		path = "/" + path
	}
	question := func(param string) string { return scheme + "://" + place + "?" + param }
	behind := func(user string) string { return scheme + "://" + user + "@" + rest }
	on := func(host string) string { return scheme + "://" + host + path + "?" + param }
	says := map[string]string{
		behind("app:1#" + secret): "%23", behind("app:1?" + secret): "%3F", behind("app:1/" + secret): "%2F", behind("app:1@" + secret): "%40",
		behind("app:1?" + name + "=" + secret): "%3F", behind("app:1%" + secret): "%25", behind("app:1 " + secret): "%20", behind("app:1\n" + secret): "a control character",
		behind("app:1%0A" + secret): "a control character", behind(""): "", behind(":"): "",
		good + "#" + secret: "%23", good + "#": "%23", good + "\n": "a control character", good + " ": "%20",
		scheme + ":" + secret: "SCHEME://", secret + "@" + rest: "SCHEME://", "//" + rest: "SCHEME://",
		on(":1"): "host", on("a:b:1"): "host",
		question(param + "&"): "unknown parameter number", question("=" + secret): "unknown parameter number 1", question(""): "unknown parameter number 1",
	}
	if name != "" {
		says[question(name+"=")] = "parameter " + name + " without a value"
		says[question(name)] = "parameter " + name + " without a value"
		says[question(param+"&"+param)] = "parameter " + name + " twice"
		says[question(name+"=1+"+secret)] = "%2B"
		says[question(name+"=1;"+secret+"=2")] = "%3B"
	}
	if !slices.Contains(uses, "others") {
		says[question(param+"&"+secret)] = "unknown parameter number"
		says[question(strings.ToUpper(name)+"=1")] = "unknown parameter number 1"
	}
	if !slices.Contains(uses, "user") {
		says[behind(secret)], says[behind("app:"+secret)] = "has a user or a password", "has a user or a password"
	}
	if !slices.Contains(uses, "path") {
		says[scheme+"://"+host+"/"+secret+"?"+param] = "has a path"
	}
	if host == "" {
		says[scheme+"://"+secret] = "has a host"
	} else {
		for _, port := range []string{":" + secret, ":", ":0", ":65536"} {
			says[on(host+port)] = "port"
		}
		says[good+"@"+secret] = "%40"
		if !slices.Contains(uses, "port") {
			says[on(host+":1")] = "has a port"
		}
	}
	check := func(raw string) error {
		store, err := lockstore.Open(t.Context(), raw, getenv, opener)
		if err == nil {
			return store.Close()
		}
		if !errors.Is(err, lockstore.ErrInvalid) {
			t.Errorf("storetest: %q: the error does not match ErrInvalid: %v", raw, err)
		}
		if strings.Contains(strings.ToLower(err.Error()), secret) {
			t.Errorf("storetest: %q: the error shows what may be a secret: %v", raw, err)
		}
		return err
	}
	if err := check(good); err != nil {
		t.Errorf("storetest: %q: %v", good, err)
	}
	for raw, want := range says {
		if err := check(raw); err == nil {
			t.Errorf("storetest: %q was opened; want an error", raw)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("storetest: %q: the error is %q; want %q in it", raw, err, want)
		}
	}
}
