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
	return with(t, storeURL, func(string) string { return "" })
}

func with(t *testing.T, storeURL string, getenv func(string) string) site {
	t.Helper()
	store, err := stores.Open(t.Context(), storeURL, getenv)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return site{t, storeURL, store}
}

func (p site) lockctl(args ...string) result {
	p.t.Helper()
	return ends(p.t, p.url, args...)
}

func (p site) says(status int, text, line string) {
	p.t.Helper()
	says(p.t, p.url, status, text, line)
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
	lease := p.acquire("pay", lockstore.Request{Key: key, TTL: 3 * time.Second})
	require.NoError(p.t, p.store.MarkStarted(p.t.Context(), lease))
	return lease
}

// awaitDoubt waits until the key is in doubt.
func (p site) awaitDoubt(key string) {
	p.t.Helper()
	require.Zero(p.t, p.lockctl("watch", "--until", "in doubt", key).status)
}

// waits takes a place in the queue of a key: a parked one, if its turn is above 0.
func (p site) waits(key string, parked time.Duration) lockstore.Request {
	p.t.Helper()
	r := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "next", Since: time.Now()}, JoinQueue: true, Parked: parked}
	if parked > 0 {
		r.Address = lockstore.TaskToken("token-of-" + key)
	}
	_, err := p.store.Acquire(p.t.Context(), r)
	require.ErrorIs(p.t, err, lockstore.ErrRefused)
	return r
}

func (p site) renew(lease lockstore.Lease) error {
	_, err := p.store.Renew(p.t.Context(), lease, time.Minute)
	return err
}

// shown is what show prints as JSON.
type shown struct {
	State, Fence string
	Holder       struct{ Name string }
	LeftMs       int64
	Waiting      int
}

// state is what show says of a key.
func (p site) state(key string) (s shown) {
	p.t.Helper()
	r := p.lockctl("show", "--json", key)
	require.NoError(p.t, json.Unmarshal([]byte(r.out), &s), r.err)
	return s
}

func fence(l lockstore.Lease) string { return strconv.FormatInt(int64(l.Fence), 10) }

// commands: each command reaches the store. What the store answers is in its suite, and what lockctl says of it in TestOnRedis.
func (p site) commands(key string) {
	p.t.Helper()
	lease := p.take(key, "withdraw")
	p.says(0, `^KEY      `+key+`\nSTATE    held\nHOLDER   withdraw \(4f1c\)\nSINCE    \S+Z\nAGE      \d+s\nLEFT     (1m\d+s|\d+s)\nRENEWED  not seen yet\nFENCE    `+fence(lease)+`\nWAITING  0\n$`, "show "+key)
	p.says(0, `^KEY .*\n`+key+` +held .*withdraw \(4f1c\)\n$`, "list "+key)
	p.says(exit.Busy, `^lockctl: busy: lock "`+key+`" is held by withdraw \(4f1c\)`, "run -n "+key+" -- true")
	p.says(0, `^the lease of "`+key+`" is revoked: withdraw \(4f1c\) can renew it no more; the key opens within \S+, at \S+Z\.\n$`, "revoke --fence "+fence(lease)+" "+key)
	require.ErrorIs(p.t, p.renew(lease), lockstore.ErrLost)
	p.says(0, "^$", "run -n "+key+"/free -- true")
}

