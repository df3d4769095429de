package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

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
			return at(t, testservers.Table(t, testservers.DynamoDB(t), tableName(), "key"))
		},
		"ZooKeeper": func(t *testing.T) site {
			p := at(t, "zookeeper://"+testservers.ZooKeeper(t).Addr)
			t.Cleanup(func() { assert.NoError(t, p.store.Close()) })
			return p
		},
		"PostgreSQL": func(t *testing.T) site {
			url := testservers.PostgreSQL(t)
			p := at(t, url+"&table=ops.locks")
			p.makeTable("postgres", url, "CREATE SCHEMA ops; CREATE ROLE looker LOGIN; GRANT USAGE ON SCHEMA ops TO looker;", "--table", "ops.locks")
			return p
		},
		"PostgreSQL behind PgBouncer": func(t *testing.T) site {
			server := testservers.StartPostgreSQL(t)
			p := at(t, testservers.PgBouncer(t, server, "transaction"))
			p.makeTable("postgres", testservers.PostgreSQLURL(server.Addr), "")
			return p
		},
		"MariaDB": func(t *testing.T) site {
			addr := testservers.MariaDB(t).Addr
			p := at(t, "mysql://root@"+addr+"/locks?tls=false&table=ops")
			p.makeTable("mysql", "root@tcp("+addr+")/locks", "", "--dialect", "mysql", "--table", "ops")
			return p
		},
		"SQLite": func(t *testing.T) site { return at(t, "sqlite://"+filepath.Join(t.TempDir(), "locks.db")) },
	}
}

// makeTable runs the SQL that lockctl schema prints.
func (p site) makeTable(driver, dsn, before string, flags ...string) {
	p.t.Helper()
	schema := p.lockctl(append([]string{"schema"}, flags...)...)
	require.Equal(p.t, 0, schema.status, schema.err)
	db, err := sql.Open(driver, dsn)
	require.NoError(p.t, err)
	_, err = db.ExecContext(p.t.Context(), before+schema.out)
	require.NoError(p.t, err)
	require.NoError(p.t, db.Close())
}

// lockctl runs a command to its end.
func (p site) lockctl(args ...string) result {
	p.t.Helper()
	return lockctl(p.url, args...).start(p.t).result(p.t)
}

// says runs a command line, and compares the status and what it prints with a regular expression.
func (p site) says(t *testing.T, status int, says, line string) {
	t.Helper()
	r := p.lockctl(strings.Fields(line)...)
	assert.Equal(t, status, r.status, "%q: %s", line, r.err)
	assert.Regexp(t, says, r.out+r.err, line)
}

// acquire takes a key for a holder with a name.
func (p site) acquire(name string, r lockstore.Request) lockstore.Lease {
	p.t.Helper()
	r.Owner, r.HolderInfo = lockstore.NewOwner(), lockstore.HolderInfo{Name: name, ID: "4f1c", Since: time.Now()}
	lease, err := p.store.Acquire(p.t.Context(), r)
	require.NoError(p.t, err)
	return lease
}

func (p site) take(key, name string) lockstore.Lease {
	p.t.Helper()
	return p.acquire(name, lockstore.Request{Key: key, TTL: time.Minute})
}

// starts takes a key for a second, and starts its work.
func (p site) starts(key string) lockstore.Lease {
	p.t.Helper()
	lease := p.acquire("pay", lockstore.Request{Key: key, TTL: time.Second})
	require.NoError(p.t, p.store.MarkStarted(p.t.Context(), lease))
	return lease
}

// awaitDoubt waits until the key is in doubt.
func (p site) awaitDoubt(key string) {
	p.t.Helper()
	require.Zero(p.t, p.lockctl("watch", "--until", "in doubt", key).status)
}

