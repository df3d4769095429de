package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
)

// binary is lockctl as it is built for users.
var binary string

func TestMain(m *testing.M) {
	// Most tests wait for a store and for the time of a lease, not for a processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testservers.HeedSignals()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "lockctl")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "lockctl")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the functions, whose compiled packages it shares
		if out, err := build.CombinedOutput(); err != nil {
			panic(err.Error() + string(out))
		}
		watchdog.Start()
		return m.Run()
	}())
}

// site is a store that lockctl and the test use.
type site struct {
	t     *testing.T
	url   string
	store *lockstore.Store
}

func at(t *testing.T, storeURL string) site {
	t.Helper()
	store, err := stores.Open(t.Context(), storeURL, func(string) string { return "" })
	require.NoError(t, err)
	return site{t, storeURL, store}
}

// sites are the stores that the commands are tested on. To lockctl Valkey is Redis.
func sites(t *testing.T) map[string]func(t *testing.T) site {
	return map[string]func(t *testing.T) site{
		"Redis": func(t *testing.T) site { return at(t, "redis://"+testservers.Redis(t)) },
		"DynamoDB": func(t *testing.T) site {
			u := &url.URL{Scheme: "dynamodb", Host: "locks-" + strconv.FormatInt(time.Now().UnixNano(), 36),
				RawQuery: url.Values{"endpoint": {testservers.DynamoDB(t)}, "region": {"eu-central-1"}}.Encode()}
			makeTable(t, u)
			return at(t, u.String())
		},
		"ZooKeeper": func(t *testing.T) site {
			p := at(t, "zookeeper://"+testservers.ZooKeeper(t).Addr)
			t.Cleanup(func() { assert.NoError(t, p.store.Close()) })
			return p
		},
		"PostgreSQL": func(t *testing.T) site {
			p := at(t, testservers.PostgreSQL(t)+"&table=ops.locks")
			schema := p.lockctl("schema", "--table", "ops.locks")
			require.Equal(t, 0, schema.status, schema.err)
			db, err := sql.Open("postgres", strings.Split(p.url, "&table=")[0])
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), "CREATE SCHEMA ops; CREATE ROLE looker LOGIN; GRANT USAGE ON SCHEMA ops TO looker;"+schema.out)
			require.NoError(t, err)
			require.NoError(t, db.Close())
			return p
		},
	}
}

// result is how a lockctl has ended.
type result struct {
	status   int
	out, err string
}

func (p site) command(args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "LOCK_URL="+p.url, "AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local", "AWS_PROFILE=")
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	return cmd, &out, &err
}

func (p site) lockctl(args ...string) result {
	p.t.Helper()
	cmd, out, err := p.command(args...)
	_ = cmd.Run() // the test looks at the status
	require.NotNil(p.t, cmd.ProcessState, "%v", cmd.Err)
	return result{cmd.ProcessState.ExitCode(), out.String(), err.String()}
}

// refuses is lockctl for what ends with a status and an error.
func (p site) refuses(t *testing.T, status int, says string, args ...string) {
	t.Helper()
	r := p.lockctl(args...)
	assert.Equal(t, status, r.status, "%q: %s", args, r.err)
	assert.Contains(t, r.err, says)
}

// take acquires a key for a holder with a name.
func (p site) take(key, name string) lockstore.Lease {
	p.t.Helper()
	lease, err := p.store.Acquire(p.t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute,
		HolderInfo: lockstore.HolderInfo{Name: name, ID: "4f1c", Since: time.Now()}})
	require.NoError(p.t, err)
	return lease
}

func (p site) renew(lease lockstore.Lease) error {
	_, err := p.store.Renew(p.t.Context(), lease, time.Minute)
	return err
}

// shown is what show and list print as JSON.
type shown struct {
	Key, State, Fence string
	Holder            struct{ Name, ID string }
	LeftMs            int64
	Waiting           int
	MaxHolders        int
	Holders           []shown
	Seat              int
	End               bool
	Scanned, Requests int
}

func read(t *testing.T, text string) (all []shown) {
	t.Helper()
	for line := range strings.Lines(text) {
		var s shown
		require.NoError(t, json.Unmarshal([]byte(line), &s), line)
		all = append(all, s)
	}
	return all
}

func fence(l lockstore.Lease) string { return strconv.FormatInt(int64(l.Fence), 10) }

func TestOperators(t *testing.T) {
	for name, open := range sites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t)
			t.Run("show", p.testShow)
			t.Run("list", p.testList)
			t.Run("revoke", p.testRevoke)
			if name != "Redis" { // what a store answers is in its suite
				return
			}
			t.Run("revoke in a cooldown", p.testRevokeInCooldown)
			t.Run("several holders", p.testSeveral)
			t.Run("resolve", p.testResolve)
			t.Run("resolve, and the repeat", p.testResolveRepeats)
		})
	}
}

func (p site) testShow(t *testing.T) {
	lease := p.take("show/7", "withdraw")
	r := p.lockctl("show", "show/7")
	assert.Equal(t, 0, r.status, r.err)
	assert.Regexp(t, `^KEY      show/7\nSTATE    held\nHOLDER   withdraw \(4f1c\)\nSINCE    \S+Z\nAGE      \d+s\nLEFT     (1m\d+s|\d+s)\nRENEWED  not seen yet\nFENCE    `+fence(lease)+`\nWAITING  0\n$`, r.out)
	r = p.lockctl("show", "--json", "show/7")
	s := read(t, r.out)[0]
	assert.Equal(t, []any{"show/7", "held", fence(lease), "withdraw", "4f1c"}, []any{s.Key, s.State, s.Fence, s.Holder.Name, s.Holder.ID})
	assert.Positive(t, s.LeftMs)
	assert.NotContains(t, r.out, string(lease.Owner), "the owner is a secret")
	assert.Equal(t, result{0, "", ""}, p.lockctl("show", "-q", "show/7"))
	assert.Equal(t, result{1, "", ""}, p.lockctl("show", "-q", "show/free"))
	assert.Equal(t, "free", read(t, p.lockctl("show", "--json", "show/free").out)[0].State)
	assert.Equal(t, exit.Usage, p.lockctl("show", "").status)
	assert.Equal(t, exit.Usage, p.lockctl("show").status)
	require.NoError(t, p.store.Release(t.Context(), lease))
}

