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

// call is one request of the store. It is also the owner argument of the command, so the
// client calls its MarshalBinary each time it writes the command. A request that was
// never written was not sent, whatever the error is.
type call struct {
	owner lockstore.Owner
	cmd   *redis.StringCmd
	state atomic.Uint32
	bytes [lockstore.MaxOwnerBytes]byte
	words [10]any // of the command

	detached detached    // for a client that this package has not made
	context  callContext // for a client that this package has made
	text     string      // the answer
	err      error
}

// Bits of a call's state.
const (
	written   = 1 << iota // the command was written, and no answer says that it did nothing
	ambiguous             // an earlier attempt of this request may have been applied
	returned              // the caller has returned, so the command must not be written
)

// MarshalBinary is called when the client writes the command. The client may do that long
// after the caller has returned, for example when it had to wait for a connection. Then
// MarshalBinary returns an error.
func (c *call) MarshalBinary() ([]byte, error) {
	before := c.state.Load()
	after := before | written
	if before&written != 0 && !meaning(c.cmd.Err()).refused {
		after |= ambiguous
	}
	if before&returned != 0 || !c.state.CompareAndSwap(before, after) { // only the return changes the state meanwhile
		return nil, context.Canceled
	}
	c.cmd.SetErr(nil) // so an error at the next write is from this attempt
	return append(c.bytes[:0], c.owner...), nil
}

// String hides the owner from hooks that print commands.
func (c *call) String() string { return c.owner.String() }

// run sends a script with one key.
func (s *server) run(ctx context.Context, name scriptName, key string, owner lockstore.Owner, args ...any) (reply, error) {
	return s.send(ctx, name, key, s.prefix+key, "", owner, args...)
}

// send sends a script as EVALSHA, and once as EVAL if the server does not know the script.
// A second name is optional. The error says whether the request may have been applied.
// send returns when ctx ends.
func (s *server) send(ctx context.Context, name scriptName, key, first, second string, owner lockstore.Owner, args ...any) (reply, error) {
	sc := scripts[name]()
	c := &call{owner: owner}
	words := append(c.words[:0], "evalsha", sc.sha, 1, first)
	if second != "" {
		words[2] = 2
		words = append(words, second)
	}
	words = append(append(words, c), args...)
	if s.ends {
		stop := c.context.begin(ctx, answerTimeout)
		defer c.context.forget()
		defer stop()
		c.send(&c.context, s.client, words, sc.source)
	} else if err := c.detached.run(ctx, func() { c.send(ctx, s.client, words, sc.source) }); err != nil {
		return reply{}, s.outcome(name, key, c.state.Or(returned), err)
	}
	if c.err != nil {
		return reply{}, s.outcome(name, key, c.state.Load(), withContext(ctx, c.err))
	}
	r, err := parseReply(c.text)
	if err != nil {
		return reply{}, fmt.Errorf("redisstore: key %q: the server sent %w, %s", key, err, name.says("outcome unknown"))
	}
	r.ambiguous = c.state.Load()&ambiguous != 0
	return r, nil
}

// detached runs a function in another goroutine. The caller does not wait for the function
// when the context ends. It is for clients that this package has not made: go-redis ends
// a command at the context's deadline only with ContextTimeoutEnabled, and never because
// the context is cancelled.
type detached struct {
	done     chan struct{}
	panicked any
}

// run returns nil when f has returned. If ctx ends before, run returns the context's error
// and f goes on. A panic of f panics in the caller.
func (d *detached) run(ctx context.Context, f func()) error {
	if ctx.Done() == nil {
		f()
		return nil
	}
	d.done = make(chan struct{})
	go d.call(f)
	select {
	case <-d.done:
	case <-ctx.Done():
		select {
		case <-d.done: // if both happen at the same time, the answer counts
		default:
			return ctx.Err()
		}
	}
	if d.panicked != nil {
		panic(d.panicked)
	}
	return nil
}

func (d *detached) call(f func()) {
	defer close(d.done)
	defer func() { d.panicked = recover() }()
	f()
}

func (c *call) send(ctx context.Context, client redis.UniversalClient, words []any, source any) {
	c.do(ctx, client, words)
	if c.err != nil && meaning(c.err).kind == "NOSCRIPT" {
		c.state.And(^uint32(written))
		words = slices.Clone(words) // a hook may still use the words of the first command
		words[0], words[1] = "eval", source
		c.do(ctx, client, words)
	}
}

func (c *call) do(ctx context.Context, client redis.UniversalClient, words []any) {
	c.cmd = redis.NewStringCmd(ctx, words...)
	c.cmd.SetFirstKeyPos(3)
	_ = client.Process(ctx, c.cmd) // the command has the same error
	c.text, c.err = c.cmd.Result()
	if c.err != nil {
		c.err = withoutSecrets(c.err, c.owner)
	}
}

// answer is a server's error with another text.
type answer struct {
	text string
	says says // of the server's own text
}

func (a answer) Error() string { return a.text }