// park waits for a key that another holds in a parked place.
func (p site) park(key string, parked time.Duration) {
	p.t.Helper()
	_, err := p.store.Acquire(p.t.Context(), lockstore.Request{
		Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true, Parked: parked, Address: lockstore.TaskToken("token-of-" + key),
	})
	refusal, ok := errors.AsType[*lockstore.Refused](err)
	require.True(p.t, ok && refusal.QueuePosition == 1, "%v", err)
}

func (p site) renew(lease lockstore.Lease) error {
	_, err := p.store.Renew(p.t.Context(), lease, time.Minute)
	return err
}

// shown is what show and list print as JSON.
type shown struct {
	Key, State, Fence   string
	Holder              struct{ Name, ID string }
	LeftMs              int64
	Waiting, MaxHolders int
	Holders             []shown
	Seat                int
	End                 bool
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

// tableName is new each time.
func tableName() string { return "locks-" + strconv.FormatInt(time.Now().UnixNano(), 36) }

// state is what show says of a key.
func (p site) state(key string) shown {
	p.t.Helper()
	r := p.lockctl("show", "--json", key)
	require.Equal(p.t, 0, r.status, r.err)
	return read(p.t, r.out)[0]
}

// inCheck is what check finds in SQL databases. Those of tests write nothing to the disk at once.
var inCheck = map[string]string{
	"PostgreSQL":                  `^synchronous_commit is off or local, or fsync is off: .*\n .*\nidle_in_transaction_session_timeout is 0.*\n .*\n$`,
	"PostgreSQL behind PgBouncer": `^synchronous_commit is off or local, or fsync is off: .*\n .*\nidle_in_transaction_session_timeout is 0.*\n .*\n$`,
	"MariaDB":                     `^innodb_flush_log_at_trx_commit is not 1: .*\n .*\n$`,
	"SQLite":                      `^nothing that endangers locks was found\n$`,
}

func TestOperators(t *testing.T) {
	for name, open := range sites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t)
			t.Run("show", p.testShow)
			t.Run("list", p.testList)
			t.Run("revoke", p.testRevoke)
			if found, sql := inCheck[name]; sql {
				t.Run("resolve", p.testResolve)
				t.Run("check", func(t *testing.T) {
					r := p.lockctl("check")
					assert.Regexp(t, found, r.out, r.err)
				})
			}
			if name != "Redis" { // what a store answers is in its suite
				return
			}
			t.Run("several holders", p.testSeveral)
			t.Run("resolve", p.testResolve)
			t.Run("resolve, and the repeat", p.testResolveRepeats)
		})
	}
}

func (p site) testShow(t *testing.T) {
	lease := p.take("show/7", "withdraw")
	p.says(t, 0, `^KEY      show/7\nSTATE    held\nHOLDER   withdraw \(4f1c\)\nSINCE    \S+Z\nAGE      \d+s\nLEFT     (1m\d+s|\d+s)\nRENEWED  not seen yet\nFENCE    `+fence(lease)+`\nWAITING  0\n$`, "show show/7")
	s := p.state("show/7")
	assert.Equal(t, []any{"show/7", "held", fence(lease), "withdraw", "4f1c"}, []any{s.Key, s.State, s.Fence, s.Holder.Name, s.Holder.ID})
	assert.Positive(t, s.LeftMs)
	assert.NotContains(t, p.lockctl("show", "--json", "show/7").out, string(lease.Owner), "the owner is a secret")
	require.NoError(t, p.store.Release(t.Context(), lease))
	assert.Equal(t, "free", p.state("show/7").State)
}

