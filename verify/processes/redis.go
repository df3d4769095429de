package processes

import (
	"context"
	_ "embed"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed list.lua
var listScript string

// redisLists keeps a list in a hash, with its elements between spaces, and its
// stamps in a Redis list.
type redisLists struct {
	client redis.UniversalClient
	fenced bool
}

func (l *redisLists) Do(ctx context.Context, name string, s Stamp, elements []string) ([]string, error) {
	args := []any{strconv.FormatBool(l.fenced), s.Fence, s.String()}
	if elements != nil {
		args = append(args, strings.Join(elements, " "))
	}
	before, err := redis.NewScript(listScript).Run(ctx, l.client, []string{redisKey(name), stampsKey(name)}, args...).Text()
	if errors.Is(err, redis.Nil) {
		return nil, ErrStale
	}
	return strings.Fields(before), err
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
