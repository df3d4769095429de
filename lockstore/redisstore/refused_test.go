package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// failure is the error of a call.
func failure[T any](_ T, err error) error { return err }

var someLease = lockstore.Lease{Key: "account/7", Owner: lockstore.NewOwner(), Fence: 7}

func check(ctx context.Context, s *lockstore.Store) error { return failure(s.Check(ctx)) }

// request sends a request of this kind for someLease.
func request(ctx context.Context, s *lockstore.Store, kind driver.Kind) error {
	r := driver.Request{Kind: kind, Owner: someLease.Owner, Fence: someLease.Fence, TTL: time.Minute, MaxHolders: 1, Result: driver.HiddenBytes("result")}
	if kind == driver.Acquire {
		r.Fence = 0
	}
	return failure(driverOf(s).Do(ctx, someLease.Key, r))
}

// everyRequest sends each request of the store once.
func everyRequest(ctx context.Context, s *lockstore.Store) map[string]error {
	errs := map[string]error{}
	for kind := driver.Inspect; kind <= driver.Revoke; kind++ {
		errs[kind.String()] = request(ctx, s, kind)
	}
	errs["put an address"] = driverOf(s).PutAddress(ctx, someLease.Key, someLease.Owner, driver.HiddenBytes("token"), time.Hour)
	errs["take an address"] = failure(driverOf(s).TakeAddress(ctx, someLease.Key, someLease.Owner))
	return errs
}

func newRequest(key string) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "test", ID: "1"}}
}

func requireUnavailable(t *testing.T, err error, cause string) {
	t.Helper()
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, cause)
	requireNoOther(t, err, lockstore.ErrUnavailable)
}

func requireUnknown(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	requireNoOther(t, err, nil)
}

func requireNoOther(t *testing.T, err, wanted error) {
	t.Helper()
	for _, other := range []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable} {
		if other != wanted {
			require.NotErrorIs(t, err, other)
		}
	}
}

// requireOutcome wants an error to say what became of the request, which one that only reads does not say.
func requireOutcome(t *testing.T, what, outcome string, err error) {
	t.Helper()
	if what == driver.Inspect.String() {
		outcome = "nothing was read"
	}
	require.ErrorContains(t, err, outcome)
}

// With each of these answers a server refuses a command before it does anything. Real servers give the others: see
// TestRefusalsOfRealServers, TestOutOfMemory and TestAReplicaAnswersNothing.
func TestRefusalsAreUnavailable(t *testing.T) {
	for name, answer := range map[string]string{
		"F38 loading":          "LOADING Redis is loading the dataset in memory",
		"F38 cannot save":      "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"F38 too many clients": "ERR max number of clients reached",
		"F38 protected":        "DENIED Redis is running in protected mode",
		"F38 no scripts here":  "ERR unknown command 'EVALSHA', with args beginning with:",
		"F44 wrong password":   "WRONGPASS invalid username-password pair or user is disabled.", // of another node's greeting
		"F40 moved":            "MOVED 3999 127.0.0.1:1",
		"F40 slot is moving":   "TRYAGAIN Multiple keys request during rehashing of slot",
		"F40 another slot":     "CROSSSLOT Keys in request don't hash to the same slot",
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t, "redis://"+fakeServer(t, func([]string) string { return "-" + answer + "\r\n" }))
			for what, err := range everyRequest(t.Context(), store) {
				t.Log(what, err)
				requireUnavailable(t, err, answer)
				requireOutcome(t, what, "not applied", err)
			}
			for _, owner := range strings.Fields(answer) { // which the error does not show
				_, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.Owner(owner), TTL: time.Minute})
				requireUnavailable(t, err, "not applied")
			}
		})
	}
}

// An owner may be any text, also a part of the error by which the client knows that the server has forgotten its
// scripts, or like a mark of the entry.
func TestOwnersLikeOtherTexts(t *testing.T) {
	s := openStore(t, "redis://"+miniredis.RunT(t).Addr())
	flush := func() { require.NoError(t, driverOf(s).client.ScriptFlush(t.Context()).Err()) }
	run := func(key string, owner lockstore.Owner) {
		flush()
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: key, Owner: owner, TTL: time.Minute})
		require.NoError(t, err, string(owner))
		flush()
		_, err = s.Renew(t.Context(), lease, time.Minute)
		require.NoError(t, err)
		flush()
		require.NoError(t, s.Release(t.Context(), lease))
	}
	for _, owner := range []lockstore.Owner{"S", "NO", "NOSCRIPT", "SCRIPT", "No", "matching", "ERR", "-", "0", "F"} {
		run("k"+string(owner), owner)
	}
	for _, owner := range []lockstore.Owner{"first", "D0000000000000007", "last"} {
		run("marks", owner)
	}
	require.ErrorIs(t, s.ResolveNoEffect(t.Context(), "marks", 7), lockstore.ErrLost)
}

