package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
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
	state atomic.Uint32
	bytes [lockstore.MaxOwnerBytes]byte
	words [9]any // of the command

	beside beside // through a client that is not this package's
	ending ending // through one that is
	text   string // the answer
	err    error
}

// What is known of a call, as bits of its state.
const (
	written   = 1 << iota // the command was written, and no answer says that it did nothing
	uncertain             // an earlier attempt of this request may have been applied
	left                  // the caller has returned: the command is not written any more
)

// MarshalBinary is called when the client writes the command. The client may do
// that long after the caller has returned, for example when it has found a
// connection at last; then it is refused.
func (c *call) MarshalBinary() ([]byte, error) {
	before := c.state.Load()
	after := before | written
	if before&written != 0 && !refused(c.cmd.Err()) {
		after |= uncertain
	}
	if before&left != 0 || !c.state.CompareAndSwap(before, after) { // only leaving changes it meanwhile
		return nil, context.Canceled
	}
	c.cmd.SetErr(nil) // what the next write finds there is then of this one
	return append(c.bytes[:0], c.owner...), nil
}

// String keeps the owner out of what tracing hooks print.
func (c *call) String() string { return c.owner.String() }

// run sends a script as EVALSHA, and as EVAL once if the server does not know
// it. Its error says what is known of the outcome. It returns when ctx ends.
func (s *Store) run(ctx context.Context, name scriptName, key string, owner lockstore.Owner, args ...any) (reply, error) {
	if err := s.made(); err != nil {
		return reply{}, err
	}
	if err := ctx.Err(); err != nil {
		return reply{}, fmt.Errorf("redisstore: key %q: not sent: %w: %w", key, lockstore.ErrUnavailable, err)
	}
	sc := s.scripts[name]
	c := &call{owner: owner}
	c.words = [9]any{"evalsha", sc.sha, 1, s.prefix + key, c}
	words := c.words[:5+copy(c.words[5:], args)]
	if s.ends {
		stop := c.ending.begin(ctx)
		defer c.ending.forget()
		defer stop()
		c.ask(&c.ending, s.client, words, sc.source)
	} else if err := c.beside.run(ctx, func() { c.ask(ctx, s.client, words, sc.source) }); err != nil {
		return reply{}, outcome(key, c.state.Or(left), err)
	}
	if c.err != nil {
		return reply{}, outcome(key, c.state.Load(), withContext(ctx, c.err))
	}
	r, err := parseReply(c.text)
	if err != nil {
		return reply{}, fmt.Errorf("redisstore: key %q: the server gave %w, outcome unknown", key, err)
	}
	r.doubt = c.state.Load()&uncertain != 0
	return r, nil
}

// beside runs a function in a goroutine of its own, which the caller does not wait
// for when its context ends. It is for clients that are not this package's: go-redis
// ends a command at its context's deadline at best, with ContextTimeoutEnabled, and
// never because the context is cancelled.
type beside struct {
	done     chan struct{}
	panicked any
}

// run returns nil when f has returned, or the context's error when ctx ends before
// that; then f goes on alone. A panic of f is the caller's.
func (b *beside) run(ctx context.Context, f func()) error {
	if ctx.Done() == nil {
		f()
		return nil
	}
	b.done = make(chan struct{})
	go b.call(f)
	select {
	case <-b.done:
	case <-ctx.Done():
		select {
		case <-b.done: // both at once: the answer counts
		default:
			return ctx.Err()
		}
	}
	if b.panicked != nil {
		panic(b.panicked)
	}
	return nil
}

func (b *beside) call(f func()) {
	defer close(b.done)
	defer func() { b.panicked = recover() }()
	f()
}

func (c *call) ask(ctx context.Context, client redis.UniversalClient, words []any, source any) {
	c.do(ctx, client, words)
	if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
		c.state.And(^uint32(written))
		words = slices.Clone(words) // hooks may still have the first command's
		words[0], words[1] = "eval", source
		c.do(ctx, client, words)
	}
}

func (c *call) do(ctx context.Context, client redis.UniversalClient, words []any) {
	c.cmd = redis.NewStringCmd(ctx, words...)
	c.cmd.SetFirstKeyPos(3)
	_ = client.Process(ctx, c.cmd) // the command has the same error
	text, err := c.cmd.Result()
	c.text, c.err = text, withoutSecrets(err, c.owner)
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
func outcome(key string, state uint32, err error) error {
	if word(serverText(err)) == "WRONGTYPE" {
		return errForeign(key, err)
	}
	if state&uncertain == 0 && (state&written == 0 || refused(err)) {
		if state&written == 0 {
			err = withAdvice(err)
		}
		return fmt.Errorf("redisstore: key %q: not applied: %w: %w", key, lockstore.ErrUnavailable, err)
	}
	return fmt.Errorf("redisstore: key %q: outcome unknown: %w", key, err)
}

// withContext adds that the context has ended, if it has: a socket's timeout does
// not say that it was the context's deadline.
func withContext(ctx context.Context, err error) error {
	ended := ctx.Err()
	if deadline, ok := ctx.Deadline(); ok && ended == nil && !time.Now().Before(deadline) {
		ended = context.DeadlineExceeded // the context's own timer is about to say so
	}
	if ended == nil || errors.Is(err, ended) {
		return err
	}
	return fmt.Errorf("%w: %w", ended, err)
}

// withAdvice adds to the failure of a request that was not written what may be
// behind it. A client with TLS at a server without, and the other way round, sees
// silence or the end of the connection.
func withAdvice(err error) error {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return err // nobody answers there at all
	}
	var timeout net.Error
	var noTLS tls.RecordHeaderError
	if errors.As(err, &timeout) && timeout.Timeout() || errors.As(err, &noTLS) ||
		errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w: no connection was ready; if this stays so, try the other of rediss:// (TLS) and redis:// (no TLS)", err)
	}
	return err
}

// refused reports whether err is an answer with which a server refuses a
// command before it does anything. The scripts write once, as the last thing,
// so it is the same for a command inside them. Other errors, and those of
// proxies between, say nothing about the outcome.
func refused(err error) bool {
	text := serverText(err)
	switch word(text) {
	case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "CROSSSLOT",
		"MISCONF", "BUSY", "NOREPLICAS", "OOM", "NOAUTH", "WRONGPASS", "DENIED", "NOSCRIPT":
		return true
	case "NOPERM":
		return !strings.Contains(text, "'asking'") // the request behind it may have been carried out
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

// made returns an error for a store that New has not made.
func (s *Store) made() error {
	if s == nil || s.client == nil {
		return lockstore.Invalidf("redisstore: the store was not made by New or Open")
	}
	return nil
}
