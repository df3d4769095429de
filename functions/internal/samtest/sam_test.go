//go:build sam

package samtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

const (
	region   = "us-east-1"
	loopback = "127.0.0.1"
	hostName = "host.docker.internal" // what the functions call this machine

	// localSecret is what the lock service signs with where there is no other secret.
	localSecret = "text:///signs-tokens-on-this-machine-and-nowhere-else"
)

var openers = []lockstore.SchemeOpener{dynamostore.Opener, redisstore.Opener, zkstore.Opener}

// starts are the stores on this machine.
var starts = map[string]func(*testing.T, *template.Template) store{"Redis": startRedis, "DynamoDB": startDynamo, "ZooKeeper": startZooKeeper}

// store is where locks and accounts are: on this machine, or in AWS.
type store struct {
	locks, accounts string                      // URLs; locks is "" where no lock can be taken from here
	fresh           func(context.Context) error // empties the tables; in AWS it does nothing
	getenv          func(string) string         // has the credentials

	url func(host, table string) string // of a server on this machine
}

// tableOf is the table that each variable of a function names, by its logical id.
func tableOf(t *testing.T, tm *template.Template) map[string]string {
	functions, err := tm.Functions()
	require.NoError(t, err)
	all := map[string]string{}
	for _, f := range functions {
		for name, value := range f.Environment.Variables {
			if id, ok := strings.CutPrefix(value, "dynamodb://"); ok {
				require.Equal(t, template.TableType, tm.Resources[id].Type, "%s names %s", name, id)
				all[name] = id
			}
		}
	}
	for _, name := range []string{"LOCK_URL", "ACCOUNTS_URL"} {
		require.NotEmpty(t, all[name], "no function has a variable %s: !Sub dynamodb://${TABLE}", name)
	}
	return all
}

// variables are the environment of the functions. The SAM CLI has no authorizer: its
// requests are anonymous.
func (s store) variables(t *testing.T, tm *template.Template) map[string]string {
	v := map[string]string{"LOCK_TOKEN_SECRET": localSecret, "LOCK_CALLERS": `{"*": ["shared/"], "anonymous": ["shared/"]}`}
	for name, table := range tableOf(t, tm) {
		v[name] = s.url(hostName, table)
	}
	return v
}

// locksAt is the store with its locks elsewhere: at the URL of a server on this machine.
func (s store) locksAt(t *testing.T, tm *template.Template, at func(host string) string, fresh func(context.Context) error) store {
	locks, url, freshTables := tableOf(t, tm)["LOCK_URL"], s.url, s.fresh
	s.locks = at(loopback)
	s.url = func(host, table string) string {
		if table == locks {
			return at(host)
		}
		return url(host, table)
	}
	s.fresh = func(ctx context.Context) error { return errors.Join(fresh(ctx), freshTables(ctx)) }
	return s
}

// startRedis starts a Redis for the locks, that the containers reach, and who else is on this
// machine, but nobody from outside.
func startRedis(t *testing.T, tm *template.Template) store {
	args := []string{"--protected-mode", "no", "--bind", loopback}
	if address := bridgeAddress(t); address != "" {
		args = append(args, address)
	}
	addr := testservers.Redis(t, args...)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	client := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return startDynamo(t, tm).locksAt(t, tm, func(host string) string { return "redis://" + net.JoinHostPort(host, port) },
		func(ctx context.Context) error { return client.FlushAll(ctx).Err() })
}