func (p site) testList(t *testing.T) {
	for _, key := range []string{"list/a", "list/b*", "list/c"} {
		p.take(key, "lister")
	}
	free := p.take("list/free", "lister")
	require.NoError(t, p.store.Release(t.Context(), free))
	keys := func(r result) (keys []string, end bool) {
		require.Equal(t, 0, r.status, r.err)
		for _, s := range read(t, r.out) {
			if s.End {
				assert.Positive(t, s.Requests)
				return keys, true
			}
			keys = append(keys, s.Key)
		}
		return keys, false
	}
	r := p.lockctl("list", "--json", "list/")
	found, end := keys(r)
	assert.ElementsMatch(t, []string{"list/a", "list/b*", "list/c"}, found)
	assert.True(t, end)
	assert.Empty(t, r.err, "a note is for a terminal")
	for _, args := range [][]string{{}, {"--json"}} {
		assert.Equal(t, exit.No, p.lockctl(append([]string{"list", "--longer-than", "0.001", "list/"}, args...)...).status, "cron is told")
	}
	assert.Equal(t, result{0, "", ""}, p.lockctl("list", "--longer-than", "1h", "list/"))
	found, _ = keys(p.lockctl("list", "--json", "list/b*"))
	assert.Equal(t, []string{"list/b*"}, found)
	found, _ = keys(p.lockctl("list", "--json", "--state", "free", "list/"))
	assert.Equal(t, []string{"list/free"}, found)
	found, end = keys(p.lockctl("list", "--json", "--limit", "2", "list/"))
	assert.Len(t, found, 2)
	assert.False(t, end, "the listing is not complete")
	r = p.lockctl("list", "list/a")
	assert.Regexp(t, `(?s)^KEY .*\nlist/a +held .*lister \(4f1c\)\n$`, r.out)
	for want, args := range map[string][]string{
		"reading about ": {"list", "list/*"},
		"lockctl: no key that begins with \"list/*\" has the state held, revoked or in doubt": {"list", "list/*"},
		"lockctl: no key that begins with \"list/\" has the state in doubt":                   {"list", "--json", "--state", "in doubt", "list/"},
		" requests sent, 3 keys found": {"list", "list/"},
	} {
		cmd, out, _ := p.command(args...)
		user, terminal, err := pty.Open()
		require.NoError(t, err)
		said := make(chan string)
		go func() {
			text, _ := io.ReadAll(user) // ends with an error when the terminal is closed
			said <- string(text)
		}()
		cmd.Stderr = terminal
		require.NoError(t, cmd.Run())
		require.NoError(t, terminal.Close())
		assert.Contains(t, <-said, want)
		assert.Equal(t, want == " requests sent, 3 keys found", strings.Contains(out.String(), "KEY"))
		require.NoError(t, user.Close())
	}
	assert.Equal(t, exit.Usage, p.lockctl("list", "--state", "open").status)
	assert.Equal(t, exit.Usage, p.lockctl("list", "--rate", "0").status)
}

func (p site) testRevoke(t *testing.T) {
	lease := p.take("revoke", "hangs")
	for want, args := range map[string][]string{
		"standard input is no terminal; want --fence": {"revoke", "revoke"},
		"--open-at-once wants --fence":                {"revoke", "--open-at-once", "--yes", "revoke"},
		"want --yes":                                  {"revoke", "--open-at-once", "--fence", fence(lease), "revoke"},
		"--fence is -1":                               {"revoke", "--fence", "-1", "revoke"},
	} {
		p.refuses(t, exit.Usage, want, args...)
	}
	p.refuses(t, exit.Busy, "changed hands", "revoke", "--fence", "7", "revoke")
	p.refuses(t, exit.No, "is not held", "revoke", "--fence", "7", "revoke/free")
	require.NoError(t, p.renew(lease), "nothing was done")
	next := lockstore.NewOwner()
	_, err := p.store.Acquire(t.Context(), lockstore.Request{Key: "revoke", Owner: next, TTL: time.Minute, JoinQueue: true})
	require.ErrorIs(t, err, lockstore.ErrRefused)
	waiting := func() int { return read(t, p.lockctl("show", "--json", "revoke").out)[0].Waiting }
	assert.Equal(t, 1, waiting())

	r := p.lockctl("revoke", "--fence", fence(lease), "revoke")
	assert.Equal(t, 0, r.status, r.err)
	assert.Equal(t, 1, waiting(), "who waits keeps its place")
	require.NoError(t, p.store.Leave(t.Context(), "revoke", next))
	assert.Regexp(t, `^the lease of "revoke" is revoked: hangs \(4f1c\) can renew it no more\. The key opens within \S+, at \S+Z\.\n$`, r.out)
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)
	s := read(t, p.lockctl("show", "--json", "revoke").out)[0]
	assert.Equal(t, "revoked", s.State)
	assert.Regexp(t, `^revoked by .+@.+: was hangs \(4f1c\)$`, s.Holder.Name)
	assert.Equal(t, 0, p.lockctl("show", "-q", "revoke").status)
	p.refuses(t, exit.Busy, "busy: revoked by ", "run", "-n", "revoke", "--", "true")

	started := p.take("revoke/started", "pay")
	require.NoError(t, p.store.MarkStarted(t.Context(), started))
	assert.Regexp(t, `can renew it no more\. Its work has started, so the key is in doubt within \S+, at \S+Z\.\n$`, p.lockctl("revoke", "--fence", fence(started), "revoke/started").out)
	p.refuses(t, exit.No, "; its work has started, so the key is in doubt within ", "revoke", "--fence", fence(started), "revoke/started")

	p.refuses(t, exit.No, "was revoked already", "revoke", "--fence", fence(lease), "revoke")
	r = p.lockctl("revoke", "--json", "--open-at-once", "--yes", "--fence", fence(lease), "revoke")
	assert.Equal(t, 0, r.status, r.err)
	assert.Positive(t, read(t, r.out)[0].LeftMs, "for so long two may be at work")
	assert.Equal(t, 0, p.lockctl("run", "-n", "revoke", "--", "true").status)
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)
}