// A server quotes the arguments of a command that it does not know: the owner of a script
// call, or the password of a greeting (M40).
func TestAnswersThatQuoteArguments(t *testing.T) {
	addr := fakeServer(t, func(command []string) string {
		return "-ERR unknown command `" + command[0] + "`, with args beginning with: `" + strings.Join(strings.Fields(strings.Join(command[1:], " ")), "`, `") + "`\r\n"
	})
	for _, user := range []string{"", "somebody:s3cret@"} {
		s := openStore(t, "redis://"+user+addr)
		errs := everyRequest(t.Context(), s)
		errs["Check"] = check(t.Context(), s)
		for what, err := range errs {
			requireUnavailable(t, err, "with args beginning with: …")
			require.NotContains(t, err.Error(), string(someLease.Owner[:5]), what)
			require.NotContains(t, err.Error(), "s3cret", what)
		}
	}
	for text, want := range map[string]string{
		"ERR unknown command `evalsha`, with args beginning with: `OWNER`, `1`": "ERR unknown command `evalsha`, with args beginning with: …",
		"ERR the proxy does not take OWNEROWNER and OWNEROWNER":                 "ERR the proxy does not take OWNE… and OWNE…",
		"ERR something else": "ERR something else",
	} {
		require.EqualError(t, withoutSecrets(fmt.Errorf("%w", fromServer(text)), "OWNEROWNER"), want)
	}
	require.NoError(t, withoutSecrets(nil, "OWNEROWNER"))
	require.Equal(t, context.Canceled, withoutSecrets(context.Canceled, "OWNEROWNER"))
}

// After every other answer of a server or a proxy the outcome is unknown.
func TestOtherAnswersAreUnknown(t *testing.T) {
	for name, reply := range map[string]string{
		"an error of a proxy":     "-ERR upstream failure\r\n",
		"a killed script":         "-ERR Error running script: Script killed by user with SCRIPT KILL...\r\n",
		"an empty string":         "$0\r\n\r\n",
		"nothing":                 "$-1\r\n",
		"a kind of its own":       "$1\r\nZ\r\n",
		"no fence":                "$1\r\nG\r\n",
		"a fence that is text":    "$5\r\nGa 60\r\n",
		"an answer to another":    "$3\r\nI 7\r\n",
		"a number":                ":1\r\n",
		"a list":                  "*1\r\n:1\r\n",
		"the end of a connection": "",
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t, "redis://"+fakeServer(t, func([]string) string { return reply }))
			for what, err := range everyRequest(t.Context(), store) {
				t.Log(what, err)
				requireUnknown(t, err)
				requireOutcome(t, what, "outcome unknown", err)
			}
		})
	}
}

// retryingClient is a client that sends a request again once.
func retryingClient(t *testing.T, addr string) redis.UniversalClient {
	return openWith(t, "redis://"+addr, func(opt *redis.UniversalOptions) { opt.MaxRetries, opt.MinRetryBackoff = 1, time.Millisecond })
}

// The first reply is lost, then the server does not know the script, then the EVAL is not
// written. The first attempt may still have been applied.
func TestUnwrittenEvalAfterALostReplyIsUnknown(t *testing.T) {
	for name, lost := range map[string]bool{"the first reply is lost": true, "nothing is lost": false} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int32
			addr := fakeServer(t, func([]string) string {
				if n.Add(1) == 1 && lost {
					return ""
				}
				return "-NOSCRIPT No matching script.\r\n"
			})
			client := retryingClient(t, addr)
			client.AddHook(hook(func(cmd redis.Cmder) error {
				if cmd.Name() == "eval" {
					return errHook
				}
				return nil
			}))
			_, err := storeOn(t, client).Acquire(t.Context(), newRequest("k"))
			require.ErrorIs(t, err, errHook)
			if lost {
				requireUnknown(t, err)
			} else {
				requireUnavailable(t, err, "")
			}
		})
	}
}

var errHook = errors.New("a hook lets no eval through")

