// Package processes loses updates where a lock does not hold. Real functions, in
// processes that are killed and stopped at random, add elements to lists. A function
// takes the list's lock, reads the whole list, pauses, and writes the list back with
// one element more. A holder that writes after the lock was granted to another
// overwrites the other's element. (The idea is from Kingsbury's Jepsen.)
//
// A list that compares fences must lose no element. A list that compares none has to
// lose some, or the faults were too weak. A list may refuse only a holder whose lease
// has ended. If the holder still trusted its lease when the refusal came, the key was
// granted to another too early, and no slow or stopped process excuses that.
//
// Two or three may hold the key of some lists. Such a list has a part for each seat. The key of others is for one
// writer or many readers. A reader shows the list its fence, reads it twice, and must find no change while it trusts its lease.
package processes

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Event asks the function to add an element to a list, or to read it.
type Event struct {
	Try     int    `json:"try"` // new for every delivery; the work does not depend on it
	List    string `json:"list"`
	Element string `json:"element"`
	Holders int    `json:"holders"` // how many may hold the list's key together with this event
	Pause   int    `json:"pause"`   // after the first reading, in milliseconds
	// IgnoresContext is work that does not look at its context, as code that hangs.
	IgnoresContext bool `json:"ignoresContext"`
	// Once has the work done by package idempotency, as its Doubt of this name says, and
	// under the element's own key. Such work adds the element without looking for it.
	Once string `json:"once,omitempty"`
	// Reads has the function add nothing: it reads the list twice.
	Reads bool `json:"reads,omitempty"`
}

// Stamp is a request that a list has accepted.
type Stamp struct {
	Fence lockstore.Fence
	Try   int
}

func (s Stamp) String() string { return fmt.Sprintf("%d %d", s.Fence, s.Try) }

// Content is a list and the requests that it accepted, in the order of its server.
type Content struct {
	Elements []string
	Stamps   []Stamp
}

// ErrStale is returned when the list has seen a larger fence.
var ErrStale = errors.New("the list has seen a later holder of the lock")

//go:embed list.lua
var listScript string

// Lists are where functions add their elements: each a hash in a Redis, with its elements between spaces, and a
// Redis list of its stamps. They are in one that does not fail.
type Lists struct {
	client redis.UniversalClient
	fenced bool
}

// Open opens the lists of a Redis. It sends nothing.
func Open(cfg lockstore.Config, fenced bool) (*Lists, error) {
	client, err := redisstore.Client(cfg)
	return &Lists{client, fenced}, err
}

// Do replaces the elements, or returns them if elements is nil. From now on the list refuses smaller fences, if it
// compares fences at all.
func (l *Lists) Do(ctx context.Context, list string, s Stamp, elements []string) ([]string, error) {
	args := []any{strconv.FormatBool(l.fenced), s.Fence, s.String()}
	if elements != nil {
		args = append(args, strings.Join(elements, " "))
	}
	before, err := redis.NewScript(listScript).Run(ctx, l.client, []string{"list:" + list, "stamps:" + list}, args...).Text()
	if errors.Is(err, redis.Nil) {
		return nil, ErrStale
	}
	return strings.Fields(before), err
}

// ReadAll reads everything without a fence.
func (l *Lists) ReadAll(ctx context.Context, list string) (c Content, err error) {
	elements, err := l.client.HGet(ctx, "list:"+list, "elements").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return Content{}, err
	}
	stamps, err := l.client.LRange(ctx, "stamps:"+list, 0, -1).Result()
	if err != nil {
		return Content{}, err
	}
	c.Elements = strings.Fields(elements)
	for _, text := range stamps {
		var s Stamp
		if _, err := fmt.Sscanf(text, "%d %d", &s.Fence, &s.Try); err != nil {
			return Content{}, fmt.Errorf("stamp %q: %w", text, err)
		}
		c.Stamps = append(c.Stamps, s)
	}
	return c, nil
}

// Key is the key whose lock guards a list.
func Key(list string) string { return lockstore.Key("list", list) }

// Part is the part of a list that holders with this seat change. That of the first seat has the name of the
// list, which is all that a function of an earlier version knows.
func Part(list string, seat int) string {
	if seat == 0 {
		return list
	}
	return fmt.Sprint(list, ".", seat)
}
