package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	resp "github.com/alicebob/miniredis/v2/server"
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

// With some answers a server refuses a command before it does anything; real servers give the others of these: see
// TestRefusalsOfRealServers, TestOutOfMemory and TestAReplicaAnswersNothing. After each other answer of a server or a proxy the outcome is
// unknown.
func TestRefusalsAreUnavailable(t *testing.T) {
	const refused, unknown = "not applied", "outcome unknown"
	for name, c := range map[string]struct{ says, reply string }{
		"F38 loading":             {refused, "-LOADING Redis is loading the dataset in memory\r\n"},
		"F38 cannot save":         {refused, "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n"},
		"F38 too many clients":    {unknown, "-ERR max number of clients reached\r\n"}, // of a greeting
		"F38 no scripts here":     {refused, "-ERR unknown command 'EVALSHA', with args beginning with:\r\n"},
		"F40 moved":               {refused, "-MOVED 3999 127.0.0.1:1\r\n"},
		"F40 slot is moving":      {refused, "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"},
		"F40 another slot":        {refused, "-CROSSSLOT Keys in request don't hash to the same slot\r\n"},
		"F44 no right":            {refused, "-NOPERM User u has no permissions to run the 'evalsha' command\r\n"},
		"F38 protected":           {unknown, "-DENIED Redis is running in protected mode\r\n"},                    // of a greeting
		"F44 wrong password":      {unknown, wrongPassword},                                                       // the same, see TestLaterAttemptThatIsNotWritten
		"F44 ASKING":              {unknown, "-NOPERM User u has no permissions to run the 'asking' command\r\n"}, // the next command may have been applied
		"an error of a proxy":     {unknown, "-ERR upstream failure\r\n"},
		"a killed script":         {unknown, "-ERR Error running script: Script killed by user with SCRIPT KILL...\r\n"},
		"an empty string":         {unknown, "$0\r\n\r\n"},
		"nothing":                 {unknown, "$-1\r\n"},
		"a kind of its own":       {unknown, "$1\r\nZ\r\n"},
		"no fence":                {unknown, "$1\r\nG\r\n"},
		"a fence that is text":    {unknown, "$5\r\nGa 60\r\n"},
		"an answer to another":    {unknown, "$3\r\nI 7\r\n"},
		"a number":                {unknown, ":1\r\n"},
		"a list":                  {unknown, "*1\r\n:1\r\n"},
		"the end of a connection": {unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, "redis://"+fakeServer(t, func([]string) string { return c.reply }))
			errs := everyRequest(t.Context(), s)
			for _, err := range errs {
				require.True(t, c.says == unknown || strings.Contains(err.Error(), strings.TrimSpace(c.reply[1:])), err)
				require.Equal(t, name == "F40 moved", strings.Contains(err.Error(), "the server is in cluster mode; the URL needs cluster=true"))
			}
			for _, owner := range append(strings.Fields(c.reply), "asking") {
				_, errs[owner] = s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.Owner(owner), TTL: time.Minute})
				require.False(t, len(owner) > 6 && strings.Contains(errs[owner].Error(), owner), "it shows the owner: %v", errs[owner])
			}
			for what, err := range errs {
				says := c.says
				if what == driver.Inspect.String() { // it changes nothing
					says = "nothing was read"
				}
				require.ErrorContains(t, err, says)
				if c.says == refused {
					requireUnavailable(t, err, "")
				} else {
					requireUnknown(t, err)
				}
			}
		})
	}
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
}

