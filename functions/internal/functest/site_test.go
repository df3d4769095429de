package functest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// target is where a deployment of the template has its locks and tables: real
// servers. The functions find them by the template's own URLs, through proxies
// that note what the functions do.
type target struct {
	values   map[string]string // of the template
	name     string
	endpoint string // of DynamoDB
	proxy    string // to it
	used     *usage
	// locks are those of one event, by the template's LOCK_URL, and the same locks for
	// the test; env is what else the functions need for them. nil where the locks are
	// in a table.
	locks func(t *testing.T, event, lockURL string) (url string, env []string, store lockstore.Store)
}

// usage is what functions did since they were asked about last, and what they know
// that nobody is to see.
type usage struct {
	mu     sync.Mutex
	done   actions
	owners map[string]bool
	hidden map[string]bool // passwords, tokens and the like
}

func newUsage() *usage {
	return &usage{done: actions{}, owners: map[string]bool{}, hidden: map[string]bool{credential: true}}
}

// credential is the secret part of the functions' credentials.
const credential = "the-secret-key-and-the-session-token"

// hides fails the test if an owner or a secret is in a text. more are those of one
// event (M40).
func (u *usage) hides(t *testing.T, text string, more ...string) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, secret := range slices.Concat(slices.Collect(maps.Keys(u.owners)), slices.Collect(maps.Keys(u.hidden)), more) {
		if strings.Contains(text, secret) {
			t.Errorf("%q is shown in %s", secret, text)
		}
	}
}

// owner notes who is named in a request of a lock.
func (u *usage) owner(text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(text) >= 16 { // as all owners; what is shorter is no secret
		u.owners[text] = true
	}
}

func (u *usage) secret(text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hidden[text] = true
}

func (u *usage) note(action string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done[action] = true
}

// dynamoDB starts a way to DynamoDB that notes what passes.
func (u *usage) dynamoDB(t *testing.T, endpoint string) string {
	target, err := url.Parse(endpoint)
	require.NoError(t, err)
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		var in struct {
			TableName                 string // stays "" for an action on several tables or on none
			ExpressionAttributeValues map[string]map[string]any
		}
		body, err := io.ReadAll(r.In.Body)
		assert.NoError(t, errors.Join(err, json.Unmarshal(body, &in)))
		r.Out.Body = io.NopCloser(bytes.NewReader(body))
		for _, name := range []string{":me", ":theirs"} {
			if text, ok := in.ExpressionAttributeValues[name]["S"].(string); ok {
				u.owner(text)
			}
		}
		table, _, _ := strings.Cut(in.TableName, "-")
		_, action, _ := strings.Cut(r.In.Header.Get("X-Amz-Target"), ".")
		u.note("dynamodb:" + action + " " + table)
	}})
	t.Cleanup(server.Close)
	return server.URL
}

// secrets starts a Secrets Manager that notes what it is asked for.
func (u *usage) secrets(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ SecretId, VersionStage string }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&in))
		u.note(strings.Replace(r.Header.Get("X-Amz-Target"), ".", ":", 1) + " " + in.SecretId)
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		text := strings.Repeat(in.VersionStage, 4)
		u.secret(text)
		assert.NoError(t, json.NewEncoder(w).Encode(map[string]string{"SecretString": text}))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// redis lets connections through to a Redis, and notes which cache and user
// their tokens are for.
func (u *usage) redis(t *testing.T, l net.Listener, addr string) {
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			all.Go(func() { u.connection(client, addr) })
		}
	})
	t.Cleanup(func() { assert.NoError(t, l.Close()); all.Wait() })
}

var token = regexp.MustCompile(`([\w-]+)/\?(Action=connect&\S+)`)

// connection ends when one of its sides does.
func (u *usage) connection(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	first := make([]byte, 4096) // who it is comes in one piece, before anything else
	n, err := client.Read(first)
	if err != nil {
		return
	}
	if found := token.FindSubmatch(first[:n]); found != nil {
		u.secret(string(found[0]))
		query, _ := url.ParseQuery(string(found[2])) // what is not there is noted as ""
		u.note(connect(strings.ToLower(query.Get("ResourceType")), string(found[1])))
		u.note(connect("user", query.Get("User")))
	}
	if _, err := server.Write(first[:n]); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(client, server)
		client.Close()
	}()
	_, _ = io.Copy(server, io.TeeReader(client, &scripts{u: u}))
}

// scripts reads from what a client sends who is named in scripts: the argument
// behind the key.
type scripts struct {
	u    *usage
	rest []byte
}

var script = regexp.MustCompile(`(?is)\r\neval(?:sha)?\r\n\$\d+\r\n.*?\r\n\$1\r\n1\r\n\$\d+\r\n[^\r]*\r\n\$\d+\r\n([^\r]*)\r\n`)

func (s *scripts) Write(b []byte) (int, error) {
	s.rest = append(s.rest, b...)
	for {
		found := script.FindSubmatchIndex(s.rest)
		if found == nil {
			return len(b), nil
		}
		s.u.owner(string(s.rest[found[2]:found[3]]))
		s.rest = s.rest[found[1]:]
	}
}

func config(t *testing.T, raw string) lockstore.Config {
	t.Helper()
	u, err := lockstore.ParseURL(raw)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(string) string { return "local" }}
}

// dynamoTarget has all tables in DynamoDB Local; events have their own.
func dynamoTarget(t *testing.T, endpoint string) target {
	u := newUsage()
	return target{onDynamoDB, "dynamodb", endpoint, u.dynamoDB(t, endpoint), u, nil}
}

