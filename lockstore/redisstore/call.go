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
	"github.com/lambdalock/lambdalock/lockstore/internal/beside"
)

// call is one request of the store. It is also the owner argument of the command, so the
// client calls its MarshalBinary each time it writes the command. A request that was
// never written was not sent, whatever the error is.
type call struct {
	lockstore.Owner        // hides itself from hooks that print commands
	key             string // of the lock
	reads           bool   // and changes nothing
	client          redis.UniversalClient
	words           []any // of the command
	context         callContext

	cmd     *redis.StringCmd
	state   atomic.Uint32
	text    string // the answer
	err     error
	refusal string // the first word of the server's error
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
	if before&written != 0 && !meaningOf(c.cmd.Err()).refused {
		after |= ambiguous
	}
	if before&returned != 0 || !c.state.CompareAndSwap(before, after) { // only the return changes the state meanwhile
		return nil, context.Canceled
	}
	c.cmd.SetErr(nil) // so an error at the next write is from this attempt
	return []byte(c.Owner), nil
}

// run sends the script with one key. The first of args is the kind of the request.
func (s *server) run(ctx context.Context, key string, owner lockstore.Owner, args ...any) (*call, error) {
	c := &call{Owner: owner, key: key}
	return c, s.send(ctx, c, s.prefix+key, "", args...)
}

// send sends the script as EVALSHA, and once as EVAL if the server does not know it.
// A second name is optional. The error says whether the request may have been applied.
// send returns when ctx ends.
func (s *server) send(ctx context.Context, c *call, name, second string, args ...any) error {
	words := []any{"evalsha", script().sha, 1, name}
	if second != "" {
		words[2] = 2
		words = append(words, second)
	}
	c.client, c.words, c.reads = s.client, append(append(words, c), args...), args[0] == "inspect"
	if err := s.within(ctx, &c.context, answerTimeout, c.send); err != nil {
		return s.outcome(c, c.state.Or(returned), meaning{}, err)
	}
	if c.err == nil {
		return nil
	}
	what := meaningOf(c.err)
	c.refusal = what.kind
	// A client of the user may repeat a request, and greet its server with SELECT: these two may be the answer to that.
	what.refused = what.refused && (s.ends || what.kind != "NOAUTH" && what.kind != "BUSY")
	return s.outcome(c, c.state.Load(), what, withContext(ctx, withoutSecrets(c.err, c.Owner)))
}

// send sends the command, and once again with the script itself if the server does not know it.
func (c *call) send(ctx context.Context) {
	c.do(ctx)
	if c.err != nil && meaningOf(c.err).kind == "NOSCRIPT" {
		c.state.And(^uint32(written))
		c.words = slices.Clone(c.words) // a hook may still use the words of the first command
		c.words[0], c.words[1] = "eval", script().source
		c.do(ctx)
	}
}

func (c *call) do(ctx context.Context) {
	c.cmd = redis.NewStringCmd(ctx, c.words...)
	_ = c.client.Process(ctx, c.cmd) // the command has the same error
	c.text, c.err = c.cmd.Result()
}

// within calls send, which sends a command, and returns when it or ctx ends; most bounds each wait of its connection. After an error, which is that of
// ctx, the command may go on: with a client that this package has not made. go-redis ends a command at the context's deadline only
// with ContextTimeoutEnabled, and never because the context is cancelled.
func (s *server) within(ctx context.Context, own *callContext, most time.Duration, send func(context.Context)) error {
	if !s.ends {
		_, err := beside.Do(ctx, func() (struct{}, error) {
			send(ctx)
			return struct{}{}, nil
		})
		return err
	}
	stop := own.begin(ctx, most)
	defer own.forget()
	defer stop()
	send(own)
	return nil
}

// says is the text about the outcome of a request, which a request that only reads does not have.
func (c *call) says(outcome string) string {
	if c.reads {
		return "nothing was read"
	}
	return outcome
}

// unreadable is the error of an answer that the script does not give.
func (c *call) unreadable(err error) error {
	return fmt.Errorf("redisstore: key %q: the server sent %w, %s", c.key, err, c.says("outcome unknown"))
}

// outcome is the error of a failed request: either certainly not applied, or unknown.
func (s *server) outcome(c *call, state uint32, what meaning, err error) error {
	if what.kind == "WRONGTYPE" {
		return fmt.Errorf("redisstore: key %q: the value is not a lock: %w: %w", c.key, lockstore.ErrCorrupt, err)
	}
	if state&ambiguous == 0 && (state&written == 0 || what.refused) {
		if what.kind == "MOVED" || state&written == 0 {
			err = s.withAdvice(what, err)
		}
		return fmt.Errorf("redisstore: key %q: %s: %w: %w", c.key, c.says("not applied"), lockstore.ErrUnavailable, err)
	}
	return fmt.Errorf("redisstore: key %q: %s: %w", c.key, c.says("outcome unknown"), unclear{err})
}

// unclear is the cause of an unknown outcome. It may be of a later attempt, which had no credentials for example. That one was certainly not
// applied, and an earlier one may have been.
type unclear struct{ error }

// Is and As are those of the cause, but the error does not match lockstore.ErrUnavailable.
func (u unclear) Is(target error) bool {
	return target != lockstore.ErrUnavailable && errors.Is(u.error, target)
}
func (u unclear) As(target any) bool { return errors.As(u.error, target) }

// meaning is what a server's error says. It is read before an owner in the text is hidden, because every text is allowed
// as an owner, also one of the words that tell errors apart. An error that is not from a server has none.
type meaning struct {
	kind      string // the first word
	refused   bool   // see isRefusal
	noCluster bool   // the server is not in cluster mode
}

func meaningOf(err error) meaning {
	var server redis.Error
	if !errors.As(err, &server) {
		return meaning{}
	}
	text := strings.TrimPrefix(server.Error(), "ERR ")
	kind, _, _ := strings.Cut(text, " ")
	return meaning{kind, isRefusal(kind, text), strings.HasPrefix(text, "This instance has cluster support disabled")}
}

// isRefusal reports whether a server refuses a command that was written with this answer before it
// does anything. The same holds for a command inside a script: no script returns an error after its
// first write that changes the entry. Other errors, and errors of proxies, do not show the outcome: WRONGPASS, too many clients, and NOPERM
// for ASKING or SELECT are not about the script. After a lost reply they may be the answer to the next attempt's greeting.
func isRefusal(kind, text string) bool {
	switch kind {
	case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "CROSSSLOT",
		"MISCONF", "BUSY", "NOREPLICAS", "OOM", "NOAUTH", "NOSCRIPT":
		return true
	case "NOPERM": // of EVALSHA or EVAL, or of its key
		return strings.Contains(text, " run the 'eval") || strings.Contains(text, " key")
	}
	return strings.HasPrefix(text, "unknown command") ||
		strings.HasPrefix(text, "The user executing the script can't run") || // Redis: no permission for a command in the script
		strings.HasPrefix(text, "ACL failure in script") // Valkey: the same
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
	return errors.New(text)
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
func (s *server) withAdvice(what meaning, err error) error {
	switch {
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

// errForeign is the error for a string that is not an entry. damage may say what is wrong with the entry's leases.
func errForeign(key, damage string) error {
	if damage != "" {
		damage = ": " + damage
	}
	return fmt.Errorf("redisstore: key %q: the value is not a lock of this store, or it is damaged%s: %w", key, damage, lockstore.ErrCorrupt)
}