// A cooldown has no lease.
func (p site) testRevokeInCooldown(t *testing.T) {
	lease := p.take("cooldown", "effect")
	require.NoError(t, p.store.Complete(t.Context(), lease, nil, time.Minute))
	for _, args := range [][]string{{}, {"--open-at-once", "--yes"}} {
		r := p.lockctl(append([]string{"revoke", "--fence", fence(lease), "cooldown"}, args...)...)
		assert.Equal(t, exit.No, r.status, r.err)
		assert.Regexp(t, `^lockctl: "cooldown" has the state cooldown, has no lease to revoke, and opens within (1m\ds|\d\ds)\n$`, r.err)
	}
}

// Each of the holders of a key is seen, and one of them is revoked.
func (p site) testSeveral(t *testing.T) {
	take := func(name string) lockstore.Lease {
		lease, err := p.store.Acquire(t.Context(), lockstore.Request{Key: "several/k", Owner: lockstore.NewOwner(), TTL: time.Minute, MaxHolders: 3,
			HolderInfo: lockstore.HolderInfo{Name: name, ID: "4f1c", Since: time.Now()}})
		require.NoError(t, err)
		return lease
	}
	a, b := take("first"), take("second")
	assert.Regexp(t, `(?s)^KEY      several/k\nSTATE    held\nHOLDER   2 of 3\nWAITING  0\n\nSEAT     0\n.*HOLDER   first \(4f1c\)\n.*FENCE    `+fence(a)+`\n\nSEAT     1\n.*HOLDER   second \(4f1c\)\n.*FENCE    `+fence(b)+`\n$`, p.lockctl("show", "several/k").out)
	both := `2 of 3\n.* +held .*  seat 0: first \(4f1c\)\n.* +held .*  seat 1: second \(4f1c\)\n`
	assert.Regexp(t, `^KEY .*\nseveral/k +held .*`+both+`$`, p.lockctl("list", "several/").out)
	assert.Regexp(t, `^TIME .*\n\S+  held .*`+both, p.lockctl("watch", "--until", "held", "several/k").out)
	s := read(t, p.lockctl("show", "--json", "several/k").out)[0]
	require.Len(t, s.Holders, 2)
	assert.Equal(t, 3, s.MaxHolders)
	assert.Equal(t, []any{"second", fence(b), 1}, []any{s.Holders[1].Holder.Name, s.Holders[1].Fence, s.Holders[1].Seat})

	p.refuses(t, exit.Busy, `no holder of "several/k" has the fence 7; nothing was done. Those who hold it: first (4f1c), seat 0, fence `+fence(a)+`; second (4f1c), seat 1, fence `+fence(b)+"\n", "revoke", "--fence", "7", "several/k")
	r := p.lockctl("revoke", "--fence", fence(a), "several/k")
	assert.Equal(t, 0, r.status, r.err)
	assert.Regexp(t, `^the lease of "several/k" with seat 0 is revoked: first \(4f1c\) can renew it no more\. Its seat is free within \S+, at \S+Z\. Who else holds the key: second \(4f1c\), seat 1, fence `+fence(b)+`\.\n$`, r.out)
	require.ErrorIs(t, p.renew(a), lockstore.ErrLost)
	require.NoError(t, p.renew(b))
	r = p.lockctl("revoke", "--fence", fence(a), "several/k")
	assert.Equal(t, exit.No, r.status)
	assert.Regexp(t, `was revoked already: "?revoked by .*; its seat is free within `, r.err)
	r = p.lockctl("revoke", "--json", "--open-at-once", "--yes", "--fence", fence(a), "several/k")
	assert.Equal(t, 0, r.status, r.err)
	s = read(t, r.out)[0]
	assert.Equal(t, fence(a), s.Fence)
	assert.Positive(t, s.LeftMs)
	require.Len(t, s.Holders, 1)
	assert.Equal(t, fence(b), s.Holders[0].Fence)
	assert.Zero(t, take("third").Seat, "the seat is free")
	r = p.lockctl("revoke", "--open-at-once", "--yes", "--fence", fence(b), "several/k")
	assert.Regexp(t, `^seat 1 of "several/k" is free\. second \(4f1c\) may be at work for \S+ more, until \S+Z\. Who else holds the key: third \(4f1c\), seat 0, fence \d+\.\n$`, r.out)
}

