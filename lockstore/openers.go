package lockstore

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Config is what a store is opened from. A store reads its settings from the
// URL and, where its SDK's conventions ask for it, from the environment through
// Getenv. It reads no setting from the environment itself. What an HTTP client or a
// vendor's SDK reads there, such as HTTPS_PROXY, comes from the process.
type Config struct {
	URL    *url.URL
	Getenv func(string) string
}

// Format shows the scheme and the host only, for every verb, so that a Config in a
// log line shows no secret.
func (c Config) Format(f fmt.State, _ rune) {
	if c.URL == nil {
		_, _ = io.WriteString(f, "{no URL}")
		return
	}
	_, _ = fmt.Fprintf(f, "{%s://%s}", c.URL.Scheme, c.URL.Host)
}

// SchemeOpener opens the stores of some URL schemes. A store's package has one in its
// variable Opener. A program links the stores whose openers its main names.
type SchemeOpener struct {
	Schemes []string // in lower case, such as "redis"
	Open    func(context.Context, Config) (*Store, error)
}

// Open opens the store that rawURL names with the opener that has the URL's
// scheme. Its errors never show the URL's user part, path or parameter values,
// which may be secret. An unknown scheme's error lists the schemes that are
// linked. A scheme that two openers have is an error, and so is an opener without
// a scheme or without a func.
func Open(ctx context.Context, rawURL string, getenv func(string) string, openers ...SchemeOpener) (*Store, error) {
	open, err := byScheme(openers)
	if err != nil {
		return nil, err
	}
	linked := strings.Join(slices.Sorted(maps.Keys(open)), ", ")
	u, err := ParseURL(rawURL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; linked here: %s", err, linked)
	case open[u.Scheme] == nil:
		return nil, Invalidf("lockstore: no store for the scheme %.40q; linked here: %s", u.Scheme, linked)
	case getenv == nil:
		return nil, Invalidf("lockstore: Getenv is nil; want a function that reads a variable")
	}
	return open[u.Scheme](ctx, Config{URL: u, Getenv: getenv})
}

func byScheme(openers []SchemeOpener) (map[string]func(context.Context, Config) (*Store, error), error) {
	if len(openers) == 0 {
		return nil, Invalidf("lockstore: there is no opener; want one for each store, such as dynamostore.Opener")
	}
	open := map[string]func(context.Context, Config) (*Store, error){}
	for i, o := range openers {
		if len(o.Schemes) == 0 || o.Open == nil {
			return nil, Invalidf("lockstore: opener number %d has no scheme or no func; want both", i+1)
		}
		for _, scheme := range o.Schemes {
			if open[scheme] != nil {
				return nil, Invalidf("lockstore: two openers have the scheme %.40q; want each scheme once", scheme)
			}
			open[scheme] = o.Open
		}
	}
	return open, nil
}

// special says how to write what ends a part of a URL.
const special = "write # as %23, / as %2F, ? as %3F, @ as %40, % as %25 and a space as %20 in a user, a password or a value"

// ParseURL is url.Parse for URLs that may hold a secret, of stores and of other resources: its error, which
// matches ErrInvalid, names the part that is wrong and shows none. It refuses what url.Parse would drop or
// take for another part: a #, an @ that does not end a user and a password, a space, a control
// character. It refuses a text such as user:password, too, because its "scheme" may be a secret.
func ParseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	plain, badEscape := url.PathUnescape(rawURL)
	before, after, hasUser := strings.Cut(rawURL, "@")
	_, user, _ := strings.Cut(before, "://")
	wrong := ""
	switch {
	case badEscape != nil:
		wrong = "has a % that no two hexadecimal digits follow"
	case strings.ContainsFunc(rawURL, unicode.IsSpace) || strings.ContainsFunc(plain, unicode.IsControl):
		wrong = "has a space or a control character"
	case strings.Contains(rawURL, "#"):
		wrong = "has a #"
	case err == nil && (u.Scheme == "" || u.Opaque != ""):
		wrong = "has no scheme; want SCHEME://"
	case strings.Contains(after, "@") || hasUser && strings.ContainsAny(user, "/?"):
		wrong = "has an @ besides the one behind a user and a password"
	case err != nil:
		wrong = "cannot be read: its scheme, user, password, host or port has a character that cannot stand there"
	default:
		return u, nil
	}
	return nil, Invalidf("lockstore: the URL %s; %s (it is not shown, because it may hold a secret)", wrong, special)
}

// URLParts says what a store uses of its URL besides the scheme, see Config.Params.
type URLParts struct {
	Want                   string // the whole, for errors, such as "redis://USER:PASSWORD@HOST:PORT?prefix=TEXT"
	User, Host, Port, Path bool
	Params                 []string // the names of the parameters
	OtherParams            bool     // other parameters are for somebody else, such as a driver, and are not in the result
}

// Params returns the URL's parameters. It refuses what the store does not use, so that no typing mistake goes
// unseen: each part of the URL that uses does not name, a parameter that is unknown, is empty or stands
// twice, a host without a name, a port that is none. Its error matches ErrInvalid. It names the part
// and shows nothing of the URL but the scheme and a known parameter's name.
func (c Config) Params(uses URLParts) (map[string]string, error) {
	if c.URL == nil {
		return nil, Invalidf("lockstore: the store's URL is nil; want %s", uses.Want)
	}
	u, err := ParseURL(c.URL.String())
	if err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) error {
		return Invalidf("lockstore: the %s URL %s; want %s", u.Scheme, fmt.Sprintf(format, args...), uses.Want)
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
		name, _ = url.QueryUnescape(name) // ParseURL has seen that it can be read
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

// ParseEndpoint is ParseURL for the address of a service over HTTP, which stands in a parameter or in a variable: a
// scheme, a host and perhaps a port.
func ParseEndpoint(rawURL string) (*url.URL, error) {
	const want = "http://HOST:PORT or https://HOST:PORT"
	u, err := ParseURL(rawURL)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, Invalidf("lockstore: the URL has another scheme or no host; want %s", want)
	}
	_, err = Config{URL: u}.Params(URLParts{Want: want, Host: true, Port: true})
	return u, err
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