// Real servers in states in which they refuse locks.
func TestRefusalsOfRealServers(t *testing.T) {
	onBoth(t, "F38 F44", func(t *testing.T, program string) {
		for answer, args := range map[string][]string{
			"MASTERDOWN":            {"--replicaof", "127.0.0.1 1", "--replica-serve-stale-data", "no"},
			"NOREPLICAS":            {"--min-replicas-to-write", "1"},
			"CLUSTERDOWN":           {"--cluster-enabled", "yes"}, // a node without slots
			"BUSY":                  {"--lua-time-limit", "10"},
			"NOAUTH":                {"--requirepass", "s3cret"},
			"WRONGPASS":             {"--requirepass", "s3cret"},
			"NOPERM":                nil,
			"permissions to access": nil,
			"script":                nil, // the user may send scripts, and not all of their commands
			"the server is not in cluster mode; remove cluster=true from the URL": nil,
		} {
			t.Run(answer, func(t *testing.T) {
				t.Parallel()
				ctx, addr := t.Context(), testservers.Start(t, program, args...).Addr
				url := "redis://" + addr
				admin := openClient(t, url)
				switch answer {
				case "BUSY":
					go openClient(t, url).Eval(context.Background(), "while true do end", nil) // it ends with the server
					require.Eventually(t, func() bool {
						err := admin.Ping(ctx).Err()
						return err != nil && strings.HasPrefix(err.Error(), "BUSY")
					}, 5*time.Second, 10*time.Millisecond)
				case "the server is not in cluster mode; remove cluster=true from the URL":
					url += "?cluster=true"
					requireUnavailable(t, check(ctx, openStore(t, url)), answer)
				case "WRONGPASS":
					lockUnlock(t, openStore(t, "redis://:s3cret@"+addr), "k")
					url = "redis://default:wr0ng@" + addr
				case "NOPERM", "script", "permissions to access":
					rights := []any{"ACL", "SETUSER", "user", "on", ">wr0ng", "~*", "+get"}
					if answer == "script" {
						rights = append(rights, "+evalsha", "+eval", "+set")
					} else if answer != "NOPERM" {
						rights = append(rights, "+evalsha", "+eval", "resetkeys", "~other:*")
					}
					require.NoError(t, admin.Do(ctx, rights...).Err())
					url = "redis://user:wr0ng@" + addr
				}
				for what, err := range everyRequest(ctx, openStore(t, url)) {
					requireUnavailable(t, err, answer)
					require.NotContains(t, err.Error(), "wr0ng", what)
				}
			})
		}
	})
}

// lockUnlock sends most requests once, from Acquire to Release.
func lockUnlock(t *testing.T, s *lockstore.Store, key string) {
	t.Helper()
	ctx := t.Context()
	lease, err := s.Acquire(ctx, newRequest(key))
	require.NoError(t, err)
	require.NoError(t, failure(s.Renew(ctx, lease, 2*time.Minute)))
	requireHeld(t, s, key)
	require.NoError(t, failure(s.Inspect(ctx, lease.Key)))
	require.NoError(t, s.Release(ctx, lease))
	require.NoError(t, driverOf(s).PutAddress(ctx, key, lease.Owner, driver.HiddenBytes("token"), time.Hour))
	address, err := driverOf(s).TakeAddress(ctx, key, lease.Owner)
	require.NoError(t, err)
	require.Equal(t, "token", string(address))
}

// The client of a cluster sends a request again when the reply is lost, and so may another one. Other owners have
// had the key meanwhile, so the entry does not know the lease any more. ErrLost would say
// that the lease was lost before the release. A refusal says nothing of the lost request either, and a redirect does
// not answer it.
func TestReleaseRepeatedByTheClient(t *testing.T) {
	const redirect, forgotten, lost = "-ASK 1 SELF\r\n", "-NOSCRIPT No matching script.\r\n", "$1\r\nL\r\n"
	type testCase struct {
		name    string
		asking  string   // the answer to ASKING; "" ends the connection
		answers []string // to the scripts
		want    error    // that the error is; nil for an unknown outcome
		again   bool     // the client may send the last request more than once
		noEval  bool     // the client does not write it
	}
	cases := []testCase{
		{name: "F25 repeated", answers: []string{"", lost}},
		{name: "F25 repeated at a server that has restarted", answers: []string{"", forgotten, lost}},
		{name: "F25 not repeated at a server that has restarted", answers: []string{"", forgotten}, noEval: true},
		{name: "not written", answers: []string{forgotten}, want: lockstore.ErrUnavailable, noEval: true},
		{name: "F25 redirected at first", asking: "+OK\r\n", answers: []string{redirect, lost}, want: lockstore.ErrLost},
		{name: "F25 not repeated", answers: []string{lost}, want: lockstore.ErrLost},
	}
	for _, refusal := range []string{"-LOADING x\r\n", "-CLUSTERDOWN x\r\n", "-TRYAGAIN x\r\n", "-READONLY x\r\n", "-OOM x\r\n", "-NOPERM No permissions to access a key\r\n", lost} {
		// ASKING and the next command are applied, and both replies are lost.
		cases = append(cases, testCase{name: "F25 F40 F76 redirected, and then " + strings.Fields(refusal)[0], answers: []string{redirect, refusal}, again: true})
		if refusal != lost { // each time the server does nothing
			cases = append(cases, testCase{name: "F38 refused again and again, " + strings.Fields(refusal)[0], answers: []string{refusal}, want: lockstore.ErrUnavailable, again: true})
		}
	}
	errHook := errors.New("a hook lets no eval through")
	for _, c := range cases {
		for _, cluster := range []bool{true, false} {
			if !cluster && (c.again || c.asking != "") {
				continue
			}
			t.Run(fmt.Sprint(c.name, ", cluster ", cluster), func(t *testing.T) {
				s, sent := answering(t, cluster, c.asking, c.answers...)
				driverOf(s).client.AddHook(hook(func(_ context.Context, cmd redis.Cmder) error {
					if c.noEval && cmd.Name() == "eval" {
						return errHook
					}
					return nil
				}))
				err := s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lockstore.NewOwner(), Fence: 7})
				require.Error(t, err)
				requireNoOther(t, err, c.want)
				require.True(t, c.want == nil || errors.Is(err, c.want))
				require.Equal(t, c.noEval, errors.Is(err, errHook))
				if c.again {
					require.GreaterOrEqual(t, int(sent.Load()), len(c.answers))
				} else {
					require.EqualValues(t, len(c.answers), sent.Load())
				}
			})
		}
	}
}