// starts takes a key for a second, and starts its work.
func (p site) starts(t *testing.T, key string) lockstore.Lease {
	t.Helper()
	lease, err := p.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Second,
		HolderInfo: lockstore.HolderInfo{Name: "pay", ID: "7a", Since: time.Now()}})
	require.NoError(t, err)
	require.NoError(t, p.store.MarkStarted(t.Context(), lease))
	return lease
}

// awaitDoubt waits until the key is in doubt.
func (p site) awaitDoubt(t *testing.T, key string) {
	t.Helper()
	r := p.lockctl("watch", "--until", "in doubt", key)
	require.Equal(t, 0, r.status, r.err)
}

func (p site) testResolve(t *testing.T) {
	state := func(key string) string { return read(t, p.lockctl("show", "--json", key).out)[0].State }
	completed := p.take("resolve/completed", "pay")
	require.NoError(t, p.store.Complete(t.Context(), completed, []byte("a secret result"), time.Minute))
	r := p.lockctl("show", "resolve/completed")
	assert.Regexp(t, `^KEY      resolve/completed\nSTATE    completed\nHOLDER   pay \(4f1c\)\nSINCE    \S+Z\nAGE      \d+s\nLEFT     (1m\d+s|\d+s)\nFENCE    `+fence(completed)+`\nWAITING  0\n$`, r.out)
	assert.NotContains(t, r.out+p.lockctl("show", "--json", "resolve/completed").out, "secret")
	assert.Equal(t, result{1, "", ""}, p.lockctl("show", "-q", "resolve/completed"))
	p.refuses(t, exit.No, "has the state completed, has no lease to revoke", "revoke", "--fence", fence(completed), "resolve/completed")
	p.refuses(t, exit.No, `"resolve/completed" is not in doubt, it has the state completed; nothing was done`, "resolve", "--fence", fence(completed), "resolve/completed", "no-effect")

	live := p.take("resolve/live", "pay")
	require.NoError(t, p.store.MarkStarted(t.Context(), live))
	p.refuses(t, exit.Busy, "is held by pay (4f1c)", "resolve", "--fence", fence(live), "resolve/live", "no-effect")
	p.refuses(t, exit.No, "cannot be opened at once: its work has started", "revoke", "--open-at-once", "--yes", "--fence", fence(live), "resolve/live")
	require.NoError(t, p.renew(live), "nothing was done")

	effect, noEffect, revoked := p.starts(t, "resolve/effect"), p.starts(t, "resolve/no-effect"), p.starts(t, "resolve/revoked")
	r = p.lockctl("revoke", "--wait", "--fence", fence(revoked), "resolve/revoked")
	if r.status == exit.No { // the machine was slow: the lease was over before the revoke
		assert.Contains(t, r.err, "in doubt")
	}
	for _, key := range []string{"resolve/effect", "resolve/no-effect", "resolve/revoked"} {
		p.awaitDoubt(t, key)
	}
	r = p.lockctl("show", "resolve/effect")
	assert.Regexp(t, `^KEY      resolve/effect\nSTATE    in doubt\nHOLDER   pay \(7a\)\nSINCE    \S+Z\nAGE      \d+s\nFENCE    `+fence(effect)+`\nWAITING  0\n$`, r.out)
	assert.Equal(t, result{0, "", ""}, p.lockctl("show", "-q", "resolve/effect"))
	r = p.lockctl("list", "--json", "--state", "in doubt", "resolve/")
	assert.Len(t, read(t, r.out), 4, "three keys and the end: %s", r.out)
	r = p.lockctl("list", "--json", "--state", "completed", "resolve/")
	assert.Len(t, read(t, r.out), 2, "a key and the end: %s", r.out)
	p.refuses(t, exit.No, "is in doubt", "revoke", "--fence", fence(effect), "resolve/effect")
	p.refuses(t, exit.InDoubt, "lockctl: in doubt: nobody knows how the work of pay (7a)", "run", "-n", "resolve/effect", "--", "true")
	p.refuses(t, exit.InDoubt, "lockctl: in doubt: nobody knows how the work of pay (7a)", "run", "-E", "0", "resolve/effect", "--", "true")
	p.refuses(t, exit.Done, "lockctl: done already: the work was done by pay (4f1c)", "run", "-n", "resolve/completed", "--", "true")
	p.refuses(t, 7, "lockctl: done already: the work was done by pay (4f1c)", "run", "-n", "-E", "7", "resolve/completed", "--", "true")

	p.refuses(t, exit.No, "is in doubt with the fence "+fence(effect)+", and not with 7", "resolve", "--fence", "7", "resolve/effect", "effect")
	for _, text := range []string{ // a second time is no error
		"\"resolve/effect\" is resolved: its work had its effect, and does not run again for 1h0m0s.\n",
		"\"resolve/effect\" was completed before, by lockctl resolve or by the work itself. Its result, and for how long it is stored, stay as they are.\n",
	} {
		r = p.lockctl("resolve", "--fence", fence(effect), "--result-time", "1h", "resolve/effect", "effect")
		assert.Equal(t, result{0, text, ""}, r)
		r = p.lockctl("resolve", "--json", "--fence", fence(noEffect), "resolve/no-effect", "no-effect")
		assert.Equal(t, 0, r.status, r.err)
		assert.JSONEq(t, `{"key":"resolve/no-effect","fence":"`+fence(noEffect)+`","resolved":"no-effect"}`, r.out)
	}
	r = p.lockctl("resolve", "--json", "--fence", fence(effect), "resolve/effect", "effect")
	assert.JSONEq(t, `{"key":"resolve/effect","fence":"`+fence(effect)+`","resolved":"effect","completedBefore":true}`, r.out)
	_, err := p.store.Acquire(t.Context(), lockstore.Request{Key: "resolve/effect", Owner: lockstore.NewOwner(), TTL: time.Minute})
	refusal, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	assert.InDelta(t, time.Hour.Seconds(), refusal.Remaining.Seconds(), 60)
	assert.Equal(t, "free", state("resolve/no-effect"))
	assert.Equal(t, 0, p.lockctl("run", "-n", "resolve/no-effect", "--", "true").status)
	assert.Equal(t, 0, p.lockctl("resolve", "--fence", fence(revoked), "resolve/revoked", "effect").status)
	assert.Equal(t, "completed", state("resolve/revoked"))
}

