package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// What is wrong is told in one line, without a password. A store that cannot be used is told as one that does not answer only if
// another try may mend it.
func TestCommand(t *testing.T) {
	for name, variable := range map[string]string{
		"LOCK_URL": "", "AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": "", "AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
	} {
		t.Setenv(name, variable)
	}
	_, err := x509.SystemCertPool() // the first time it reads files, on a busy machine for longer than a call may last
	require.NoError(t, err)
	unknown := httptest.NewUnstartedServer(http.NotFoundHandler())
	unknown.Config.ErrorLog = log.New(io.Discard, "", 0)
	unknown.StartTLS() // with a certificate that nobody knows
	defer unknown.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	asks := miniredis.RunT(t)
	asks.RequireAuth("the password")
	addr := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for line, c := range map[string]struct {
		status int
		text   string
	}{
		"":                                       {0, "  serve "},
		"--help":                                 {0, "79 lock lost"},
		"--version":                              {0, "lockctl (devel), " + runtime.Version() + " "},
		"help run-details":                       {0, "Ctrl-Z stops lockctl alone"},
		"show --help":                            {0, "Examples:\n  lockctl show account/7\n"},
		"unlock":                                 {exit.Usage, `unknown command "unlock"; see lockctl --help`},
		"guard-process":                          {exit.Usage, "lockctl run starts it"},
		"guard-process --help true":              {exit.Usage, "lockctl run starts it"},
		"show a b":                               {exit.Usage, `lockctl show has 2 arguments; want "lockctl show [flags] KEY"`},
		"show --josn a":                          {exit.Usage, "unknown flag: --josn; see lockctl show --help"},
		"show k":                                 {exit.Config, "there is no store: want --store or LOCK_URL"},
		"show --store nonsense k":                {exit.Config, "--store, LOCK_URL: lockstore: the URL has no scheme"},
		"show --store redis://:hunter2@[::1 k":   {exit.Config, "--store, LOCK_URL: lockstore: the URL cannot be read"},
		"show --store memory:// k":               {exit.Config, `no store for the scheme "memory"; linked here: dsql, dynamodb, elasticache, mariadb, mysql, postgres, postgresql, redis, rediss, sqlite, valkey, valkeys, zookeeper`},
		"show --store zookeeper://127.0.0.1:1 k": {exit.Unavailable, "connection refused"},
		"show --store redis://:hunter2@127.0.0.1:1 k":                                             {exit.Unavailable, "connection refused"},
		"show --store redis://:hunter2@" + asks.Addr() + " k":                                     {exit.Permission, "WRONGPASS"},
		"show --store redis://" + asks.Addr() + " k":                                              {exit.Permission, "NOAUTH"},
		"show --store redis://:hunter2@cache.example.com k":                                       {exit.Config, "rediss://"},
		"show --store redis://127.0.0.1?x=y k":                                                    {exit.Config, "the redis URL has the unknown parameter number 1"},
		"show --store rediss://" + addr(unknown) + " k":                                           {exit.Config, "certificate signed by unknown authority"},
		"show --store rediss://" + addr(plain) + " k":                                             {exit.Config, "first record does not look like a TLS handshake"},
		"show --store dynamodb://x?region=eu-central-1 k":                                         {exit.Config, "dynamostore: the table name"},
		"show --store dynamodb://locks k":                                                         {exit.Config, "the region is missing"},
		"show --store dynamodb://locks?region=eu-central-1 k":                                     {exit.Config, "there are no AWS credentials to ask with: sign in, or set --profile or AWS_PROFILE: dynamostore: table locks in eu-central-1: nothing was sent (key \"k\")"},
		"show --store dynamodb://locks?endpoint=http://127.0.0.1:1 k":                             {exit.Unavailable, "there is no connection to DynamoDB"},
		"show --store dynamodb://locks?region=us-east-1&endpoint=https://" + addr(unknown) + " k": {exit.Config, "certificate signed by unknown authority"},
		"show --store elasticache://me@127.0.0.1:1?cache=c --region eu-central-1 k":               {exit.Config, "there are no AWS credentials to ask with: "},
		"show --store dynamodb://locks?region=x --profile no-such-profile k":                      {exit.Config, "the AWS configuration cannot be read"},
		"show --store dynamodb://locks?region=eu-west-1 --region us-east-1 k":                     {exit.Usage, "--region, and a region in the store's URL"},
		"schema --table=no-table":                                                                 {exit.Usage, "Table is"},
		"schema --dialect oracle":                                                                 {exit.Usage, `--dialect is "oracle"; want one of dsql, mysql, postgres, sqlite`},
		"schema --dialect dsql":                                                                   {0, "CREATE TABLE IF NOT EXISTS"},
		"list --limit -1":                                                                         {exit.Usage, "--limit is -1; want 0 or more"},
		"list --longer-than -1s":                                                                  {exit.Usage, "--longer-than is -1s; want 0s or more"},
		"list --state=":                                                                           {exit.Usage, `--state is ""; want one of free, reserved, held, revoked, completed, cooldown, in doubt`},
		"list --state open":                                                                       {exit.Usage, `--state is "open"; want one of free,`},
		"watch --until never k":                                                                   {exit.Usage, `--until is "never"; want one of free,`},
		"revoke k":                                                                                {exit.Usage, "want --fence"},
		"revoke --fence -1 k":                                                                     {exit.Usage, "want --fence"},
		"revoke --fence abc k":                                                                    {exit.Usage, "see lockctl revoke --help"},
		"resolve k effect":                                                                        {exit.Usage, "want --fence"},
		"resolve --fence 1 k":                                                                     {exit.Usage, "lockctl resolve has 1 arguments"},
		"resolve --fence 1 k maybe":                                                               {exit.Usage, `the last argument is "maybe"; want effect or no-effect`},
		"resolve --fence 1 --result x k no-effect":                                                {exit.Usage, "--result, --result-version and --result-time are for effect"},
		"resolve --fence 1 --result-version 2 k effect":                                           {exit.Usage, "--result-version wants --result"},
		"resolve --fence 1 --result /nowhere k effect":                                            {exit.Usage, "--result: open /nowhere: no such file"},
		"resolve --fence 1 --result= k effect":                                                    {exit.Usage, "--result is empty; want a FILE"},
		"resolve --fence 1 --result x --result-version= k effect":                                 {exit.Usage, "--result-version is empty; want a TEXT"},
		"watch --until= k":                                                                        {exit.Usage, "--until is empty; want a STATE"},
		"show --store= k":                                                                         {exit.Usage, "--store is empty; want a URL"},
		"run --region= k -- true":                                                                 {exit.Usage, "--region is empty; want a REGION"},
		"run --profile= k -- true":                                                                {exit.Usage, "--profile is empty; want a NAME"},
		"serve --store=":                                                                          {exit.Usage, "--store is empty; want a URL"},
		"schema --table=":                                                                         {exit.Usage, "--table is empty; want a NAME"},
		"local --before= --event x .":                                                             {exit.Usage, "--before is empty; want a COMMAND"},
		"resolve --fence 1 --result-time 0.5 k effect":                                            {exit.Usage, "--result-time is 500ms; want 1s to 744h0m0s"},
		"resolve --fence 1 --result-time 1d k effect":                                             {exit.Usage, "want seconds, or a duration such as 24h, 1m30s or 500ms"},
		"ui -h":          {0, "The address is secret"},
		"ui --every 0.5": {exit.Usage, "--every is 500ms; want 1s to 1h0m0s"},
		"ui --keys":      {exit.Usage, "--keys wants a key"},
		"ui a\x01b":      {exit.Usage, "control character"},
		"ui --keys --store redis://127.0.0.1:1 k":         {exit.Unavailable, "connection refused"},
		"serve 0.0.0.0:1":                                 {exit.Usage, "ADDRESS is"},
		"serve --store etcd://x 0":                        {exit.Config, `no store for the scheme "etcd"; linked here: dsql, dynamodb, elasticache, mariadb, memory, mysql, postgres,`},
		"run k --":                                        {exit.Usage, "lockctl run [flags] KEY -- COMMAND"},
		"run k -n -- true":                                {exit.Usage, "flags, KEY, --"},
		"run -n -w 1 k -- true":                           {exit.Usage, "want one of them"},
		"run --ttl 0.5 k -- true":                         {exit.Usage, "--ttl is 500ms; want 1s to 24h"},
		"run -w soon k -- true":                           {exit.Usage, "want seconds, or a duration"},
		"run -E 256 k -- true":                            {exit.Usage, "want 0 to 255"},
		"run --max-holders 0 k -- true":                   {exit.Usage, "--max-holders is 0; want 1 to 32"},
		"run --at-least-for 1h --max-holders 2 k -- true": {exit.Usage, "--max-holders is 2 with --at-least-for; want 1"},
		"run --store redis://127.0.0.1:1 a\x01b -- true":  {exit.Usage, "control character"},
	} {
		t.Run(line, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command()
			cmd.SetArgs(strings.Fields(line))
			cmd.SetOut(&out)
			err := cmd.ExecuteContext(t.Context())
			assert.Equal(t, c.status, exit.Status(err))
			if err != nil {
				require.ErrorContains(t, err, c.text)
				for _, never := range []string{"hunter2", "lock store is unavailable", "\n"} {
					assert.NotContains(t, err.Error(), never)
				}
			} else {
				require.Contains(t, out.String(), c.text)
			}
		})
	}
}

