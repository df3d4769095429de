package accounts

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
)

// redisShelf keeps an account in one hash, "account:ID": balance and fence in
// decimal digits, recent as JSON. One key is one slot of a cluster.
type redisShelf struct{ client redis.UniversalClient }

//go:embed fenced.lua
var fencedLua string

var fencedScript = redis.NewScript(fencedLua)

func (s *redisShelf) claim(ctx context.Context, account string, fence lockstore.Fence) (record, error) {
	answer, err := s.run(ctx, account, fence)
	if err != nil {
		return record{}, err
	}
	if len(answer) != 3 {
		return record{}, fmt.Errorf("the script answered %d values: %w", len(answer), ErrCorrupt)
	}
	return decode(answer[1], answer[2])
}

func (s *redisShelf) write(ctx context.Context, account string, fence lockstore.Fence, r record) error {
	recent, err := json.Marshal(r.Recent)
	if err != nil {
		return err
	}
	_, err = s.run(ctx, account, fence, r.Balance, recent)
	return err
}

func (s *redisShelf) run(ctx context.Context, account string, args ...any) ([]string, error) {
	answer, err := fencedScript.Run(ctx, s.client, []string{redisKey(account)}, args...).StringSlice()
	if err != nil {
		return nil, err
	}
	switch {
	case len(answer) > 0 && answer[0] == "ok":
		return answer, nil
	case len(answer) == 1 && answer[0] == "absent":
		return nil, ErrNotFound
	case len(answer) == 1 && answer[0] == "stale":
		return nil, ErrStaleFence
	case len(answer) == 1 && answer[0] == "foreign":
		return nil, ErrCorrupt
	}
	return nil, fmt.Errorf("the script answered %q: %w", answer, ErrCorrupt)
}

func (s *redisShelf) create(ctx context.Context, account string, r record) error {
	created, err := s.client.HSetNX(ctx, redisKey(account), "balance", r.Balance).Result()
	if err != nil {
		return err
	}
	if !created {
		return ErrExists
	}
	return nil
}

func (s *redisShelf) read(ctx context.Context, account string) (record, error) {
	values, err := s.client.HMGet(ctx, redisKey(account), "balance", "recent").Result()
	if err != nil {
		return record{}, err
	}
	balance, ok := values[0].(string)
	if !ok {
		return record{}, ErrNotFound
	}
	recent, _ := values[1].(string) // a new account has none
	return decode(balance, recent)
}

func decode(balance, recent string) (record, error) {
	var r record
	var err error
	if r.Balance, err = strconv.ParseInt(balance, 10, 64); err != nil {
		return record{}, fmt.Errorf("balance %q: %w", balance, ErrCorrupt)
	}
	if recent == "" {
		return r, nil
	}
	if err := json.Unmarshal([]byte(recent), &r.Recent); err != nil {
		return record{}, fmt.Errorf("recent: %w: %w", ErrCorrupt, err)
	}
	return r, nil
}

func redisKey(account string) string { return "account:" + account }
