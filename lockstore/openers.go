package lockstore

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
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