func TestOnRedis(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	p := at(t, "redis://"+addr)
	p.commands("account/7")
	assert.Equal(t, exit.No, p.lockctl("list", "--longer-than", "0.001", "account/").status, "cron is told")
	p.says(0, `^KEY .*\naccount/7/free +free +.*\n$`, "list --state free account/")
	for name, test := range map[string]func(*testing.T){
		"revoke": p.testRevoke, "resolve": p.testResolve, "the output cannot be written": p.testOutputNotWritable,
		"a parked run that is not woken": p.testNotWoken,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := at(t, "redis://"+testservers.Redis(t, "--appendonly", "yes"))
	assert.Equal(t, result{0, "nothing that endangers locks was found\n", ""}, good.lockctl("check"))
	addr := testservers.Redis(t, "--maxmemory-policy", "allkeys-lru")
	bad := at(t, "redis://"+addr)
	const found = `eviction policy is allkeys-lru(?s:.*)to do: set maxmemory-policy to noeviction`
	bad.says(exit.No, found, "check")
	redisCLI(t, addr, "SET", "lambdalock:foreign", "x")
	bad.says(exit.Damaged, found+`(?s:.*)not a lock`, "check foreign")
}

// refusal is what lockctl says of a store that refuses or is not there.
type refusal struct {
	url    string
	status int
	text   string
	line   string
}

// refuse runs the command lines at the same time, when the test is over: lockctl run asks some stores for 5 s, because they may get well.
func refuse(t *testing.T, all ...refusal) {
	for _, r := range all {
		t.Run(r.line, func(t *testing.T) {
			t.Parallel()
			says(t, r.url, r.status, r.text, r.line)
		})
	}
}

func TestRefusedByRedis(t *testing.T) {
	t.Parallel()
	addr, valkey := testservers.Redis(t), testservers.Valkey(t)
	url := "redis://" + addr
	redisCLI(t, addr, "SET", "lambdalock:foreign", "x")
	redisCLI(t, addr, "ACL", "SETUSER", "looker", "on", ">hunter2", "~*", "+ping", "+hello", "+client")
	for _, server := range []string{addr, valkey} {
		redisCLI(t, server, "ACL", "SETUSER", "reader", "on", ">hunter2", "~*", "+@all", "-@write", "+evalsha", "+eval")
	}
	refuse(t,
		refusal{url, exit.Damaged, "not a lock", "show foreign"},
		refusal{url, exit.Damaged, "not a lock", "revoke --fence 1 foreign"},
		refusal{url, exit.Damaged, "not a lock", "run foreign -- true"},
		refusal{url, 0, `1 entries are damaged or another program's, and not listed, such as \["lambdalock:foreign"\]`, "list"},
		refusal{url + "?cluster=true", exit.Config, "remove cluster=true", "run k -- true"},
		refusal{"redis://reader:hunter2@" + addr, exit.Permission, "The user executing the script can't run this command", "run k -- true"}, // however long it is to wait
		refusal{"valkey://reader:hunter2@" + valkey, exit.Permission, "has no permissions to run the '", "run k -- true"},
		refusal{"redis://looker:hunter2@" + addr, exit.Permission, "^lockctl: ", "show k"},
		refusal{"redis://looker:hunter2@" + addr, exit.Permission, "^lockctl: ", "check"})
}

func (p site) testRevoke(t *testing.T) {
	p.t = t
	lease := p.take("revoke", "hangs")
	p.says(exit.Busy, `"revoke" changed hands: nobody holds it with the fence 7; nothing was done`, "revoke --fence 7 revoke")
	p.says(exit.No, "is not held", "revoke --fence 7 revoke/free")
	require.NoError(t, p.renew(lease), "nothing was done")
	next := p.waits("revoke", 0)
	assert.Equal(t, 1, p.state("revoke").Waiting)

	p.says(0, `^the lease of "revoke" is revoked: hangs \(4f1c\) can renew it no more; the key opens within \S+, at \S+Z\.\n$`, "revoke --fence "+fence(lease)+" revoke")
	assert.Equal(t, 1, p.state("revoke").Waiting, "who waits keeps its place")
	require.NoError(t, p.store.Leave(t.Context(), "revoke", next.Owner))
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)
	assert.Equal(t, "revoked", p.state("revoke").State)
	assert.Regexp(t, `^revoked by .+@.+: was hangs \(4f1c\)$`, p.state("revoke").Holder.Name)
	p.says(exit.Busy, `busy: lock "revoke" was revoked by `, "run -n revoke -- true")
	p.says(exit.No, "was revoked already", "revoke --fence "+fence(lease)+" revoke")
	p.says(0, `^"revoke" is open\. The run with the fence `+fence(lease)+` may be at work for \S+ more, until \S+Z: `, "revoke --open-at-once --fence "+fence(lease)+" revoke")
	p.says(0, "", "run -n revoke -- true")
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)

	started := p.take("revoke/started", "pay")
	require.NoError(t, p.store.MarkStarted(t.Context(), started))
	p.says(exit.No, "cannot be opened at once: its work has started", "revoke --open-at-once --fence "+fence(started)+" revoke/started")
	require.NoError(t, p.renew(started), "nothing was done")
	assert.Contains(t, p.lockctl("revoke", "--fence", fence(started), "revoke/started").out, "; its work has started, so the key is in doubt within ")

	done := p.take("revoke/cooldown", "effect")
	require.NoError(t, p.store.Complete(t.Context(), done, nil, time.Minute))
	p.says(exit.No, `"revoke/cooldown" has the state cooldown, has no lease to revoke, and opens within `, "revoke --open-at-once --fence "+fence(done)+" revoke/cooldown")

	several := lockstore.Request{Key: "several", TTL: time.Minute, MaxHolders: 3}
	a, b := p.acquire("first", several), p.acquire("second", several)
	p.says(exit.Busy, "nobody holds it with the fence 7", "revoke --fence 7 several")
	p.says(0, `: first \(4f1c\) can renew it no more; its seat is free within `, "revoke --fence "+fence(a)+" several")
	require.ErrorIs(t, p.renew(a), lockstore.ErrLost)
	require.NoError(t, p.renew(b))
	p.says(exit.No, "; its seat is free within ", "revoke --fence "+fence(a)+" several")
	p.says(0, "", "revoke --open-at-once --fence "+fence(a)+" several")
	assert.Zero(t, p.acquire("third", several).Seat, "the seat is free")
}