type receipt struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

// charges is a function that must not charge twice. It never runs here: the key of each order is completed.
func (p site) charges(t *testing.T, version string) func(context.Context, string) (receipt, error) {
	t.Helper()
	g, err := guard.New(p.store, guard.Options{})
	require.NoError(t, err)
	once, err := idempotency.New(g, idempotency.Options{InDoubt: idempotency.AtMostOnce, Version: version})
	require.NoError(t, err)
	return idempotency.Wrap(once,
		func(_ context.Context, order string) (idempotency.Call, error) {
			call := idempotency.NewCall("charge", order)
			call.Fingerprint = order
			return call, nil
		},
		func(context.Context, guard.Lock, string) (receipt, error) {
			return receipt{}, errors.New("it ran")
		}).Handle
}

// What the operator says is what the repeat gets.
func (p site) testResolveRepeats(t *testing.T) {
	file := filepath.Join(t.TempDir(), "result.json")
	resolve := func(text, fence, order string, flags ...string) result {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return p.lockctl(append([]string{"resolve", "--fence", fence, "--result", file, "charge/" + order, "effect"}, flags...)...)
	}
	charge := p.charges(t, "")
	var fences []string
	for _, order := range []string{"result", "other", "old"} {
		fences = append(fences, fence(p.starts(t, "charge/"+order)))
	}
	p.awaitDoubt(t, "charge/result")
	p.awaitDoubt(t, "charge/old")

	for what, bad := range map[string]struct {
		status int
		text   string
		result
	}{
		"no JSON":         {exit.Usage, "the result has 8 bytes and is no JSON", resolve(`{"s3cret`, fences[0], "result")},
		"two results":     {exit.Usage, "is no JSON", resolve(`{} {}`, fences[0], "result")},
		"an empty file":   {exit.Usage, "the result has 0 bytes and is no JSON", resolve("", fences[0], "result")},
		"too large":       {exit.Usage, "the result has 261633 bytes; want at most MaxResultBytes, 261632", resolve(`"`+strings.Repeat("x", 261_631)+`"`, fences[0], "result")},
		"a huge file":     {exit.Usage, "has more than 262144 bytes", resolve(strings.Repeat(" ", 300_000)+"{}", fences[0], "result")},
		"a long version":  {exit.Usage, "Version has 65 bytes; want at most 64", resolve("{}", fences[0], "result", "--result-version", strings.Repeat("v", 65))},
		"another's fence": {exit.No, "and not with " + fences[1], resolve("{}", fences[1], "result")},
	} {
		assert.Equal(t, bad.status, bad.result.status, what)
		assert.Contains(t, bad.err, bad.text, what)
		assert.NotContains(t, bad.err, "s3cret")
	}
	_, err := charge(t.Context(), "result")
	require.IsType(t, &idempotency.RepeatInDoubt{}, err, "nothing was done")
	require.ErrorContains(t, err, "resolve the key with lockctl resolve")

	cmd, out, stderr := p.command("watch", "--json", "--until", "completed", "charge/result")
	require.NoError(t, cmd.Start())
	const found = `{"order": "found by the operator", "cents": 12345678901234567}`
	r := resolve(found+"\n", fences[0], "result")
	assert.Equal(t, 0, r.status, r.err)
	printed := r.out
	require.NoError(t, cmd.Wait(), stderr.String())
	for range 2 {
		got, err := charge(t.Context(), "result")
		require.NoError(t, err)
		assert.Equal(t, receipt{"found by the operator", 12345678901234567}, got)
		r = resolve(`{"order": "another"}`, fences[0], "result")
		assert.Equal(t, 0, r.status, r.err)
		assert.Contains(t, r.out, "stay as they are")
	}
	for _, args := range [][]string{{"show", "charge/result"}, {"list", "--state", "completed", "charge/"}, {"watch", "--until", "completed", "charge/result"}} {
		r = p.lockctl(args...)
		assert.Regexp(t, `(?s)completed.*pay \(7a\)`, r.out, args)
		printed += r.out + r.err + p.lockctl(append(args, "--json")...).out
	}
	printed += out.String()
	assert.NotContains(t, printed, "found by")
	assert.NotContains(t, printed, "12345678901234567")

	assert.Equal(t, 0, resolve(found, fences[2], "old", "--result-version", "1").status)
	_, err = p.charges(t, "2")(t.Context(), "old")
	require.IsType(t, &idempotency.RepeatNoAnswer{}, err)
	require.ErrorContains(t, err, `it is of version "1", and this program reads version "2"`)
}

