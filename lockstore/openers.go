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
// Getenv; it never reads the environment itself.
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

// Openers maps URL schemes to the stores that a program links. It is written
// as a literal in main, so what is linked can be read there.
type Openers map[string]func(context.Context, Config) (Store, error)

// Open opens the store that rawURL names. Its errors never show the URL's user
// part, path or parameter values, which may be secret. An unknown scheme's error
// lists the schemes that are linked.
func (o Openers) Open(ctx context.Context, rawURL string, getenv func(string) string) (Store, error) {
	linked := strings.Join(slices.Sorted(maps.Keys(o)), ", ")
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w; linked here: %s", err, linked)
	}
	open := o[u.Scheme]
	if open == nil {
		return nil, invalid("no store for the scheme %.40q; linked here: %s", u.Scheme, linked)
	}
	if getenv == nil {
		return nil, invalid("Getenv is nil; want a function that reads a variable")
	}
	return open(ctx, Config{URL: u, Getenv: getenv})
}

// ParseURL is url.Parse for URLs that may hold a secret: its error, which
// matches ErrInvalid, does not show them. What has no "//", like user:password,
// is refused too, because its "scheme" may be a secret.
func ParseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme == "" || u.Opaque != "" {
		return nil, invalid("the store's URL cannot be read; want scheme://… (not shown, it may hold a secret)")
	}
	return u, nil
}

// Params returns the URL's parameters. A parameter that is not among known, or
// stands twice, is an error that matches ErrInvalid, so that a typing mistake
// does not go unseen.
func (c Config) Params(known ...string) (map[string]string, error) {
	if c.URL == nil {
		return nil, invalid("the store's URL is nil")
	}
	query, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return nil, invalid("the parameters of the %s URL cannot be read", c.URL.Scheme)
	}
	params := make(map[string]string, len(query))
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(known, name) {
			return nil, invalid("the %s URL has the unknown parameter %.40q; known: %s", c.URL.Scheme, name, strings.Join(known, ", "))
		}
		if len(query[name]) > 1 {
			return nil, invalid("the %s URL has the parameter %.40q twice", c.URL.Scheme, name)
		}
		params[name] = query[name][0]
	}
	return params, nil
}