// Real servers in states in which they refuse locks.
func TestRefusalsOfRealServers(t *testing.T) {
	for answer, args := range map[string][]string{
		"MASTERDOWN":  {"--replicaof", "127.0.0.1 1", "--replica-serve-stale-data", "no"},
		"NOREPLICAS":  {"--min-replicas-to-write", "1"},
		"CLUSTERDOWN": {"--cluster-enabled", "yes"}, // a node without slots
		"BUSY":        {"--lua-time-limit", "10"},
		"NOAUTH":      {"--requirepass", "s3cret"},
		"WRONGPASS":   {"--requirepass", "s3cret"},
		"NOPERM":      nil,
		"script":      nil, // the user may send scripts, and not all of their commands
	} {
		onBoth(t, "F38 F44 "+answer, func(t *testing.T, program string) {
			ctx, addr := t.Context(), testservers.Start(t, program, args...).Addr
			url := "redis://" + addr
			admin, done := openClient(t, url), make(chan error, 1)
			switch answer {
			case "BUSY":
				client := openClient(t, url)
				go func() { done <- client.Eval(context.Background(), "while true do end", nil).Err() }()
				require.Eventually(t, func() bool {
					err := admin.Ping(ctx).Err()
					return err != nil && strings.HasPrefix(err.Error(), "BUSY")
				}, 5*time.Second, 10*time.Millisecond)
			case "WRONGPASS":
				lockUnlock(t, openStore(t, "redis://:s3cret@"+addr))
				url = "redis://default:wr0ng@" + addr
			case "NOPERM", "script":
				rights := []any{"ACL", "SETUSER", "user", "on", ">wr0ng", "~*", "+get"}
				if answer == "script" {
					rights = append(rights, "+evalsha", "+eval", "+set")
				}
				require.NoError(t, admin.Do(ctx, rights...).Err())
				url = "redis://user:wr0ng@" + addr
			}
			for what, err := range everyRequest(ctx, openStore(t, url)) {
				t.Log(what, err)
				requireUnavailable(t, err, answer)
				require.NotContains(t, err.Error(), "wr0ng")
			}
			if answer == "BUSY" {
				require.NoError(t, admin.ScriptKill(ctx).Err())
				require.Error(t, <-done)
			}
		})
	}
}

// lockUnlock sends most requests once, from Acquire to Release.
func lockUnlock(t *testing.T, s *lockstore.Store) {
	t.Helper()
	lockUnlockKey(t, s, "account/7")
}

func lockUnlockKey(t *testing.T, s *lockstore.Store, key string) {
	t.Helper()
	ctx := t.Context()
	lease, err := s.Acquire(ctx, newRequest(key))
	require.NoError(t, err)
	_, err = s.Renew(ctx, lease, 2*time.Minute)
	require.NoError(t, err)
	requireHeld(t, s, key)
	_, err = s.Inspect(ctx, lease.Key)
	require.NoError(t, err)
	require.NoError(t, s.Release(ctx, lease))
	putAndTake(t, s, key)
}

// The client of a cluster sends a request again when the reply is lost. Other owners have
// had the key meanwhile, so the entry does not know the lease any more. ErrLost would say
// that the lease was lost before the release. A refusal says nothing of the lost request either, and a redirect does
// not answer it.
func TestReleaseRepeatedByTheClient(t *testing.T) {
	const redirect, lost = "-ASK 1 SELF\r\n", "$1\r\nL\r\n"
	type testCase struct {
		name    string
		asking  string   // the answer to ASKING; "" ends the connection
		answers []string // to the scripts
		want    error    // that the error is; nil for an unknown outcome
		again   bool     // the client may send the last request more than once
	}
	cases := []testCase{
		{name: "F25 repeated", answers: []string{"", lost}},
		{name: "F25 repeated at a server that has restarted", answers: []string{"", "-NOSCRIPT No matching script.\r\n", lost}},
		{name: "F25 redirected at first", asking: "+OK\r\n", answers: []string{redirect, lost}, want: lockstore.ErrLost},
		{name: "F25 not repeated", answers: []string{lost}, want: lockstore.ErrLost},
	}
	for _, refusal := range []string{"-LOADING x\r\n", "-CLUSTERDOWN x\r\n", "-TRYAGAIN x\r\n", "-READONLY x\r\n", "-OOM x\r\n", "-NOPERM x\r\n", lost} {
		// ASKING and the next command are applied, and both replies are lost.
		cases = append(cases, testCase{name: "F25 F40 F76 redirected, and then " + strings.Fields(refusal)[0], answers: []string{redirect, refusal}, again: true})
		if refusal != lost { // each time the server does nothing
			cases = append(cases, testCase{name: "F38 refused again and again, " + strings.Fields(refusal)[0], answers: []string{refusal}, want: lockstore.ErrUnavailable, again: true})
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var sent atomic.Int32
			s := openStore(t, fakeCluster(t, func(command []string) string {
				if command[0] == "asking" {
					return c.asking
				}
				assert.Contains(t, command[0], "eval", "for example COMMAND needs one more permission")
				return c.answers[min(int(sent.Add(1)), len(c.answers))-1]
			}))
			err := s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lockstore.NewOwner(), Fence: 7})
			require.Error(t, err)
			requireNoOther(t, err, c.want)
			require.True(t, c.want == nil || errors.Is(err, c.want))
			if c.again {
				require.GreaterOrEqual(t, int(sent.Load()), len(c.answers))
			} else {
				require.EqualValues(t, len(c.answers), sent.Load())
			}
		})
	}
}

// The user may not send ASKING. The next command may have been applied.
func TestRefusedAskingIsUnknown(t *testing.T) {
	const says = "NOPERM User u has no permissions to run the 'asking' command"
	s := openStore(t, "redis://"+fakeServer(t, func([]string) string { return "-" + says + "\r\n" }))
	for _, owner := range append(strings.Fields(says), "asking") {
		_, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.Owner(owner), TTL: time.Minute})
		requireUnknown(t, err)
	}
}