// A signal ends lockctl local with all that it has started, also that of a terminal that is
// closed.
func TestSignalEndsLocal(t *testing.T) {
	p := at(t, "redis://"+testservers.Redis(t))
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		fifo := filepath.Join(t.TempDir(), "fifo")
		require.NoError(t, syscall.Mkfifo(fifo, 0o600))
		cmd, _, stderr := p.command("local", "--event", "-", "--before", "exec 3> "+fifo+"; sleep 60", binary)
		cmd.Stdin = strings.NewReader("{}")
		require.NoError(t, cmd.Start())
		f, err := os.Open(fifo) // when --before has begun
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(sig))
		_, err = io.ReadAll(f) // ends when no process of --before is left
		require.NoError(t, err)
		require.NoError(t, f.Close())
		_ = cmd.Wait() // the test looks at the status
		assert.Equal(t, exit.Signal+int(sig), cmd.ProcessState.ExitCode(), stderr.String())
		assert.Contains(t, stderr.String(), "lockctl: interrupted; all processes are stopped")
	}
}

func TestErrorsOfTheStore(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	p := at(t, "redis://"+addr)
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Set(t.Context(), "lambdalock:foreign", "x", 0).Err())
	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "looker", "on", ">pw", "~*", "+ping", "+hello", "+client").Err())
	user := "redis://looker:pw@" + addr
	for _, c := range []struct {
		status int
		text   string
		args   []string
	}{
		{exit.Damaged, "not a lock", []string{"show", "foreign"}},
		{exit.Damaged, "not a lock", []string{"revoke", "--fence", "1", "foreign"}},
		{exit.Permission, "", []string{"show", "--store", user, "k"}},
		{exit.Permission, "", []string{"list", "--store", user}},
		{exit.Permission, "", []string{"check", "--store", user}},
		{exit.Unavailable, "connection refused", []string{"show", "--store", "redis://127.0.0.1:1", "k"}},
		{exit.Config, "no store for the scheme", []string{"show", "--store", "etcd://x", "k"}},
		{exit.Config, `no store for the scheme "datastore"`, []string{"revoke", "--fence", "1", "--store", "datastore://project", "k"}},
		{exit.Config, `no store for the scheme "cosmos"`, []string{"list", "--store", "cosmos://account/database/container"}},
		{exit.Config, "", []string{"show", "--store", "dynamodb://locks?region=x", "--profile", "no-such-profile", "k"}},
		{exit.Usage, "--timeout is 1ms", []string{"show", "--timeout", "1ms", "k"}},
		{exit.Usage, "--region", []string{"show", "--region", "us-east-1", "--store", "dynamodb://locks?region=eu-west-1", "k"}},
	} {
		r := p.lockctl(c.args...)
		assert.Equal(t, c.status, r.status, "%q: %s", c.args, r.err)
		assert.Contains(t, r.err, c.text)
		assert.NotContains(t, r.err, "pw@")
		r = p.lockctl(append(c.args, "--json")...)
		var e struct{ Status int }
		lines := strings.Split(strings.TrimSpace(r.err), "\n")
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &e), r.err)
		assert.Equal(t, c.status, e.Status, "%q", c.args)
	}
	r := p.lockctl("list")
	assert.Equal(t, 0, r.status)
	assert.Contains(t, r.err, "1 entry is damaged or another program's, and not listed: \"lambdalock:foreign\"\n")
	cmd, _, stderr := p.command("show", "k")
	cmd.Env = append(cmd.Env, "LOCK_URL=")
	_ = cmd.Run()
	assert.Equal(t, exit.Config, cmd.ProcessState.ExitCode())
	assert.Contains(t, stderr.String(), "there is no store: want --store or LOCK_URL")
}

// A user of PostgreSQL without the rights is told so, and whoever has no table.
func TestRightsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	p := sites(t)["PostgreSQL"](t)
	looker := strings.Replace(p.url, "postgres@", "looker:hunter2@", 1)
	for _, c := range []struct {
		store  string
		status int
		text   string
		args   []string
	}{
		{looker, exit.Permission, "the role needs: GRANT", []string{"show", "k"}},
		{looker, exit.Permission, "", []string{"list"}},
		{looker, exit.Permission, "the role needs: GRANT", []string{"run", "k", "--", "true"}},
		{looker + "&table=other", exit.Config, "parameter table twice", []string{"show", "k"}},
		{strings.Replace(looker, "ops.locks", "other", 1), exit.Config, "lockctl schema", []string{"show", "k"}},
		{strings.Replace(looker, "/postgres?", "/nowhere?", 1), exit.Config, `database "nowhere" does not exist`, []string{"show", "k"}},
		{strings.Replace(looker, "sslmode=disable", "sslmode=hunter3", 1), exit.Config, "the function that opens the database", []string{"show", "k"}},
		{looker, exit.Usage, "Table is", []string{"schema", "--table", "no table"}},
	} {
		p.url = c.store
		r := p.lockctl(c.args...)
		assert.Equal(t, c.status, r.status, "%q: %s", c.args, r.err)
		assert.Contains(t, r.err, c.text)
		assert.NotContains(t, r.err, "hunter")
	}
}