type receipt struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

// What the operator says is what the repeat gets, and nobody else sees.
func (p site) testResolve(t *testing.T) {
	p.t = t
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
	live := p.take("charge/live", "pay")
	require.NoError(t, p.store.MarkStarted(t.Context(), live))
	p.says(exit.Busy, `is held by pay \(4f1c\)`, "resolve --fence "+fence(live)+" charge/live no-effect")

	effect, noEffect := fence(p.starts("charge/7")), fence(p.starts("charge/none"))
	p.awaitDoubt("charge/7")
	p.awaitDoubt("charge/none")
	p.says(0, `^KEY      charge/7\nSTATE    in doubt\nHOLDER   pay \(4f1c\)\nSINCE    \S+Z\nAGE      \d+s\nFENCE    `+effect+`\nWAITING  0\n$`, "show charge/7")
	doubt := p.lockctl("list", "--json", "--state", "in doubt", "charge/")
	assert.Equal(t, 3, strings.Count(doubt.out, "\n"), "two keys and the end: %s", doubt.out)
	p.says(exit.No, "is in doubt", "revoke --fence "+effect+" charge/7")
	p.says(exit.InDoubt, `lockctl: lock "charge/7" is in doubt: pay \(4f1c\)`, "run -E 0 charge/7 -- true")
	p.says(exit.No, "is in doubt with the fence "+effect+", and not with 7", "resolve --fence 7 charge/7 effect")
	p.says(0, "", "resolve --fence "+noEffect+" charge/none no-effect")
	assert.Equal(t, "free", p.state("charge/none").State)

	file := filepath.Join(t.TempDir(), "result.json")
	resolve := func(text string, status int, want string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		r := p.lockctl("resolve", "--fence", effect, "--result", file, "--result-version", "2", "--result-time", "1h", "charge/7", "effect")
		assert.Equal(t, status, r.status, r.err)
		assert.Contains(t, r.out+r.err, want)
		assert.NotContains(t, r.out+r.err, "s3cret")
	}
	resolve(`{"s3cret`, exit.Usage, "the result has 8 bytes and is no JSON")
	resolve(`"`+strings.Repeat("x", 261_631)+`"`, exit.Usage, "the result has 261633 bytes; want at most MaxResultBytes, 261632")
	_, err = charge(t.Context(), "7")
	require.IsType(t, &idempotency.RepeatInDoubt{}, err, "nothing was done")
	require.ErrorContains(t, err, "resolve the key with lockctl resolve")

	resolve(`{"order": "s3cret", "cents": 12345678901234567}`+"\n", 0, "\"charge/7\" is resolved: its work had its effect, and does not run again for 1h0m0s.\n")
	resolve(`{}`, 0, "\"charge/7\" was completed before, by lockctl resolve or by the work itself. Its result, and for how long it is stored, stay as they are.\n")
	assert.InDelta(t, time.Hour.Milliseconds(), p.state("charge/7").LeftMs, 60_000)
	got, err := charge(t.Context(), "7")
	require.NoError(t, err)
	assert.Equal(t, receipt{"s3cret", 12345678901234567}, got)
	for _, line := range []string{"show charge/7", "show --json charge/7", "list --json --state completed charge/", "list --state completed charge/", "watch --until completed charge/7"} {
		r := p.lockctl(strings.Fields(line)...)
		assert.Regexp(t, `(?s)completed.*pay.*4f1c`, r.out, line)
		assert.NotContains(t, r.out+r.err, "s3cret")
		assert.NotContains(t, r.out+r.err, "12345678901234567")
	}
	p.says(exit.No, `"charge/7" is not in doubt, it has the state completed; nothing was done`, "resolve --fence "+effect+" charge/7 no-effect")
	p.says(exit.Done, `lockctl: done already: lock "charge/7": the work was done by pay \(4f1c\)`, "run -n charge/7 -- true")
}

