package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
)

// call is one request. It is also the request's owner argument, so that the
// client tells it each time it writes the command: a request that was never
// written was certainly not sent, whatever the error says.
type call struct {
	owner lockstore.Owner
	cmd   *redis.StringCmd
	sent  atomic.Int32
	doubt atomic.Bool // an earlier attempt of this request may have been applied
	bytes [lockstore.MaxOwnerBytes]byte
}

// MarshalBinary is called when the client writes the command.
func (c *call) MarshalBinary() ([]byte, error) {
	if c.sent.Add(1) > 1 && !refused(c.cmd.Err()) {
		c.doubt.Store(true)
	}
	return append(c.bytes[:0], c.owner...), nil
}

// String keeps the owner out of what tracing hooks print.
func (c *call) String() string { return c.owner.String() }

// run sends a script as EVALSHA, and as EVAL once if the server does not know
// it. Its error says what is known of the outcome.
func (s *Store) run(ctx context.Context, sc script, key string, owner lockstore.Owner, a, b any) (reply, error) {
	if s.client == nil {
		return reply{}, errNotMade()
	}
	if err := ctx.Err(); err != nil {
		return reply{}, fmt.Errorf("redisstore: key %q: not sent: %w: %w", key, lockstore.ErrUnavailable, err)
	}
	c := &call{owner: owner}
	args := []any{"evalsha", sc.sha, 1, s.prefix + key, c, a, b}
	text, err := c.do(ctx, s.client, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		before := c
		c = &call{owner: owner}
		c.doubt.Store(before.doubt.Load())
		text, err = c.do(ctx, s.client, []any{"eval", sc.source, 1, args[3], c, a, b})
	}
	if err != nil {
		return reply{}, c.outcome(ctx, key, err)
	}
	r, err := parseReply(text)
	if err != nil {
		return reply{}, fmt.Errorf("redisstore: key %q: the server gave %w, outcome unknown", key, err)
	}
	r.doubt = c.doubt.Load()
	return r, nil
}

func (c *call) do(ctx context.Context, client redis.UniversalClient, args []any) (string, error) {
	c.cmd = redis.NewStringCmd(ctx, args...)
	c.cmd.SetFirstKeyPos(3)
	_ = client.Process(ctx, c.cmd) // the command has the same error
	text, err := c.cmd.Result()
	return text, withoutSecrets(err, c.owner)
}

// answer is a server's error, in other words than the server's.
type answer string

func (a answer) Error() string { return string(a) }

// RedisError makes it a redis.Error.
func (answer) RedisError() {}

// withoutSecrets takes out of a server's error what it says of a command's
// arguments. Servers that do not know a command quote the first ones: the owner
// of a script's, the password of a greeting's.
func withoutSecrets(err error, owner lockstore.Owner) error {
	var server redis.Error
	if !errors.As(err, &server) {
		return err
	}
	const quoted = "with args beginning with:"
	text, _, cut := strings.Cut(server.Error(), quoted)
	if cut {
		text += quoted + " …"
	}
	if owner != "" {
		text = strings.ReplaceAll(text, string(owner), owner.String())
	}
	if text == server.Error() {
		return err
	}
	return answer(text)
}

// outcome says what a failed request did: nothing for certain, or unknown.
func (c *call) outcome(ctx context.Context, key string, err error) error {
	if word(serverText(err)) == "WRONGTYPE" {
		return errForeign(key, err)
	}
	known := c.sent.Load() == 0 || !c.doubt.Load() && refused(err)
	// A socket timeout does not say that it was the context's deadline.
	if ended := ended(ctx); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	if known {
		return fmt.Errorf("redisstore: key %q: not applied: %w: %w", key, lockstore.ErrUnavailable, err)
	}
	return fmt.Errorf("redisstore: key %q: outcome unknown: %w", key, err)
}

// ended is ctx.Err, and says so too in the moment before the context's own timer.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// refused reports whether err is an answer with which a server refuses a
// command before it does anything. The scripts write once, as the last thing,
// so it is the same for a command inside them. Other errors, and those of
// proxies between, say nothing about the outcome.
func refused(err error) bool {
	text := serverText(err)
	switch word(text) {
	case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "CROSSSLOT",
		"MISCONF", "BUSY", "NOREPLICAS", "OOM", "NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "NOSCRIPT":
		return true
	}
	for _, plain := range []string{
		"max number of clients reached",
		"unknown command",
		"The user executing the script can't run", // no permission for a command inside it
		"ACL failure in script",                   // the same, on Valkey
	} {
		if strings.HasPrefix(text, plain) {
			return true
		}
	}
	return false
}

// serverText is the text of a server's error without the general ERR before it,
// or "" when err is not from a server.
func serverText(err error) string {
	var server redis.Error
	if !errors.As(err, &server) {
		return ""
	}
	text := server.Error()
	// Redis 6 puts the place in the script before an error that pcall caught.
	if i := strings.Index(text, ": -"); i >= 0 && strings.HasPrefix(text, "@user_script") {
		text = text[i+3:]
	}
	return strings.TrimPrefix(text, "ERR ")
}

// word is the first word of a server's error, which is its kind.
func word(text string) string {
	w, _, _ := strings.Cut(text, " ")
	return w
}

// errForeign says why the entry is refused: cause is the server's answer for a
// value of another type, or nil for a string that is not an entry.
func errForeign(key string, cause error) error {
	if cause != nil {
		return fmt.Errorf("redisstore: key %q: what is there is not a lock: %w: %w", key, lockstore.ErrCorrupt, cause)
	}
	return fmt.Errorf("redisstore: key %q: what is there is not a lock of this store, or is damaged: %w", key, lockstore.ErrCorrupt)
}

func errNotMade() error {
	return fmt.Errorf("redisstore: the store was not made by New or Open: %w", lockstore.ErrInvalid)
}
