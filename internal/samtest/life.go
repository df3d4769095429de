package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// lent is what the lock service says of a lock, to its holder and to others.
type lent struct {
	Fence     int64
	Token     string
	ExpiresIn float64
	Held      bool
	Holder    struct{ Name string }
}

const lifeRow = "the life of a lock"

// life borrows locks as a program without this module would, from the PUT to the
// DELETE, and looks at what the gateway makes of the path.
func life(ctx context.Context, server service) error {
	c := client{ctx: ctx, server: server}
	// New in each run, because a store may remember the run before.
	run := rand.Text()
	once := http.Header{"Idempotency-Key": {run}}
	// One key in two spellings: a slash that is escaped is a slash.
	key, spelt := "/locks/shared/"+run+"/a%20b%C3%A4", "/locks/shared%2F"+run+"%2Fa%20b%c3%a4"

	first := c.ask(http.StatusOK, http.MethodPut, key, once, `{"ttl": 30, "holder": "samtest"}`)
	again := c.ask(http.StatusOK, http.MethodPut, key, once, `{"ttl": 30, "holder": "samtest"}`)
	c.want(first.Fence > 0 && first.Token != "" && first.ExpiresIn > 0 && first.ExpiresIn < 30, "a grant is %+v", first)
	c.want(again.Token == first.Token && again.Fence == first.Fence, "the same Idempotency-Key got another lease")
	busy := c.ask(http.StatusConflict, http.MethodPut, spelt, nil, `{"ttl": 30}`)
	c.want(c.last.header.Get("Retry-After") != "" && busy.Token == "", "busy is told by %v %s", c.last.header, c.last.body)
	seen := c.ask(http.StatusOK, http.MethodGet, spelt, nil, "")
	c.want(seen.Held && seen.Fence == first.Fence && seen.Holder.Name == "samtest" && seen.Token == "", "a held lock is shown as %s", c.last.body)

	renewed := c.ask(http.StatusOK, http.MethodPatch, spelt, bearer(first), `{"ttl": 60}`)
	c.want(renewed.Fence == first.Fence && renewed.ExpiresIn > 30, "a renewed grant is %+v", renewed)
	c.ask(http.StatusNotFound, http.MethodPatch, "/locks/shared/"+run, bearer(renewed), `{"ttl": 60}`)
	another := c.last.body
	c.ask(http.StatusNotFound, http.MethodDelete, key, http.Header{"Lock-Token": {"made-up"}}, "")
	c.want(bytes.Equal(another, c.last.body), "another key's token is refused by %s, one that was made up by %s", another, c.last.body)
	c.ask(http.StatusNoContent, http.MethodDelete, key, bearer(renewed), "")
	c.ask(http.StatusNoContent, http.MethodDelete, spelt, bearer(renewed), "")
	free := c.ask(http.StatusOK, http.MethodGet, key, nil, "")
	c.want(!free.Held && free.Fence == first.Fence, "a free lock is shown as %s", c.last.body)
	c.ask(http.StatusUnprocessableEntity, http.MethodPut, key, once, `{"ttl": 30}`)
	c.ask(http.StatusMethodNotAllowed, http.MethodPost, key, nil, `{"ttl": 30}`)

	// A path is decoded once: this is no key with a slash.
	escaped := "/locks/shared/" + run + "%252Fa"
	twice := c.ask(http.StatusOK, http.MethodPut, escaped, nil, `{"ttl": 30}`)
	slash := c.ask(http.StatusOK, http.MethodGet, "/locks/shared/"+run+"/a", nil, "")
	c.want(!slash.Held, "%%252F is taken for a slash")
	c.ask(http.StatusNoContent, http.MethodDelete, escaped, bearer(twice), "")

	// None of these may give the lock of another path. The SAM CLI refuses the first
	// itself and leaves the others to the function, %FF as U+FFFD; other gateways
	// refuse more or redirect.
	for _, path := range []string{"", "shared/", "shared//RUN", "shared/./RUN", "shared/x/../RUN", "shared/%2E/RUN",
		"shared/x/%2E%2E/RUN", "shared/%2FRUN", "shared/RUN%00", "shared/RUN%FF"} {
		path = "/locks/" + strings.Replace(path, "RUN", run, 1)
		c.ask(0, http.MethodPut, path, nil, `{"ttl": 30}`)
		c.want(c.last.status >= 300 && c.last.status < 500, "PUT %s is answered by %d %s", path, c.last.status, c.last.body)
	}
	return c.err
}

func bearer(l lent) http.Header { return http.Header{"Lock-Token": {l.Token}} }

// client asks one thing after the other, until one is wrong.
type client struct {
	ctx    context.Context
	server service
	last   response
	err    error
}

// ask sends a request whose response is to have this status; 0 is any.
func (c *client) ask(status int, method, path string, header http.Header, body string) (l lent) {
	if c.err != nil {
		return l
	}
	r := request{Method: method, Path: path, Header: header.Clone(), Body: []byte(body)}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	c.last, c.err = c.server.call(c.ctx, r)
	if c.err == nil && status != 0 {
		c.want(c.last.status == status, "%s %s is answered by %d %s, want %d", method, path, c.last.status, c.last.body, status)
	}
	if c.err == nil && status == http.StatusOK {
		if err := json.Unmarshal(c.last.body, &l); err != nil {
			c.err = fmt.Errorf("%s %s is answered by %q: %w", method, path, c.last.body, err)
		}
	}
	return l
}

func (c *client) want(ok bool, format string, args ...any) {
	if c.err == nil && !ok {
		c.err = fmt.Errorf(format, args...)
	}
}
