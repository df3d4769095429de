// Package storeurl reads what stands in the URL of a store. Its errors match lockstore.ErrInvalid. They never show a part of the URL that may
// be secret.
package storeurl

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Parts says what a store uses of its URL besides the scheme, see [Params].
type Parts struct {
	Want                   string // the whole, for errors, such as "redis://USER:PASSWORD@HOST:PORT?prefix=TEXT"
	User, Host, Port, Path bool
	Params                 []string // the names of the parameters
	OtherParams            bool     // other parameters are for somebody else, such as a driver, and are not in the result
}

// Params returns the URL's parameters. It refuses what the store does not use, so that no typing mistake goes
// unseen: each part of the URL that uses does not name, a parameter that is unknown, is empty or stands
// twice, a host without a name, a port that is none. Its error matches ErrInvalid. It names the part
// and shows nothing of the URL but the scheme and a known parameter's name.
func Params(u *url.URL, uses Parts) (map[string]string, error) {
	if u == nil {
		return nil, lockstore.Invalidf("lockstore: the store's URL is nil; want %s", uses.Want)
	}
	u, err := lockstore.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) error {
		return lockstore.Invalidf("lockstore: the %s URL %s; want %s", u.Scheme, fmt.Sprintf(format, args...), uses.Want)
	}
	password, _ := u.User.Password()
	switch {
	case u.User != nil && !uses.User:
		return nil, refuse("has a user or a password")
	case u.User != nil && u.User.Username()+password == "":
		return nil, refuse("has an @ without a user and a password")
	case u.Host != "" && !uses.Host:
		return nil, refuse("has a host")
	case strings.Trim(u.Path, "/") != "" && !uses.Path:
		return nil, refuse("has a path")
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		name, port := host, ""
		colon := strings.LastIndex(host, ":")
		hasPort := colon > strings.LastIndex(host, "]")
		if hasPort {
			name, port = host[:colon], host[colon+1:]
		}
		n, err := strconv.ParseUint(port, 10, 16)
		switch {
		case u.Host == "": // a store that needs one says so
		case name == "" || strings.Contains(name, ":") && !strings.HasPrefix(name, "["):
			return nil, refuse("has a host without a name, or with a : and without [ ]")
		case hasPort && !uses.Port:
			return nil, refuse("has a port")
		case hasPort && (err != nil || n == 0):
			return nil, refuse("has a port that is not 1 to 65535")
		}
	}
	params := map[string]string{}
	if u.RawQuery == "" && !u.ForceQuery {
		return params, nil
	}
	seen := map[string]bool{}
	for i, text := range strings.Split(u.RawQuery, "&") {
		name, value, _ := strings.Cut(text, "=")
		name, _ = url.QueryUnescape(name) // lockstore.ParseURL has seen that it can be read
		value, _ = url.QueryUnescape(value)
		known, label := slices.Contains(uses.Params, name), fmt.Sprintf("number %d", i+1)
		if known {
			label = name // another name may be the rest of a secret with a &
		}
		switch {
		case strings.ContainsAny(text, "+;"): // a + is a space, or it is none
			return nil, refuse("has a + or a ; in its parameter %s; write + as %%2B, ; as %%3B and a space as %%20", label)
		case !known && (!uses.OtherParams || name == ""):
			return nil, refuse("has the unknown parameter %s (write & in a value as %%26); known: %s", label, cmp.Or(strings.Join(uses.Params, ", "), "none"))
		case known && value == "":
			return nil, refuse("has the parameter %s without a value", label)
		case seen[name]:
			return nil, refuse("has the parameter %s twice", label)
		case known:
			params[name] = value
		}
		seen[name] = true
	}
	return params, nil
}

// Endpoint is lockstore.ParseURL for the address of a service over HTTP, which stands in a parameter or in a variable: a
// scheme, a host and perhaps a port.
func Endpoint(rawURL string) (*url.URL, error) {
	const want = "http://HOST:PORT or https://HOST:PORT"
	u, err := lockstore.ParseURL(rawURL)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, lockstore.Invalidf("lockstore: the URL has another scheme or no host; want %s", want)
	}
	_, err = Params(u, Parts{Want: want, Host: true, Port: true})
	return u, err
}

// IsLocalDynamoDB reports whether the URL of a store names a DynamoDB on this machine.
func IsLocalDynamoDB(u *url.URL) bool {
	endpoint, err := Endpoint(u.Query().Get("endpoint"))
	return err == nil && u.Scheme == "dynamodb" && IsThisMachine(endpoint.Hostname())
}

// IsThisMachine reports whether a host is the machine of this process or of its container, to which a store
// needs no TLS. It compares the name and resolves nothing.
func IsThisMachine(host string) bool {
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") || host == "host.docker.internal" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
