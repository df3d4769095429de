package lockstore

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
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

// Opener opens the stores of some URL schemes. A store's package has one in its
// variable Opener. A program links the stores whose openers its main names.
type Opener struct {
	Schemes []string // in lower case, such as "redis"
	Open    func(context.Context, Config) (*Store, error)
}

// Open opens the store that rawURL names with the opener that has the URL's
// scheme. Its errors never show the URL's user part, path or parameter values,
// which may be secret. An unknown scheme's error lists the schemes that are
// linked. A scheme that two openers have is an error, and so is an opener without
// a scheme or without a func.
func Open(ctx context.Context, rawURL string, getenv func(string) string, openers ...Opener) (*Store, error) {
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

func byScheme(openers []Opener) (map[string]func(context.Context, Config) (*Store, error), error) {
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

// ParseURL is url.Parse for URLs that may hold a secret: its error, which
// matches ErrInvalid, does not show them. A text such as user:password, with
// no slash behind the colon, is refused, too, because its "scheme" may be a secret.
func ParseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme == "" || u.Opaque != "" {
		return nil, Invalidf("lockstore: the store's URL cannot be read; want scheme://… (not shown, it may hold a secret)")
	}
	return u, nil
}

// Params returns the URL's parameters. A parameter that is not among known, or
// stands twice, is an error that matches ErrInvalid, so that a typing mistake
// does not go unseen.
func (c Config) Params(known ...string) (map[string]string, error) {
	if c.URL == nil {
		return nil, Invalidf("lockstore: the store's URL is nil")
	}
	query, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return nil, Invalidf("lockstore: the parameters of the %s URL cannot be read", c.URL.Scheme)
	}
	params := make(map[string]string, len(query))
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(known, name) {
			return nil, Invalidf("lockstore: the %s URL has the unknown parameter %.40q; known: %s", c.URL.Scheme, name, strings.Join(known, ", "))
		}
		if len(query[name]) > 1 {
			return nil, Invalidf("lockstore: the %s URL has the parameter %.40q twice", c.URL.Scheme, name)
		}
		params[name] = query[name][0]
	}
	return params, nil
}