func (p site) testList(t *testing.T) {
	for _, key := range []string{"list/a", "list/b*", "list/c"} {
		p.take(key, "lister")
	}
	require.NoError(t, p.store.Release(t.Context(), p.take("list/free", "lister")))
	for args, want := range map[string][]string{
		"list/":              {"list/a", "list/b*", "list/c", "end"},
		"list/b*":            {"list/b*", "end"},
		"--state free list/": {"list/free", "end"},
	} {
		r := p.lockctl(append([]string{"list", "--json"}, strings.Fields(args)...)...)
		require.Equal(t, 0, r.status, r.err)
		var keys []string
		for _, s := range read(t, r.out) {
			if s.End {
				s.Key = "end"
			}
			keys = append(keys, s.Key)
		}
		assert.ElementsMatch(t, want, keys)
	}
	assert.Regexp(t, `^KEY .*\nlist/a +held .*lister \(4f1c\)\n$`, p.lockctl("list", "list/a").out)
	assert.Equal(t, exit.No, p.lockctl("list", "--longer-than", "0.001", "list/").status, "cron is told")
}

func (p site) testRevoke(t *testing.T) {
	lease := p.take("revoke", "hangs")
	p.says(t, exit.Busy, `"revoke" changed hands: nobody holds it with the fence 7; nothing was done`, "revoke --fence 7 revoke")
	p.says(t, exit.No, "is not held", "revoke --fence 7 revoke/free")
	require.NoError(t, p.renew(lease), "nothing was done")
	next := lockstore.NewOwner()
	_, err := p.store.Acquire(t.Context(), lockstore.Request{Key: "revoke", Owner: next, TTL: time.Minute, JoinQueue: true})
	require.ErrorIs(t, err, lockstore.ErrRefused)
	assert.Equal(t, 1, p.state("revoke").Waiting)

	p.says(t, 0, `^the lease of "revoke" is revoked: hangs \(4f1c\) can renew it no more; the key opens within \S+, at \S+Z\.\n$`, "revoke --fence "+fence(lease)+" revoke")
	assert.Equal(t, 1, p.state("revoke").Waiting, "who waits keeps its place")
	require.NoError(t, p.store.Leave(t.Context(), "revoke", next))
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)
	assert.Equal(t, "revoked", p.state("revoke").State)
	assert.Regexp(t, `^revoked by .+@.+: was hangs \(4f1c\)$`, p.state("revoke").Holder.Name)
	p.says(t, exit.Busy, `busy: lock "revoke" was revoked by `, "run -n revoke -- true")
	p.says(t, exit.No, "was revoked already", "revoke --fence "+fence(lease)+" revoke")
	p.says(t, 0, `^"revoke" is open\. The run with the fence `+fence(lease)+` may be at work for \S+ more, until \S+Z: `, "revoke --open-at-once --fence "+fence(lease)+" revoke")
	p.says(t, 0, "", "run -n revoke -- true")
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)

	started := p.take("revoke/started", "pay")
	require.NoError(t, p.store.MarkStarted(t.Context(), started))
	p.says(t, exit.No, "cannot be opened at once: its work has started", "revoke --open-at-once --fence "+fence(started)+" revoke/started")
	require.NoError(t, p.renew(started), "nothing was done")
	assert.Contains(t, p.lockctl("revoke", "--fence", fence(started), "revoke/started").out, "; its work has started, so the key is in doubt within ")

	done := p.take("revoke/cooldown", "effect")
	require.NoError(t, p.store.Complete(t.Context(), done, nil, time.Minute))
	p.says(t, exit.No, `"revoke/cooldown" has the state cooldown, has no lease to revoke, and opens within `, "revoke --open-at-once --fence "+fence(done)+" revoke/cooldown")
}

// Each of the holders of a key is seen, and one of them is revoked.
func (p site) testSeveral(t *testing.T) {
	take := func(name string) lockstore.Lease {
		return p.acquire(name, lockstore.Request{Key: "several/k", TTL: time.Minute, MaxHolders: 3})
	}
	a, b := take("first"), take("second")
	s := p.state("several/k")
	require.Len(t, s.Holders, 2)
	assert.Equal(t, 3, s.MaxHolders)
	assert.Equal(t, []any{"second", fence(b), 1}, []any{s.Holders[1].Holder.Name, s.Holders[1].Fence, s.Holders[1].Seat})

	p.says(t, exit.Busy, "nobody holds it with the fence 7", "revoke --fence 7 several/k")
	p.says(t, 0, `: first \(4f1c\) can renew it no more; its seat is free within `, "revoke --fence "+fence(a)+" several/k")
	require.ErrorIs(t, p.renew(a), lockstore.ErrLost)
	require.NoError(t, p.renew(b))
	p.says(t, exit.No, "; its seat is free within ", "revoke --fence "+fence(a)+" several/k")
	p.says(t, 0, "", "revoke --open-at-once --fence "+fence(a)+" several/k")
	assert.Zero(t, take("third").Seat, "the seat is free")
}