// The reply to the first attempt is lost, and the client does not write the next one: there are no credentials for its connection, or the
// server refuses the greeting. That says nothing of the first attempt.
func TestLaterAttemptThatIsNotWritten(t *testing.T) {
	gone := fmt.Errorf("%w: no credentials: %w", lockstore.ErrUnavailable, context.DeadlineExceeded)
	for name, c := range map[string]struct {
		client      func(t *testing.T, addr string, credentials func(context.Context) (string, string, error)) redis.UniversalClient
		command     string // of the second greeting; "" if its credentials are missing
		refusal     string
		alsoMatches error
	}{
		"F25 F71 no credentials":                     {client: ofThisPackage, alsoMatches: context.DeadlineExceeded},
		"F25 F44 wrong password":                     {client: ofThisPackage, command: "auth", refusal: wrongPassword},
		"F25 F44 wrong password, the user's client":  {client: ofTheUser, command: "auth", refusal: wrongPassword},
		"F25 F44 a greeting without rights":          {client: ofTheUser, command: "select", refusal: "-NOPERM User u has no permissions to run the 'select' command\r\n"},
		"F25 F44 a greeting that needs the password": {client: ofTheUser, command: "select", refusal: "-NOAUTH Authentication required.\r\n"},
		"F25 F38 a greeting that is refused":         {client: ofTheUser, command: "select", refusal: "-BUSY Redis is busy running a script.\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int32
			addr := fakeCluster(t, func(command []string) string {
				switch {
				case strings.HasPrefix(command[0], "eval"):
					sent.Add(1)
					return ""
				case command[0] == c.command && sent.Load() > 0:
					return c.refusal
				}
				return "+OK\r\n"
			})
			client := c.client(t, addr, func(context.Context) (string, string, error) {
				if c.command == "" && sent.Load() > 0 {
					return "", "", gone
				}
				return "user", "password", nil
			})
			_, err := storeOn(t, client).Acquire(t.Context(), newRequest("k"))
			requireUnknown(t, err)
			require.ErrorContains(t, err, cmp.Or(strings.TrimSpace(strings.TrimPrefix(c.refusal, "-")), gone.Error()))
			require.True(t, c.alsoMatches == nil || errors.Is(err, c.alsoMatches))
			require.EqualValues(t, 1, sent.Load())
		})
	}
}