// What is said of a full disk is neither "no" nor that the store does not answer.
func (p site) testOutputNotWritable(t *testing.T) {
	p.t = t
	lease := p.take("full", "hangs")
	doubt := fence(p.starts("full/doubt"))
	p.awaitDoubt("full/doubt")
	for line, before := range map[string]string{
		"show full":   "",
		"list --json": "",
		"watch full":  "",
		"check":       "",
		"serve 0":     "",
		"revoke --fence " + fence(lease) + " full":           `the lease of "full" is revoked; `,
		"resolve --fence " + doubt + " full/doubt no-effect": `"full/doubt" is resolved; `,
	} {
		full, gone := io.Pipe()
		require.NoError(t, full.CloseWithError(errors.New("no space left on device")))
		status, said := inProcess(t, gone, p.url, strings.Fields(line)...)
		assert.Equal(t, exit.Output, status, line)
		assert.Equal(t, "lockctl: "+before+"the answer cannot be written: no space left on device\n", said)
	}
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost, "the lease is revoked all the same")
}

// Who releases without waking the parked run that is next is found.
func (p site) testNotWoken(t *testing.T) {
	p.t = t
	lease := p.take("parked", "withdraw")
	p.waits("parked", 8*time.Second)
	assert.NotContains(t, p.lockctl("check", "parked").out, "parked run")
	require.NoError(t, p.store.Release(t.Context(), lease))
	found := p.lockctl("check", "parked")
	assert.Equal(t, exit.No, found.status, found.err)
	assert.Contains(t, found.out, `"parked" was handed over to a parked run, fence `)
	assert.NotContains(t, found.out, "token-of")
}

// The region and the credentials are those of a profile. DynamoDB Local has other tables
// for each region and each access key, so a wrong profile finds no table.
func TestOnDynamoDB(t *testing.T) {
	t.Parallel()
	p := at(t, testservers.Table(t, testservers.DynamoDB(t), "locks", "key"))
	p.commands("account/7")
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
	for flags, status := range map[string]int{
		"--profile right":                        0,
		"":                                       0, // AWS_PROFILE is for AWS, and an emulator has a region and a key of its own
		"--profile elsewhere":                    exit.Config,
		"--profile elsewhere --region us-east-1": 0,
		"--profile nobody":                       exit.Config,
	} {
		cmd := lockctl(strings.Replace(p.url, "region=us-east-1&", "", 1), append([]string{"show", "k"}, strings.Fields(flags)...)...)
		cmd.Env = append(cmd.Env, env...)
		r := cmd.start(t).result(t)
		assert.Equal(t, status, r.status, "%q: %s", flags, r.err)
	}
}

