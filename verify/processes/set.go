// Package lockset loses updates where a lock does not hold. Real functions in
// processes that are killed and stopped at random add elements to lists, each
// under the list's lock: read the whole list, pause, write it back with one
// element more. Whoever writes after another was granted the lock takes that
// one's elements away. (The idea is from Kingsbury's Jepsen.) A list that
// compares fences must lose nothing; one that does not has to lose some, or the
// processes were not treated badly enough. And what such a list refuses has to be
// late: where a holder's lease was still trusted when the refusal had come, its key
// was granted to another under it, and nothing that is slow or stopped excuses that.
package processes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Event asks the function to add an element to a list.
type Event struct {
	Try      int    `json:"try"` // new for every delivery; the work does not depend on it
	List     string `json:"list"`
	Element  string `json:"element"`
	Pause    int    `json:"pause"`    // between reading and writing, in milliseconds
	Stubborn bool   `json:"stubborn"` // does not look at its context, as code that has stalled
}

// Stamp is a request that a list has accepted.
type Stamp struct {
	Fence lockstore.Fence
	Try   int
}

func (s Stamp) String() string { return fmt.Sprintf("%d %d", s.Fence, s.Try) }

// Content is a list and all that it accepted, in the order of the list's server.
type Content struct {
	Elements []string
	Stamps   []Stamp
}

// ErrStale is returned when a larger fence has been at the list.
var ErrStale = errors.New("a later holder of the lock has been at the list")

// Lists are where functions add their elements.
type Lists interface {
	// Read returns the elements and makes the list refuse smaller fences from now
	// on. A list that compares none refuses nothing.
	Read(ctx context.Context, list string, s Stamp) ([]string, error)
	// Write replaces the elements, and is refused likewise.
	Write(ctx context.Context, list string, s Stamp, elements []string) error
	// Look reads everything without a fence.
	Look(ctx context.Context, list string) (Content, error)
}

// Open opens the lists of a store's URL: a table whose partition key is "list",
// or a Redis or Valkey. It sends nothing.
func Open(cfg lockstore.Config, fenced bool) (Lists, error) {
	switch scheme := cfg.URL.Scheme; scheme {
	case "dynamodb":
		client, err := dynamostore.Client(cfg)
		if err != nil {
			return nil, err
		}
		return &dynamoLists{client, cfg.URL.Host, fenced}, nil
	case "redis", "valkey":
		client, err := redisstore.Client(cfg)
		if err != nil {
			return nil, err
		}
		return newRedis(client, fenced), nil
	default:
		return nil, fmt.Errorf("no lists for the scheme %q; want dynamodb, redis or valkey", scheme)
	}
}

// Key is the key whose lock guards a list.
func Key(list string) string { return lockstore.Key("list", list) }

func parseStamp(text string) (s Stamp, err error) {
	if _, err := fmt.Sscanf(text, "%d %d", &s.Fence, &s.Try); err != nil {
		return Stamp{}, fmt.Errorf("stamp %q: %w", text, err)
	}
	return s, nil
}

func parse(elements string, stamps []string) (c Content, err error) {
	c.Elements = strings.Fields(elements)
	for _, text := range stamps {
		s, err := parseStamp(text)
		if err != nil {
			return Content{}, err
		}
		c.Stamps = append(c.Stamps, s)
	}
	return c, nil
}