// ofThisPackage is a client that repeats a request because its server is in cluster mode.
func ofThisPackage(t *testing.T, addr string, credentials func(context.Context) (string, string, error)) redis.UniversalClient {
	client, err := ClientWithCredentials(config(t, "redis://"+addr+"?cluster=true"), credentials)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// ofTheUser is a client with go-redis's settings, which repeats a request.
func ofTheUser(t *testing.T, addr string, credentials func(context.Context) (string, string, error)) redis.UniversalClient {
	client := redis.NewClient(&redis.Options{Addr: addr, DB: 1, CredentialsProviderContext: credentials})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

const wrongPassword = "-WRONGPASS invalid username-password pair or user is disabled.\r\n"

// The first attempt of a Revoke is applied and its reply is lost. When the client sends it again, the lease is over. ErrLost would say that
// the Revoke came too late.
func TestRevokeRepeatedAfterTheLease(t *testing.T) {
	for name, end := range map[string]func(*miniredis.Miniredis, *lockstore.Store, lockstore.Lease) error{
		"F25 released": func(_ *miniredis.Miniredis, s *lockstore.Store, l lockstore.Lease) error {
			return s.Release(context.Background(), l)
		},
		"F25 at its end": func(m *miniredis.Miniredis, s *lockstore.Store, l lockstore.Lease) error {
			defer m.SetTime(time.Now().Add(time.Hour))
			return failure(s.Renew(context.Background(), l, time.Minute))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMini(t)
				other := storeOn(t, openWith(t, mini, dials(m)))
				lease := acquire(t, other, "k")
				var lose atomic.Bool
				s := storeOn(t, openWith(t, mini, func(opt *redis.UniversalOptions) {
					opt.MaxRetries = 1
					opt.Dialer = func(context.Context, string, string) (net.Conn, error) {
						if lose.Swap(false) {
							assert.ErrorIs(t, end(m, other, lease), lockstore.ErrLost, "the first attempt was applied")
						}
						conn, err := m.Dial()
						return &lossyConn{Conn: conn, lose: &lose}, err
					}
				}))
				require.NoError(t, failure(s.Inspect(t.Context(), "k")))
				lose.Store(true)
				requireUnknown(t, failure(s.Revoke(t.Context(), lockstore.RevokeRequest{Key: "k", Fence: lease.Fence})))
				require.False(t, lose.Load(), "the client has sent it again")
			})
		})
	}
}

// answering is a store whose client sends a request again, and whose server answers scripts so; with the last answer again and
// again. "" ends the connection, also in answer to ASKING.
func answering(t *testing.T, cluster bool, asking string, answers ...string) (s *lockstore.Store, sent *atomic.Int32) {
	sent = &atomic.Int32{}
	addr := fakeCluster(t, func(command []string) string {
		if command[0] == "asking" {
			return asking
		}
		assert.Contains(t, command[0], "eval", "for example COMMAND needs one more permission")
		return answers[min(int(sent.Add(1)), len(answers))-1]
	})
	if cluster {
		return openStore(t, "redis://"+addr+"?cluster=true"), sent
	}
	return storeOn(t, openWith(t, "redis://"+addr, func(opt *redis.UniversalOptions) {
		opt.MaxRetries, opt.MinRetryBackoff = 1, time.Millisecond
	})), sent
}

// A request that was sent twice, so that its outcome is unknown, names the parked owners all the same.
func TestWakeBesideAnError(t *testing.T) {
	s, _ := answering(t, false, "", "", "$10\r\nL\n\x02sleeper\r\n")
	a, err := s.Driver().Do(t.Context(), "k", driver.Request{Kind: driver.Release, Owner: "o", Fence: 7})
	requireUnknown(t, err)
	require.Equal(t, []driver.Owner{"sleeper"}, a.Wake)
}

// The client sends a request again whose reply was lost, and finds nothing.
func TestAddressWhoseReplyIsLost(t *testing.T) {
	s, _ := answering(t, false, "", "", "$1\r\nA\r\n")
	requireUnknown(t, failure(driverOf(s).TakeAddress(t.Context(), "k", "o")))
	address, err := driverOf(s).TakeAddress(t.Context(), "k", "o")
	require.NoError(t, err)
	require.Nil(t, address)
}

// fakeServer is a server with the answers of a test: answer gets the words of a command and
// returns the raw reply; "" ends the connection.
func fakeServer(t testing.TB, answer func(command []string) string) (addr string) {
	s, err := resp.NewServer("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(s.Close)
	s.SetPreHook(func(c *resp.Peer, name string, args ...string) bool {
		if name == "HELLO" {
			return false // it is refused, and the client goes on without it
		}
		reply := ""
		if !c.Closed() { // or this was sent with a command that ended the connection
			reply = answer(append([]string{strings.ToLower(name)}, args...))
		}
		if reply == "" {
			c.Close()
		}
		c.WriteRaw(reply)
		return true
	})
	return s.Addr().String()
}

// fakeCluster is a fakeServer that has all slots of a cluster. SELF in an answer is its address.
func fakeCluster(t testing.TB, answer func(command []string) string) (addr string) {
	addr = fakeServer(t, func(command []string) string {
		if command[0] == "cluster" {
			host, port, _ := strings.Cut(addr, ":")
			return fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$%d\r\n%s\r\n:%s\r\n", len(host), host, port)
		}
		return strings.ReplaceAll(answer(command), "SELF", addr)
	})
	return addr
}
