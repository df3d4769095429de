package processes

import (
	"context"
	_ "embed"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed list.lua
var listScript string

// redisLists keeps a list in a hash, with its elements between spaces, and its
// stamps in a Redis list.
type redisLists struct {
	client redis.UniversalClient
	script *redis.Script
	mode   string
}

func newRedis(client redis.UniversalClient, fenced bool) *redisLists {
	l := &redisLists{client: client, script: redis.NewScript(listScript)}
	if fenced {
		l.mode = "fenced"
	}
	return l
}

func (l *redisLists) Read(ctx context.Context, list string, s Stamp) ([]string, error) {
	elements, err := l.run(ctx, list, s)
	return strings.Fields(elements), err
}

func (l *redisLists) Write(ctx context.Context, list string, s Stamp, elements []string) error {
	_, err := l.run(ctx, list, s, strings.Join(elements, " "))
	return err
}

func (l *redisLists) run(ctx context.Context, list string, s Stamp, more ...any) (elements string, err error) {
	args := append([]any{l.mode, s.Fence, s.String()}, more...)
	elements, err = l.script.Run(ctx, l.client, []string{redisKey(list), stampsKey(list)}, args...).Text()
	if errors.Is(err, redis.Nil) {
		return "", ErrStale
	}
	return elements, err
}

func (l *redisLists) ReadAll(ctx context.Context, list string) (Content, error) {
	elements, err := l.client.HGet(ctx, redisKey(list), "elements").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return Content{}, err
	}
	stamps, err := l.client.LRange(ctx, stampsKey(list), 0, -1).Result()
	if err != nil {
		return Content{}, err
	}
	return parse(elements, stamps)
}

func redisKey(list string) string  { return "list:" + list }
func stampsKey(list string) string { return "stamps:" + list }