// RedisError makes it a redis.Error.
func (answer) RedisError() {}

// says is what a server's error says. It is read before an owner in the text is hidden, because every text is allowed
// as an owner, also one of the words that tell errors apart.
type says struct {
	kind      string // the first word
	refused   bool   // see isRefusal
	noCluster bool   // the server is not in cluster mode
}

// meaning is what an error says; nothing if it is not from a server.
func meaning(err error) says {
	if a, ok := errors.AsType[answer](err); ok {
		return a.says
	}
	text := serverText(err)
	kind, _, _ := strings.Cut(text, " ")
	return says{kind, isRefusal(kind, text), strings.HasPrefix(text, "This instance has cluster support disabled")}
}

// withoutSecrets removes the command's arguments from a server's error. A server that does
// not know a command quotes the first arguments: the owner of a script call, or the
// password of a greeting.
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
	return answer{text, meaning(err)}
}

// says is the text about the outcome of a request, which a request that only reads does not have.
func (n scriptName) says(outcome string) string {
	if n == inspectScript {
		return "nothing was read"
	}
	return outcome
}

// outcome is the error of a failed request: either certainly not applied, or unknown.
func (s *server) outcome(name scriptName, key string, state uint32, err error) error {
	what := meaning(err)
	if what.kind == "WRONGTYPE" {
		return errForeign(key, err, "")
	}
	if state&ambiguous == 0 && (state&written == 0 || what.refused) {
		if what.kind == "MOVED" || state&written == 0 {
			err = s.withAdvice(err)
		}
		return fmt.Errorf("redisstore: key %q: %s: %w: %w", key, name.says("not applied"), lockstore.ErrUnavailable, err)
	}
	return fmt.Errorf("redisstore: key %q: %s: %w", key, name.says("outcome unknown"), err)
}

// withContext adds the context's error if the context has ended. The timeout of a socket
// does not say that it was the context's deadline.
func withContext(ctx context.Context, err error) error {
	ended := ctx.Err()
	if deadline, ok := ctx.Deadline(); ok && ended == nil && time.Until(deadline) < time.Millisecond {
		ended = context.DeadlineExceeded // the context's own timer fires at once; the deadlines of a context's calls differ, see callContext
	}
	if ended == nil || errors.Is(err, ended) {
		return err
	}
	return fmt.Errorf("%w: %w", ended, err)
}

// withAdvice adds what is wrong with the URL to the error of a request that was not written, or of
// one for a key of another node. A client with TLS at a server without TLS, or the reverse, gets no
// answer, or the connection ends.
func (s *server) withAdvice(err error) error {
	switch what := meaning(err); {
	case !s.cluster && what.kind == "MOVED":
		return fmt.Errorf("%w: the server is in cluster mode; the URL needs cluster=true", err)
	case s.cluster && what.noCluster:
		return fmt.Errorf("%w: the server is not in cluster mode; remove cluster=true from the URL", err)
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return err // no server is there
	}
	var timeout net.Error
	var noTLS tls.RecordHeaderError
	if errors.As(err, &timeout) && timeout.Timeout() || errors.As(err, &noTLS) ||
		errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w: no connection to %s was ready; if this goes on, check the scheme: rediss:// is with TLS, redis:// is without", err, s.address)
	}
	return err
}

// isRefusal reports whether a server refuses a command with this answer before it
// does anything. The same holds for a command inside a script: no script returns an error after its
// first write that changes the entry. Other errors, and errors of proxies, do not show the outcome.
func isRefusal(kind, text string) bool {
	switch kind {
	case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "CROSSSLOT",
		"MISCONF", "BUSY", "NOREPLICAS", "OOM", "NOAUTH", "WRONGPASS", "DENIED", "NOSCRIPT":
		return true
	case "NOPERM":
		return !strings.Contains(text, "'asking'") // the next command may have been applied
	}
	for _, plain := range []string{
		"max number of clients reached",
		"unknown command",
		"The user executing the script can't run", // Redis: no permission for a command in the script
		"ACL failure in script",                   // Valkey: the same
	} {
		if strings.HasPrefix(text, plain) {
			return true
		}
	}
	return false
}

// serverText is the text of a server's error without "ERR " at the beginning. It is "" if
// err is not from a server.
func serverText(err error) string {
	var server redis.Error
	if !errors.As(err, &server) {
		return ""
	}
	return strings.TrimPrefix(server.Error(), "ERR ")
}

// errForeign is the error for a value that is not an entry. cause is the server's answer
// for a value of another type, or nil for a string.
// Otherwise damage may say what is wrong with the entry's leases.
func errForeign(key string, cause error, damage string) error {
	if cause != nil {
		return fmt.Errorf("redisstore: key %q: the value is not a lock: %w: %w", key, lockstore.ErrCorrupt, cause)
	}
	if damage != "" {
		damage = ": " + damage
	}
	return fmt.Errorf("redisstore: key %q: the value is not a lock of this store, or it is damaged%s: %w", key, damage, lockstore.ErrCorrupt)
}