// bridgeAddress is this machine's address on the containers' network. It is empty where
// this machine has no such interface: Docker Desktop sends on to our loopback.
//
// The interface is asked, because the network's own Gateway is empty in an engine that has
// made the interface itself and was not started again since.
func bridgeAddress(t *testing.T) string {
	name, err := exec.CommandContext(t.Context(), "docker", "network", "inspect", "bridge",
		"--format", `{{index .Options "com.docker.network.bridge.name"}}`).Output()
	if err != nil {
		return "" // without an engine there are no containers
	}
	bridge, err := net.InterfaceByName(strings.TrimSpace(string(name)))
	if err != nil {
		return ""
	}
	addresses, err := bridge.Addrs()
	require.NoError(t, err)
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

// startDynamo starts a DynamoDB Local, which listens on all addresses.
func startDynamo(t *testing.T, tm *template.Template) store {
	endpoint := testservers.DynamoDB(t)
	tables, err := tm.Tables()
	require.NoError(t, err)
	for _, table := range tables {
		testservers.Table(t, endpoint, table.ID, table.Key)
	}
	client := dynamodb.New(dynamodb.Options{BaseEndpoint: &endpoint, Region: region, Credentials: credentials.NewStaticCredentialsProvider("local", "local", "")})
	s := store{
		// The functions reach it by hostName, and we by loopback.
		url: func(host, table string) string {
			return fmt.Sprintf("dynamodb://%s?region=%s&endpoint=%s", table, region, strings.Replace(endpoint, loopback, host, 1))
		},
		fresh: func(ctx context.Context) error {
			for _, table := range tables {
				if _, err := client.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &table.ID}); err != nil {
					return err
				}
				testservers.Table(t, endpoint, table.ID, table.Key)
			}
			return nil
		},
		getenv: func(name string) string { // it takes any credentials, and a ZooKeeper here has no accounts
			return map[bool]string{true: "local"}[strings.HasPrefix(name, "AWS_")]
		},
	}
	names := tableOf(t, tm)
	s.locks, s.accounts = s.url(loopback, names["LOCK_URL"]), s.url(loopback, names["ACCOUNTS_URL"])
	return s
}

// startZooKeeper starts a ZooKeeper for the locks, which listens on all addresses.
func startZooKeeper(t *testing.T, tm *template.Template) store {
	addr := testservers.ZooKeeper(t, "clientPortAddress=0.0.0.0").Addr
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return startDynamo(t, tm).locksAt(t, tm, func(host string) string { return "zookeeper://" + net.JoinHostPort(host, port) + "/locks" },
		func(context.Context) error { return removeBelow(conn, "/locks") })
}

// removeBelow removes all nodes below a path.
func removeBelow(conn *zk.Conn, path string) error {
	children, _, err := conn.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	for _, child := range children {
		err = errors.Join(err, removeBelow(conn, path+"/"+child), conn.Delete(path+"/"+child, -1))
	}
	return err
}

// sam is the SAM CLI.
type sam struct {
	program, arch string
	image         string // base image
	built         string // folder of what it builds, absolute
}

// environment is ours without anything of AWS, because the SAM CLI would hand a
// person's own credentials to the functions, or ask AWS with them.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "AWS_") || strings.HasPrefix(v, "SAM_")
	})
	for _, name := range []string{"NO_PROXY", "no_proxy"} { // containers listen on several loopback addresses
		env = append(env, name+"="+strings.TrimPrefix(os.Getenv(name)+",127.0.0.0/8", ","))
	}
	return append(env,
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local", "AWS_DEFAULT_REGION="+region, "SAM_CLI_TELEMETRY=0",
		// Each command asks AWS for the account's number, and without a network it tries for
		// seconds. Nobody listens here, so it goes on at once with a number of its own.
		"AWS_ENDPOINT_URL=http://"+loopback+":1", "AWS_MAX_ATTEMPTS=1")
}

// stopTime is how long the SAM CLI may take to remove its containers.
const stopTime = 20 * time.Second

func (s sam) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is for us, who end it in its turn
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTime
	return cmd
}

// run runs one command to its end.
func (s sam) run(t *testing.T, ctx context.Context, args ...string) {
	t.Logf("sam %s", strings.Join(args, " "))
	cmd := s.command(ctx, args...)
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOFLAGS=-trimpath -tags=lambda.norpc '-ldflags=-s -w'") // as the functions are deployed
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "sam %s: %s", args[0], text)
}