// cacheTarget has the locks in a Redis that is like the cache that the template
// makes: in cluster mode, by TLS, for a user who may do what its access string
// says. That the user's token is genuine nobody looks at. Events have their own
// prefix.
func cacheTarget(t *testing.T, endpoint string) target {
	u := newUsage()
	authority := httptest.NewTLSServer(nil) // for its certificate, which is 127.0.0.1's
	t.Cleanup(authority.Close)
	trusted := filepath.Join(t.TempDir(), "trusted.pem")
	require.NoError(t, os.WriteFile(trusted, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw}), 0o600))
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: authority.TLS.Certificates})
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	addr := testservers.Redis(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port)
	u.redis(t, l, addr)

	admin := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { assert.NoError(t, admin.Close()) })
	var may struct{ AccessString string }
	require.NoError(t, readTemplate(t, onMadeCache).Resources["CacheUserResource"].Decode(&may))
	user := []any{"ACL", "SETUSER", onMadeCache["CacheUser"], "nopass"}
	for _, rule := range strings.Fields(may.AccessString) {
		user = append(user, rule)
	}
	require.NoError(t, admin.Do(t.Context(), user...).Err())
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		info, err := admin.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, 20*time.Second, 20*time.Millisecond)

	return target{onMadeCache, "elasticache", endpoint, u.dynamoDB(t, endpoint), u,
		func(t *testing.T, event, lockURL string) (string, []string, lockstore.Store) {
			require.Contains(t, lockURL, ":6379?")
			prefix := "prefix=" + redisstore.DefaultPrefix + event + ":"
			store, err := redisstore.Open(t.Context(), config(t, "redis://"+addr+"?"+prefix))
			require.NoError(t, err)
			return strings.Replace(lockURL, ":6379?", ":"+port+"?"+prefix+"&", 1), []string{"SSL_CERT_FILE=" + trusted}, store
		}}
}

// events runs a function on all its events, and returns what it did.
func (s target) events(t *testing.T, folder, binary string) actions {
	fixtures, err := eventfiles.Read("../../../events", filepath.Base(folder))
	require.NoError(t, err)
	t.Run("events", func(t *testing.T) {
		for _, f := range fixtures {
			t.Run(f.Name, func(t *testing.T) { s.event(t, folder, binary, f) })
		}
	})
	s.used.mu.Lock()
	defer s.used.mu.Unlock()
	require.NotEmpty(t, s.used.owners, "no request named an owner")
	t.Logf("%d owners and %d secrets are in no log and no answer", len(s.used.owners), len(s.used.hidden))
	done := s.used.done
	s.used.done = actions{}
	return done
}

// event runs a function on one event, with tables of its own: empty ones, and the
// accounts.
func (s target) event(t *testing.T, folder, binary string, f eventfiles.Fixture) {
	t.Parallel()
	tm := readTemplate(t, s.values)
	env := []string{"AWS_SECRET_ACCESS_KEY=" + credential, "AWS_SESSION_TOKEN=" + credential, "AWS_ENDPOINT_URL_SECRETS_MANAGER=" + s.used.secrets(t)}
	functions, err := tm.Functions()
	require.NoError(t, err)
	known, err := tm.Tables()
	require.NoError(t, err)
	variables := functions[slices.IndexFunc(functions, func(f template.Function) bool { return f.CodeURI == folder })].Environment.Variables
	tables := map[string]string{} // URLs for the test, by variable
	for name, value := range variables {
		for _, table := range known {
			if value == "dynamodb://"+table.ID {
				tables[name] = Table(t, s.endpoint, table.ID+"-"+s.name+"-"+f.Name, table.Key)
				variables[name] = strings.Replace(tables[name], s.endpoint, s.proxy, 1)
			}
		}
	}
	var store lockstore.Store
	if s.locks == nil {
		store, err = dynamostore.Open(t.Context(), config(t, tables["LOCK_URL"]))
		require.NoError(t, err)
	} else {
		var more []string
		variables["LOCK_URL"], more, store = s.locks(t, f.Name, variables["LOCK_URL"])
		env = append(env, more...)
	}
	hold(t, store, f.Held)
	at := config(t, tables["ACCOUNTS_URL"])
	ledger, err := accounts.Open(at.URL, at.Getenv)
	require.NoError(t, err)
	(&Site{Ledger: ledger, t: t, ctx: t.Context()}).Open("7", "9")
	for name, value := range variables {
		env = append(env, name+"="+value)
	}
	e, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Timeout: 30 * time.Second, Env: env})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) }) // again is fine
	r, err := e.Invoke(t.Context(), f.Event)
	require.NoError(t, err)
	require.NoError(t, eventfiles.SameAnswer(f.Want, r.Payload), "%q", e.Logs())
	require.NoError(t, e.Close()) // then its log is whole
	s.used.hides(t, string(r.Payload))
	s.used.hides(t, strings.Join(e.Logs(), "\n"), bearers(r.Payload)...)
}

// bearers are the tokens in an answer: its caller's secrets, so not the log's.
func bearers(answer []byte) (tokens []string) {
	var response struct{ Body string }
	var body struct{ Token string }
	if json.Unmarshal(answer, &response) == nil && json.Unmarshal([]byte(response.Body), &body) == nil && body.Token != "" {
		tokens = append(tokens, body.Token)
	}
	return tokens
}