func (p site) testResolve(t *testing.T) {
	completed := p.take("resolve/completed", "pay")
	require.NoError(t, p.store.Complete(t.Context(), completed, []byte("a secret result"), time.Minute))
	r := p.lockctl("show", "resolve/completed")
	assert.Contains(t, r.out, "\nSTATE    completed\nHOLDER   pay (4f1c)\n")
	assert.NotContains(t, r.out+p.lockctl("show", "--json", "resolve/completed").out, "secret")
	p.says(t, exit.No, `"resolve/completed" is not in doubt, it has the state completed; nothing was done`, "resolve --fence "+fence(completed)+" resolve/completed no-effect")
	p.says(t, exit.Done, `lockctl: done already: lock "resolve/completed": the work was done by pay \(4f1c\)`, "run -n resolve/completed -- true")

	live := p.take("resolve/live", "pay")
	require.NoError(t, p.store.MarkStarted(t.Context(), live))
	p.says(t, exit.Busy, `is held by pay \(4f1c\)`, "resolve --fence "+fence(live)+" resolve/live no-effect")

	effect, noEffect := p.starts("resolve/effect"), p.starts("resolve/no-effect")
	p.awaitDoubt("resolve/effect")
	p.awaitDoubt("resolve/no-effect")
	p.says(t, 0, `^KEY      resolve/effect\nSTATE    in doubt\nHOLDER   pay \(4f1c\)\nSINCE    \S+Z\nAGE      \d+s\nFENCE    `+fence(effect)+`\nWAITING  0\n$`, "show resolve/effect")
	r = p.lockctl("list", "--json", "--state", "in doubt", "resolve/")
	assert.Len(t, read(t, r.out), 3, "two keys and the end: %s", r.out)
	p.says(t, exit.No, "is in doubt", "revoke --fence "+fence(effect)+" resolve/effect")
	p.says(t, exit.InDoubt, `lockctl: lock "resolve/effect" is in doubt: pay \(4f1c\)`, "run -E 0 resolve/effect -- true")
	p.says(t, exit.No, "is in doubt with the fence "+fence(effect)+", and not with 7", "resolve --fence 7 resolve/effect effect")
	for _, text := range []string{ // a second time is no error
		"\"resolve/effect\" is resolved: its work had its effect, and does not run again for 1h0m0s.\n",
		"\"resolve/effect\" was completed before, by lockctl resolve or by the work itself. Its result, and for how long it is stored, stay as they are.\n",
	} {
		assert.Equal(t, result{0, text, ""}, p.lockctl("resolve", "--fence", fence(effect), "--result-time", "1h", "resolve/effect", "effect"))
	}
	assert.InDelta(t, time.Hour.Milliseconds(), p.state("resolve/effect").LeftMs, 60_000)
	p.says(t, 0, "", "resolve --fence "+fence(noEffect)+" resolve/no-effect no-effect")
	assert.Equal(t, "free", p.state("resolve/no-effect").State)
}

type receipt struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