// printed runs the first command of README.md that has these words, as it is printed there and in the folder of the example, and returns what it
// writes to standard output. more is what is different on this machine, and stands behind the arguments that are printed.
func (s sam) printed(t *testing.T, ctx context.Context, words string, more ...string) []byte {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^    (.*\b` + words + `\b.*)$`).FindSubmatch(page)
	require.NotEmpty(t, line, "README.md has no command %s", words)
	t.Logf("%s", line[1])
	folder := t.TempDir()
	program := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\" '%s'\n", s.program, strings.Join(more, "' '"))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "sam"), []byte(program), 0o700))
	s.program = "sh"
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := s.command(ctx, "-c", string(line[1]))
	var answer, log bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = example, &answer, &log
	cmd.Env = append(cmd.Env, "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	require.NoError(t, cmd.Run(), "%s: %s", line[1], log.Bytes())
	return answer.Bytes()
}

// local runs the functions by sam local, with these variables.
type local struct {
	sam
	variables map[string]string
	file      string   // has them for the SAM CLI
	listens   []string // see containerInterface
}

// options are those that all local commands have.
func (l local) options() []string {
	text, err := json.Marshal(map[string]any{"Parameters": l.variables})
	if err = errors.Join(err, os.WriteFile(l.file, text, 0o600)); err != nil {
		panic(err)
	}
	return append(slices.Clone(l.listens),
		"--template", filepath.Join(l.built, "template.yaml"),
		"--parameter-overrides", "Architecture="+l.arch,
		"--skip-pull-image", "--invoke-image", l.image,
		"--env-vars", l.file,
		"--add-host", hostName+":host-gateway")
}

// once runs the event in a container of its own. The answer stands alone on standard
// output. The exit status says nothing about the function.
func (l local) once(ctx context.Context, f fixture) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := l.command(ctx, append([]string{"local", "invoke", f.function, "--event", "-"}, l.options()...)...)
	var answer, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(f.Event), &answer, &log
	if err := cmd.Run(); err != nil || answer.Len() == 0 {
		return nil, fmt.Errorf("sam local invoke %s: no answer: %w: %s", f.function, err, log.Bytes())
	}
	return answer.Bytes(), nil
}

// example is a module of its own, and is built into a folder of its own.
const example = "examples/own-function"

func (s sam) builtExample() string { return filepath.Join(s.built, "own-function") }

// example invokes examples/own-function on the store as README.md says.
func (l local) example(t *testing.T, ctx context.Context, on store) {
	l.built = l.builtExample()
	text, err := os.ReadFile(example + "/local.json")
	require.NoError(t, err)
	var file struct{ Parameters map[string]string } // which the store of this test takes the place of
	require.NoError(t, json.Unmarshal(text, &file))
	for name := range file.Parameters {
		require.Contains(t, l.variables, name, "local.json")
	}
	require.NoError(t, on.fresh(ctx))
	for _, want := range []string{`{"order": "o-1", "balance": 500}`, `{"order": "o-1", "balance": 1000}`} {
		require.NoError(t, eventfiles.SameAnswer([]byte(want), l.printed(t, ctx, "sam local invoke", l.options()...)))
	}
}

// lastPort is the last that freePort gave away.
var lastPort atomic.Int32

// freePort is a port for a program that starts later. The system gives connections other ports than those below 5000.
func freePort(t *testing.T) string {
	for {
		port := strconv.Itoa(int(4000 + lastPort.Add(1)))
		if l, err := net.Listen("tcp", net.JoinHostPort(loopback, port)); err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
}

// lastInterface is the last of the addresses on which containers listen.
var lastInterface atomic.Int32

// containerInterface is an address for the containers of one store. The SAM CLI looks for a free port before it starts a
// container, and two of them that start at the same time would sometimes find the same one. Only Linux has all of
// 127.0.0.0/8.
func containerInterface() []string {
	if runtime.GOOS != "linux" {
		return nil
	}
	address := fmt.Sprint("127.0.1.", lastInterface.Add(1))
	return []string{"--container-host", address, "--container-host-interface", address}
}

// serve starts the functions, or the HTTP API before them, until the test ends.
func (l local) serve(t *testing.T, command string) *service {
	port := freePort(t)
	args := append([]string{"local", command, "--warm-containers", "LAZY", "--port", port, "--no-watch"}, l.options()...)
	t.Logf("sam %s", strings.Join(args, " "))
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := l.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // the log says how it ended
		text, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		if t.Failed() {
			t.Logf("%s", text)
		}
	})
	endpoint := "http://" + net.JoinHostPort(loopback, port)
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(loopback, port), time.Second)
		return err == nil && conn.Close() == nil
	}, time.Minute, 20*time.Millisecond, "sam %s does not answer", args[1])
	return &service{lambda: endpoint, api: endpoint}
}