func TestOnZooKeeper(t *testing.T) {
	t.Parallel()
	p := at(t, "zookeeper://"+testservers.ZooKeeper(t).Addr)
	p.commands("account/7")

	// A user without the rights is told so by each command.
	p = with(t, p.url+"/owned", func(name string) string { return map[string]string{stores.AuthVariable: "owner:pw"}[name] })
	lease := p.take("k", "withdraw")
	revoke := "revoke --fence " + fence(lease) + " k"
	for _, line := range []string{"show k", "list", revoke, "check"} {
		p.says(exit.Permission, `^lockctl: .*the server denies access to the node: look at ZOOKEEPER_AUTH.*\n$`, line)
	}
	require.NoError(t, p.renew(lease), "nothing was done")
	for _, line := range []string{"list", revoke} {
		cmd := lockctl(p.url, strings.Fields(line)...)
		cmd.Env = append(cmd.Env, "ZOOKEEPER_AUTH=owner:pw")
		assert.Contains(t, cmd.start(t).result(t).out, "withdraw")
	}
	require.ErrorIs(t, p.renew(lease), lockstore.ErrLost)
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

// In tests the databases write nothing to the disk at once, and check says so.
func TestOnPostgreSQL(t *testing.T) {
	t.Parallel()
	server := testservers.StartPostgreSQL(t)
	url := testservers.PostgreSQLURL(server.Addr)
	p, pooled := at(t, url+"&table=ops.locks"), at(t, testservers.PgBouncer(t, server, "transaction")+"&table=ops.locks")
	p.makeTable("postgres", url, "CREATE SCHEMA ops; CREATE ROLE looker LOGIN; GRANT USAGE ON SCHEMA ops TO looker;", "--table", "ops.locks")
	for key, p := range map[string]site{"direct": p, "pooled": pooled} {
		p.commands(key)
		p.says(exit.No, `^synchronous_commit is off or local, or fsync is off: .*\n .*\nidle_in_transaction_session_timeout is 0.*\n .*\n$`, "check")
	}
	looker := strings.Replace(p.url, "postgres@", "looker:hunter2@", 1)
	refuse(t,
		refusal{looker, exit.Permission, "the role needs SELECT, INSERT and UPDATE", "show k"},
		refusal{looker, exit.Permission, "^lockctl: ", "list"},
		refusal{looker, exit.Permission, "the role needs SELECT, INSERT and UPDATE", "run k -- true"},
		refusal{looker + "&table=other", exit.Config, "parameter table twice", "show k"},
		refusal{strings.Replace(looker, "ops.locks", "other", 1), exit.Config, "lockctl schema", "show k"},
		refusal{strings.Replace(looker, "/postgres?", "/nowhere?", 1), exit.Config, `database "nowhere" does not exist`, "show k"},
		refusal{strings.Replace(looker, "sslmode=disable", "sslmode=hunter3", 1), exit.Config, "the function that opens the database", "show k"})
}

func TestOnMariaDB(t *testing.T) {
	t.Parallel()
	addr := testservers.MariaDB(t).Addr
	p := at(t, "mysql://root@"+addr+"/locks?tls=false&table=ops")
	p.makeTable("mysql", "root@tcp("+addr+")/locks", "", "--dialect", "mysql", "--table", "ops")
	p.commands("account/7")
	p.says(exit.No, `^innodb_flush_log_at_trx_commit is not 1: .*\n .*\n$`, "check")
	refuse(t,
		refusal{strings.Replace(p.url, "root@", "root:hunter2@", 1), exit.Permission, "Access denied", "show k"},
		refusal{strings.Replace(p.url, "/locks?", "/nowhere?", 1), exit.Config, "Unknown database", "run k -- true"},
		refusal{strings.Replace(p.url, "table=ops", "table=other", 1), exit.Config, "lockctl schema", "list"},
		refusal{strings.Replace(p.url, "tls=false", "tls=hunter3", 1), exit.Config, "the function that opens the database", "show k"})
}

// What is wrong with a file is named, with what to do. Who looks at locks makes no file.
func TestOnSQLite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, text := "sqlite://"+filepath.Join(dir, "missing.db"), filepath.Join(dir, "text.db")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("this is no database. ", 100)), 0o600))
	p := at(t, "sqlite://"+filepath.Join(dir, "locks%20of%20a%3Fb.db"))
	p.commands("account/7")
	p.says(0, `^nothing that endangers locks was found\n$`, "check")
	for _, line := range []string{"show k", "list", "check", "revoke --fence 1 k"} {
		says(t, missing, exit.Config, "there is no such file; lockctl run and serve make it", line)
	}
	assert.NoFileExists(t, filepath.Join(dir, "missing.db"))
	says(t, p.url+"?table=other", exit.Config, "lockctl schema", "show k")
	says(t, p.url+"?table=other", 0, "^$", "run account/7 -- true") // another table
	file, err := os.Stat(filepath.Join(dir, "locks of a?b.db"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), file.Mode(), "the owners are secret")
	refuse(t,
		refusal{"sqlite://" + dir + "/none/locks.db", exit.Config, "unable to open database file", "run k -- true"},
		refusal{"sqlite://" + text, exit.Damaged, "it is no database", "show k"},
		refusal{"sqlite://locks.db", exit.Config, "sqlite:///FILE", "run k -- true"},
		refusal{p.url + "?mode=ro", exit.Permission, "only reads", "run k2 -- true"})
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

// Who reads the output of lockctl local may end: nothing is left, and the status says so besides what is wrong.
func TestNobodyReadsLocal(t *testing.T) {
	t.Parallel()
	event := filepath.Join(t.TempDir(), "event.json")
	require.NoError(t, os.WriteFile(event, []byte("{}"), 0o600))
	local := lockctl("redis://"+testservers.Redis(t), "local", "--event", event, "--before", "exit 3", binary)
	out, gone, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, out.Close())
	folder := t.TempDir()
	local.Stdout, local.Env = gone, append(local.Env, "TMPDIR="+folder)
	local.start(t)
	assert.Equal(t, exit.Output, local.status(t))
	assert.Contains(t, local.err.String(), `--before: "exit 3": exit status 3`)
	assert.Contains(t, local.err.String(), "the answer cannot be written: ")
	require.NoError(t, gone.Close())
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Empty(t, left)
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
		p.waits(key, lockstore.MaxParkedTurn)
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
	p.says(0, "", "watch --until held run")
	p.waits("run", lockstore.MaxParkedTurn)
	require.NoError(t, in.Close())
	woken("run", run.result(t))
	denied.Store(true)
	r := revoke("denied")
	assert.Equal(t, 0, r.status, r.err)
	assert.Contains(t, r.err, "lockctl: warning: a parked run has to ask for the key again, and was not woken: ")
	assert.Contains(t, r.err, "states:SendTaskSuccess")
	assert.NotContains(t, r.err, "token-of-")
}