// What the operator says is what the repeat gets, and nobody else sees.
func (p site) testResolveRepeats(t *testing.T) {
	g, err := guard.New(p.store, guard.Options{})
	require.NoError(t, err)
	once, err := idempotency.New(g, idempotency.Options{InDoubt: idempotency.AtMostOnce, Version: "2"})
	require.NoError(t, err)
	charge := idempotency.Wrap(once,
		func(_ context.Context, order string) (idempotency.Call, error) {
			call := idempotency.NewCall("charge", order)
			call.Fingerprint = order
			return call, nil
		},
		func(context.Context, guard.Lock, string) (receipt, error) {
			return receipt{}, errors.New("it ran")
		}).Handle
	file := filepath.Join(t.TempDir(), "result.json")
	resolve := func(text, fence, order, version string) result {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return p.lockctl("resolve", "--fence", fence, "--result", file, "--result-version", version, "charge/"+order, "effect")
	}
	fences := []string{fence(p.starts("charge/7")), fence(p.starts("charge/old"))}
	p.awaitDoubt("charge/7")
	p.awaitDoubt("charge/old")
	for _, bad := range []struct {
		status int
		text   string
		result
	}{
		{exit.Usage, "the result has 8 bytes and is no JSON", resolve(`{"s3cret`, fences[0], "7", "2")},
		{exit.Usage, "the result has 261633 bytes; want at most MaxResultBytes, 261632", resolve(`"`+strings.Repeat("x", 261_631)+`"`, fences[0], "7", "2")},
		{exit.No, "and not with " + fences[1], resolve("{}", fences[1], "7", "2")},
	} {
		assert.Equal(t, bad.status, bad.result.status)
		assert.Contains(t, bad.err, bad.text)
		assert.NotContains(t, bad.err, "s3cret")
	}
	_, err = charge(t.Context(), "7")
	require.IsType(t, &idempotency.RepeatInDoubt{}, err, "nothing was done")
	require.ErrorContains(t, err, "resolve the key with lockctl resolve")

	r := resolve(`{"order": "found by the operator", "cents": 12345678901234567}`+"\n", fences[0], "7", "2")
	assert.Equal(t, 0, r.status, r.err)
	got, err := charge(t.Context(), "7")
	require.NoError(t, err)
	assert.Equal(t, receipt{"found by the operator", 12345678901234567}, got)
	printed := r.out
	for _, args := range []string{"show charge/7", "show --json charge/7", "list --json --state completed charge/", "list --state completed charge/", "watch --until completed charge/7"} {
		r = p.lockctl(strings.Fields(args)...)
		assert.Regexp(t, `(?s)completed.*pay.*4f1c`, r.out, args)
		printed += r.out + r.err
	}
	assert.NotContains(t, printed, "found by")
	assert.NotContains(t, printed, "12345678901234567")

	assert.Equal(t, 0, resolve("{}", fences[1], "old", "1").status)
	_, err = charge(t.Context(), "old")
	require.ErrorContains(t, err, `it is of version "1", and this program reads version "2"`)
}

// A signal ends lockctl local with all that it has started, also that of a terminal that is
// closed.
func TestSignalEndsLocal(t *testing.T) {
	p := at(t, "redis://"+testservers.Redis(t))
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		fifo := filepath.Join(t.TempDir(), "fifo")
		require.NoError(t, syscall.Mkfifo(fifo, 0o600))
		event := filepath.Join(t.TempDir(), "event.json")
		require.NoError(t, os.WriteFile(event, []byte("{}"), 0o600))
		local := lockctl(p.url, "local", "--event", event, "--before", "exec 3> "+fifo+"; sleep 60", binary).start(t)
		f, err := os.Open(fifo) // when --before has begun
		require.NoError(t, err)
		require.NoError(t, local.Process.Signal(sig))
		_, err = io.ReadAll(f) // ends when no process of --before is left
		require.NoError(t, err)
		require.NoError(t, f.Close())
		assert.Equal(t, exit.Signal+int(sig), local.status(t))
		assert.Contains(t, local.err.String(), "lockctl: interrupted: ")
	}
}