// A user of ZooKeeper without the rights is told so by each command.
func TestRightsOnZooKeeper(t *testing.T) {
	addr := testservers.ZooKeeper(t).Addr
	owner := func(name string) string {
		if name == "ZOOKEEPER_AUTH" {
			return "owner:pw"
		}
		return ""
	}
	store, err := stores.Open(t.Context(), "zookeeper://"+addr, owner)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	p := site{t, "zookeeper://" + addr, store}
	lease := p.take("k", "withdraw")
	for _, args := range [][]string{{"show", "k"}, {"list"}, {"revoke", "--fence", fence(lease), "k"}, {"check"}} {
		r := p.lockctl(args...)
		assert.Equal(t, exit.Permission, r.status, "%q: %s", args, r.err)
		assert.Contains(t, r.err, "the server denies access to the node: look at ZOOKEEPER_AUTH")
		assert.NotContains(t, r.out, "withdraw")
	}
	require.NoError(t, p.renew(lease), "nothing was done")
	t.Setenv("ZOOKEEPER_AUTH", "owner:pw")
	assert.Contains(t, p.lockctl("list").out, "withdraw")
	assert.Equal(t, 0, p.lockctl("revoke", "--fence", fence(lease), "k").status)
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := at(t, "redis://"+testservers.Redis(t, "--appendonly", "yes"))
	assert.Equal(t, result{0, "nothing that endangers locks was found\n", ""}, good.lockctl("check"))
	assert.Equal(t, result{0, "", ""}, good.lockctl("check", "--json"))
	bad := at(t, "redis://"+testservers.Redis(t, "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes"))
	r := bad.lockctl("check")
	assert.Equal(t, exit.No, r.status)
	assert.Contains(t, r.out, "eviction policy is allkeys-lru")
	assert.Contains(t, r.out, "to do: set maxmemory-policy to noeviction")
	r = bad.lockctl("check", "--json")
	assert.Equal(t, exit.No, r.status)
	var finding struct{ Problem, Fix string }
	require.NoError(t, json.Unmarshal([]byte(r.out), &finding))
	assert.NotEmpty(t, finding.Fix)
}

// Who releases without waking the parked run that is next is found.
func TestCheckOfAKey(t *testing.T) {
	for name, open := range sites(t) {
		if name == "ZooKeeper" {
			continue // it has no parked places
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t)
			lease := p.take("k", "withdraw")
			const token = "the-task-token"
			_, err := p.store.Acquire(t.Context(), lockstore.Request{
				Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true, Parked: 15 * time.Second, Address: lockstore.TaskToken(token),
			})
			refusal, ok := errors.AsType[*lockstore.Refused](err)
			require.True(t, ok && refusal.QueuePosition == 1, "%v", err)
			before := p.lockctl("check", "k")
			require.NoError(t, p.store.Release(t.Context(), lease))
			after := p.lockctl("check", "k")
			assert.NotContains(t, before.out, "parked")
			assert.Equal(t, exit.No, after.status, after.err)
			assert.Contains(t, after.out, `"k" was handed over to a parked run, fence `)
			assert.NotContains(t, after.out, token)
		})
	}
}

// Each command that hands a key over to a parked run wakes it. If it cannot, it does its work, and says so.
func TestWakesParkedRuns(t *testing.T) {
	tokens, denied := make(chan string, 10), atomic.Bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ TaskToken string }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&in))
		tokens <- in.TaskToken
		if denied.Load() {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type": "AccessDeniedException", "message": "no"}`)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer server.Close()
	t.Setenv("AWS_ENDPOINT_URL_SFN", server.URL)
	t.Setenv("AWS_REGION", "eu-central-1")
	p := at(t, "redis://"+testservers.Redis(t))
	park := func(key string) {
		_, err := p.store.Acquire(t.Context(), lockstore.Request{
			Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true, Parked: lockstore.MaxParked, Address: lockstore.TaskToken("token-of-" + key),
		})
		refusal, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok && refusal.QueuePosition == 1, "%v", err)
	}
	revoke := func(key string) result {
		lease := p.take(key, "hangs")
		park(key)
		return p.lockctl("revoke", "--open-at-once", "--yes", "--fence", fence(lease), key)
	}
	for key, command := range map[string]func(key string) result{
		"revoke": revoke,
		"resolve": func(key string) result {
			lease := p.starts(t, key)
			park(key)
			p.awaitDoubt(t, key)
			return p.lockctl("resolve", "--fence", fence(lease), key, "no-effect")
		},
		"run": func(key string) result {
			cmd, out, stderr := p.command("run", key, "--", "cat")
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			require.Equal(t, 0, p.lockctl("watch", "--until", "held", key).status)
			park(key)
			require.NoError(t, in.Close())
			_ = cmd.Wait() // the test looks at the status
			return result{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
		},
	} {
		r := command(key)
		assert.Equal(t, 0, r.status, r.err)
		assert.NotContains(t, r.err, "warning")
		require.Len(t, tokens, 1, key)
		assert.Equal(t, "token-of-"+key, <-tokens)
	}
	denied.Store(true)
	r := revoke("denied")
	assert.Equal(t, 0, r.status, r.err)
	assert.Contains(t, r.err, "lockctl: warning: a parked run has to ask for the key again, and was not woken: ")
	assert.Contains(t, r.err, "states:SendTaskSuccess")
	assert.NotContains(t, r.err, "token-of-")
}

// At a terminal revoke asks for what it would end.
func TestRevokeAsks(t *testing.T) {
	t.Parallel()
	p := at(t, "redis://"+testservers.Redis(t))
	lease := p.take("k", "hangs")
	type1 := func(text string, args ...string) (status int, shows string) {
		cmd, _, _ := p.command(args...)
		cmd.Stdout, cmd.Stderr = nil, nil
		f, err := pty.Start(cmd)
		require.NoError(t, err)
		defer f.Close()
		var out bytes.Buffer
		for b := make([]byte, 1024); !strings.Contains(out.String(), "Type "); { // the question
			n, err := f.Read(b)
			require.NoError(t, err, out.String())
			out.Write(b[:n])
		}
		_, err = f.WriteString(text)
		require.NoError(t, err)
		_, _ = out.ReadFrom(f) // ends with an error when lockctl has ended
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode(), out.String()
	}
	status, shows := type1("no\n", "revoke", "k")
	assert.Equal(t, exit.No, status)
	assert.Contains(t, shows, "Type its fence, "+fence(lease))
	status, shows = type1("\x03", "revoke", "k")
	assert.Equal(t, exit.Interrupted, status, "Ctrl-C")
	assert.Contains(t, shows, "lockctl: interrupted")
	status, shows = type1("no\n", "revoke", "--open-at-once", "--fence", fence(lease), "k")
	assert.Equal(t, exit.No, status)
	assert.Contains(t, shows, "Type the key to open it at once")
	require.NoError(t, p.renew(lease), "nothing was done")
	status, shows = type1(fence(lease)+"\n", "revoke", "k")
	assert.Equal(t, 0, status, shows)
	status, shows = type1("k\n", "revoke", "--open-at-once", "--fence", fence(lease), "k")
	assert.Equal(t, 0, status, shows)
	assert.Regexp(t, `The holder before the revoke \("revoked by .+: was hangs \(4f1c\).+\) may be at work for \S+ more, beside`, shows)
	assert.Regexp(t, `"k" is open\. The holder before the revoke \(revoked by .+\) may be at work for`, shows)
	assert.Contains(t, shows, `"k" is open`)
}