// What the SDK and the guard say around an error is not said.
func TestFailedIsShort(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain",
		`account "a": operation error DynamoDB: UpdateItem, https response error StatusCode: 400, RequestID: 55feab0a-8d86, ResourceNotFoundException: no table`:                                                            `account "a": ResourceNotFoundException: no table`,
		`operation error DynamoDB: UpdateItem, exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: , request send failed, Post "http://h:1/": dial tcp h:1: connect: connection refused`: "dial tcp h:1: connect: connection refused",
		`dynamostore: table locks: there is no connection (key "k"): lock store is unavailable: dial tcp`:                                                                                                                   `dynamostore: table locks: there is no connection (key "k"): dial tcp`,
		`dynamostore: table locks: it does not exist (key "k"): lock entry is foreign or corrupt: no table`:                                                                                                                 `dynamostore: table locks: it does not exist (key "k"): no table`,
		"operation error DynamoDB: GetItem, get identity: no credentials":                                                                                                                                                   "get identity: no credentials",
	} {
		long := errors.New(text)
		err := stores.Failed(long)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, long)
	}
	err := stores.Failed(&guard.LockStoreUnavailable{Key: "k", Err: fmt.Errorf("there is no connection: %w: refused", lockstore.ErrUnavailable)})
	require.EqualError(t, err, "there is no connection: refused")
	assert.Equal(t, exit.Unavailable, exit.Status(err))
	err = stores.Failed(&guard.LockCorrupt{Key: "k", Err: fmt.Errorf("there is no such table: %w", lockstore.ErrCorrupt)})
	require.EqualError(t, err, "there is no such table: lock entry is foreign or corrupt")
	assert.Equal(t, exit.Damaged, exit.Status(err))
}