func TestErrorsOfTheStore(t *testing.T) {
	t.Parallel()
	addr, valkey := testservers.Redis(t), testservers.Valkey(t)
	p := at(t, "redis://"+addr)
	redisCLI(t, addr, "SET", "lambdalock:foreign", "x")
	redisCLI(t, addr, "ACL", "SETUSER", "looker", "on", ">hunter2", "~*", "+ping", "+hello", "+client")
	for _, server := range []string{addr, valkey} {
		redisCLI(t, server, "ACL", "SETUSER", "reader", "on", ">hunter2", "~*", "+@all", "-@write", "+evalsha", "+eval")
	}
	looker := strings.Replace(p.url, "//", "//looker:hunter2@", 1)
	sql := strings.Replace(sites(t)["PostgreSQL"](t).url, "postgres@", "looker:hunter2@", 1)
	maria := sites(t)["MariaDB"](t)
	mysql := strings.Replace(maria.url, "root@", "root:hunter2@", 1)
	tells(t, p.url, exit.Damaged, "not a lock", "show foreign")
	tells(t, p.url, exit.Damaged, "not a lock", "revoke --fence 1 foreign")
	tells(t, p.url, exit.Damaged, "not a lock", "run foreign -- true")
	tells(t, p.url+"?cluster=true", exit.Config, "remove cluster=true", "run k -- true")
	tells(t, "redis://reader:hunter2@"+addr, exit.Permission, "The user executing the script can't run this command", "run k -- true") // however long it is to wait
	tells(t, "valkey://reader:hunter2@"+valkey, exit.Permission, "has no permissions to run the '", "run k -- true")
	tells(t, looker, exit.Permission, "", "show k")
	tells(t, looker, exit.Permission, "", "check")
	tells(t, sql, exit.Permission, "the role needs SELECT, INSERT and UPDATE", "show k")
	tells(t, sql, exit.Permission, "", "list")
	tells(t, sql, exit.Permission, "the role needs SELECT, INSERT and UPDATE", "run k -- true")
	tells(t, sql+"&table=other", exit.Config, "parameter table twice", "show k")
	tells(t, strings.Replace(sql, "ops.locks", "other", 1), exit.Config, "lockctl schema", "show k")
	tells(t, strings.Replace(sql, "/postgres?", "/nowhere?", 1), exit.Config, `database "nowhere" does not exist`, "show k")
	tells(t, strings.Replace(sql, "sslmode=disable", "sslmode=hunter3", 1), exit.Config, "the function that opens the database", "show k")
	tells(t, mysql, exit.Permission, "Access denied", "show k")
	tells(t, strings.Replace(maria.url, "/locks?", "/nowhere?", 1), exit.Config, "Unknown database", "run k -- true")
	tells(t, strings.Replace(maria.url, "table=ops", "table=other", 1), exit.Config, "lockctl schema", "list")
	tells(t, strings.Replace(maria.url, "tls=false", "tls=hunter3", 1), exit.Config, "the function that opens the database", "show k")
	p.says(t, 0, `1 entries are damaged or another program's, and not listed, such as \["lambdalock:foreign"\]`, "list")
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
	p.says(t, 0, "", "revoke --fence "+fence(lease)+" k")
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := at(t, "redis://"+testservers.Redis(t, "--appendonly", "yes"))
	assert.Equal(t, result{0, "nothing that endangers locks was found\n", ""}, good.lockctl("check"))
	bad := at(t, "redis://"+testservers.Redis(t, "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes"))
	bad.says(t, exit.No, `eviction policy is allkeys-lru(?s:.*)to do: set maxmemory-policy to noeviction`, "check")
}