// What is said of a full disk is neither "no" nor that the store does not answer.
func TestOutputNotWritable(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this system has no /dev/full")
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = full.Close() })
	p := at(t, "redis://"+testservers.Redis(t, "--maxmemory-policy", "allkeys-lru"))
	lease := p.take("k", "hangs")
	p.starts(t, "resolve")
	p.awaitDoubt(t, "resolve")
	n := read(t, p.lockctl("show", "--json", "resolve").out)[0].Fence
	const unwritable = "the answer cannot be written: write /dev/stdout: no space left on device\n"
	const asJSON = `{"error":"the answer cannot be written: write /dev/stdout: no space left on device","status":74}` + "\n"
	for _, c := range []struct {
		text string
		args []string
	}{
		{"lockctl: " + unwritable, []string{"show", "k"}},
		{"lockctl: " + unwritable, []string{"list"}},
		{"lockctl: " + unwritable, []string{"watch", "k"}},
		{"lockctl: " + unwritable, []string{"check"}},
		{`lockctl: the lease of "k" is revoked; ` + unwritable, []string{"revoke", "--fence", fence(lease), "k"}},
		{"lockctl: " + unwritable, []string{"revoke", "--wait", "--fence", fence(lease), "k"}},
		{`lockctl: "resolve" is resolved; ` + unwritable, []string{"resolve", "--fence", n, "resolve", "no-effect"}},
		{asJSON, []string{"show", "--json", "k"}},
		{asJSON, []string{"list", "--json"}},
		{asJSON, []string{"watch", "--json", "k"}},
	} {
		cmd, _, stderr := p.command(c.args...)
		cmd.Stdout = full
		_ = cmd.Run() // the test looks at the status
		assert.Equal(t, exit.Output, cmd.ProcessState.ExitCode(), c.args)
		assert.True(t, strings.HasSuffix(stderr.String(), c.text), "%q: %s", c.args, stderr)
	}
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost, "the lease is revoked all the same")
}

// The region and the credentials are those of a profile. DynamoDB Local has other tables
// for each region and each access key, so a wrong profile finds no table.
func TestProfile(t *testing.T) {
	t.Parallel()
	u := &url.URL{Scheme: "dynamodb", Host: "locks-" + strconv.FormatInt(time.Now().UnixNano(), 36),
		RawQuery: url.Values{"endpoint": {testservers.DynamoDB(t)}, "region": {"eu-central-1"}}.Encode()}
	makeTable(t, u) // with the access key "local"
	query := u.Query()
	query.Del("region")
	u.RawQuery = query.Encode()
	own := *u // where the emulator's own defaults lead
	own.Host += "-own"
	makeTable(t, &own)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	env := []string{
		"LOCK_URL=" + u.String(), "AWS_EC2_METADATA_DISABLED=true", "AWS_PROFILE=", "AWS_REGION=", "AWS_DEFAULT_REGION=", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=",
		"AWS_CONFIG_FILE=" + write("config", "[profile right]\nregion = eu-central-1\n[profile elsewhere]\nregion = eu-west-1\n"),
		"AWS_SHARED_CREDENTIALS_FILE=" + write("credentials", "[right]\naws_access_key_id = local\naws_secret_access_key = local\n[elsewhere]\naws_access_key_id = local\naws_secret_access_key = local\n"),
	}
	for _, c := range []struct {
		status int
		args   []string
		env    string
	}{
		{0, []string{"--profile", "right"}, ""},
		{0, nil, "LOCK_URL=" + own.String()},
		{0, []string{"--store", own.String()}, "AWS_PROFILE=elsewhere"}, // which is for AWS
		{exit.Config, []string{"--profile", "elsewhere"}, ""},
		{0, []string{"--profile", "elsewhere", "--region", "eu-central-1"}, ""},
		{exit.Config, []string{"--profile", "nobody"}, ""},
		{exit.Config, nil, ""}, // an emulator has a region and a key of its own
	} {
		cmd := exec.Command(binary, append([]string{"show", "k"}, c.args...)...)
		cmd.Env = append(append(os.Environ(), env...), c.env)
		out, _ := cmd.CombinedOutput() // the test looks at the status
		assert.Equal(t, c.status, cmd.ProcessState.ExitCode(), "%q: %s", c.args, out)
	}
}

func makeTable(t *testing.T, u *url.URL) {
	t.Helper()
	made, err := stores.MakeLocalTable(t.Context(), u)
	require.NoError(t, err)
	require.True(t, made)
	made, err = stores.MakeLocalTable(t.Context(), u)
	require.NoError(t, err)
	require.False(t, made, "it is there already")
}