// Who looks at the help of run sees an example at once, and all of it in a window of 40 lines.
func TestHelpOfRunIsShort(t *testing.T) {
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs([]string{"run", "--help"})
	cmd.SetOut(&out)
	require.NoError(t, cmd.Execute())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.LessOrEqual(t, len(lines), 40)
	assert.Contains(t, lines[5], "  lockctl run ")
}

// The commands of these pages have flags and arguments that there are.
func TestCommandsOfThePages(t *testing.T) {
	commands := 0
	for _, page := range []string{"operations.md", "stores.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		for _, line := range regexp.MustCompile(`(?m)^    lockctl .*$`).FindAllString(string(text), -1) {
			sh := exec.CommandContext(t.Context(), "sh", "-c", `lockctl() { printf '%s\n' "$@"; }`+"\n"+line)
			sh.Dir = t.TempDir()
			words, err := sh.Output()
			require.NoError(t, err, line)
			cmd, args, err := command().Find(strings.Split(strings.TrimSpace(string(words)), "\n"))
			require.NoError(t, err, line)
			require.NoError(t, cmd.ParseFlags(args), line)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), line)
			commands++
		}
	}
	assert.Greater(t, commands, 15)
}

// A signal replaces no error that says what a call has done. TestSignalEndsLocal has one that it ends.
func TestInterrupted(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	end(&exit.BySignal{Signal: syscall.SIGTERM})
	held := &exit.Error{Status: exit.No, Err: errors.New("is not held")}
	assert.Equal(t, held, interrupted(ctx, held))
	assert.NoError(t, interrupted(ctx, nil))
}