// Who releases without waking the parked run that is next is found.
func TestCheckOfAKey(t *testing.T) {
	t.Parallel()
	p := at(t, "redis://"+testservers.Redis(t))
	lease := p.take("k", "withdraw")
	p.park("k", 15*time.Second)
	assert.NotContains(t, p.lockctl("check", "k").out, "parked")
	require.NoError(t, p.store.Release(t.Context(), lease))
	after := p.lockctl("check", "k")
	assert.Equal(t, exit.No, after.status, after.err)
	assert.Contains(t, after.out, `"k" was handed over to a parked run, fence `)
	assert.NotContains(t, after.out, "token-of")
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
	revoke := func(key string) result {
		lease := p.take(key, "hangs")
		p.park(key, lockstore.MaxParkedTurn)
		return p.lockctl("revoke", "--open-at-once", "--fence", fence(lease), key)
	}
	woken := func(key string, r result) {
		assert.Equal(t, 0, r.status, r.err)
		assert.NotContains(t, r.err, "warning")
		require.Len(t, tokens, 1, key)
		assert.Equal(t, "token-of-"+key, <-tokens)
	}
	woken("revoke", revoke("revoke"))
	run := lockctl(p.url, "run", "run", "--", "cat")
	in, err := run.StdinPipe()
	require.NoError(t, err)
	run.start(t)
	p.says(t, 0, "", "watch --until held run")
	p.park("run", lockstore.MaxParkedTurn)
	require.NoError(t, in.Close())
	woken("run", run.result(t))
	denied.Store(true)
	r := revoke("denied")
	assert.Equal(t, 0, r.status, r.err)
	assert.Contains(t, r.err, "lockctl: warning: a parked run has to ask for the key again, and was not woken: ")
	assert.Contains(t, r.err, "states:SendTaskSuccess")
	assert.NotContains(t, r.err, "token-of-")
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
	p.starts("resolve")
	p.awaitDoubt("resolve")
	n := p.state("resolve").Fence
	for args, before := range map[string]string{
		"show k":                                "",
		"list --json":                           "",
		"watch k":                               "",
		"check":                                 "",
		"revoke --fence " + fence(lease) + " k": `the lease of "k" is revoked; `,
		"resolve --fence " + n + " resolve no-effect": `"resolve" is resolved; `,
	} {
		cmd := lockctl(p.url, strings.Fields(args)...)
		cmd.Stdout = full
		r := cmd.start(t).result(t)
		assert.Equal(t, exit.Output, r.status, args)
		assert.Equal(t, "lockctl: "+before+"the answer cannot be written: write /dev/stdout: no space left on device\n", r.err)
	}
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost, "the lease is revoked all the same")
}

// The region and the credentials are those of a profile. DynamoDB Local has other tables
// for each region and each access key, so a wrong profile finds no table.
func TestProfile(t *testing.T) {
	t.Parallel()
	endpoint, name := testservers.DynamoDB(t), tableName()
	testservers.Table(t, endpoint, name, "key")
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	env := []string{
		"AWS_EC2_METADATA_DISABLED=true", "AWS_PROFILE=elsewhere", "AWS_REGION=", "AWS_DEFAULT_REGION=", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=",
		"AWS_CONFIG_FILE=" + write("config", "[profile right]\nregion = us-east-1\n[profile elsewhere]\nregion = eu-west-1\n"),
		"AWS_SHARED_CREDENTIALS_FILE=" + write("credentials", "[right]\naws_access_key_id = local\naws_secret_access_key = local\n[elsewhere]\naws_access_key_id = local\naws_secret_access_key = local\n"),
	}
	for _, c := range []struct {
		status int
		args   []string
	}{
		{0, []string{"--profile", "right"}},
		{0, nil}, // AWS_PROFILE is for AWS, and an emulator has a region and a key of its own
		{exit.Config, []string{"--profile", "elsewhere"}},
		{0, []string{"--profile", "elsewhere", "--region", "us-east-1"}},
		{exit.Config, []string{"--profile", "nobody"}},
	} {
		cmd := lockctl("dynamodb://"+name+"?endpoint="+endpoint, append([]string{"show", "k"}, c.args...)...)
		cmd.Env = append(cmd.Env, env...)
		r := cmd.start(t).result(t)
		assert.Equal(t, c.status, r.status, "%q: %s", c.args, r.err)
	}
}
