package functest

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lambdatest"
)

var (
	binaries string // folder of what built has built, for all tests
	build    sync.Mutex
)

func TestMain(m *testing.M) {
	var err error
	if binaries, err = os.MkdirTemp("", "functest"); err != nil {
		panic(err)
	}
	watchdog.Start()
	status := m.Run()
	if err := os.RemoveAll(binaries); err != nil {
		panic(err)
	}
	os.Exit(status)
}

// built is the binary of the function in a folder, as built for Lambda. To link one takes a
// second, so that is done once.
func built(t *testing.T, folder string) string {
	t.Helper()
	build.Lock()
	defer build.Unlock()
	binary := filepath.Join(binaries, filepath.Base(folder))
	if _, err := os.Stat(binary); err != nil {
		require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/"+folder, binary))
	}
	return binary
}

// deployment is one way to deploy the template: the parameters, and a DynamoDB for the tables. The functions find it by
// the template's own URLs, through a proxy that notes what the functions do.
type deployment struct {
	where
	template *template.Template // with the values
	name     string
	endpoint string // of DynamoDB
	proxy    string // to it
	used     *usage
}

// usage is what functions did since they were asked about last, and what they know
// that nobody is to see.
type usage struct {
	mu     sync.Mutex
	done   actions
	owners map[string]bool
	hidden map[string]bool // passwords, tokens and the like
	prefix string          // of the lock table's rows, if its policy is for these only
}

// rows says which rows the one with a key belongs to, as a policy would: " shop/*", a
// key that is outside of the prefix, or "" if no policy looks.
func (u *usage) rows(key string) string {
	if u.prefix == "" || key == "" {
		return ""
	}
	if strings.HasPrefix(key, u.prefix) {
		return " " + u.prefix + "*"
	}
	return " " + key
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

// note remembers a text in one of the sets.
func (u *usage) note(in map[string]bool, text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	in[text] = true
}

// dynamoDB starts a way to DynamoDB that notes what passes.
func (u *usage) dynamoDB(t *testing.T, endpoint string) string {
	return dynamoProxy(t, endpoint, func(_ http.ResponseWriter, r *http.Request, body []byte) bool {
		var in struct {
			TableName                 string // stays "" for an action on several tables or on none
			Key                       map[string]map[string]string
			ExpressionAttributeValues map[string]map[string]any
		}
		assert.NoError(t, json.Unmarshal(body, &in))
		for _, name := range []string{":me", ":theirs"} {
			if text, ok := in.ExpressionAttributeValues[name]["S"].(string); ok && len(text) >= 16 { // as all owners
				u.note(u.owners, text)
			}
		}
		table, _, _ := strings.Cut(in.TableName, "-")
		_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		u.note(u.done, "dynamodb:"+action+" "+table+u.rows(in.Key["key"]["S"]))
		return false
	})
}

// secrets starts a Secrets Manager that notes what it is asked for.
func (u *usage) secrets(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ SecretId, VersionStage string }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&in))
		u.note(u.done, strings.Replace(r.Header.Get("X-Amz-Target"), ".", ":", 1)+" "+in.SecretId)
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		text := strings.Repeat(in.VersionStage, 4)
		u.note(u.hidden, text)
		assert.NoError(t, json.NewEncoder(w).Encode(map[string]string{"SecretString": text}))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// onTable has all tables in DynamoDB Local; events have their own.
func onTable(t *testing.T, endpoint, name string, at where) deployment {
	u := newUsage()
	_, u.prefix, _ = strings.Cut(at.values["import locks-Url"], "?prefix=")
	return deployment{at, readTemplate(t, at.values), name, endpoint, u.dynamoDB(t, endpoint), u}
}

// events runs a function on all its events, and returns what it did.
func (d deployment) events(t *testing.T, folder, binary string) actions {
	fixtures, err := eventfiles.Read("../../../events", filepath.Base(folder))
	require.NoError(t, err)
	functions, err := d.template.Functions()
	require.NoError(t, err)
	tables, err := d.template.Tables()
	require.NoError(t, err)
	variables := functions[slices.IndexFunc(functions, func(f template.Function) bool { return f.CodeURI == folder })].Environment.Variables
	t.Run("events", func(t *testing.T) {
		for _, f := range fixtures {
			t.Run(f.Name, func(t *testing.T) { d.event(t, maps.Clone(variables), tables, binary, f) })
		}
	})
	d.used.mu.Lock()
	defer d.used.mu.Unlock()
	require.NotEmpty(t, d.used.owners, "no request named an owner")
	t.Logf("%d owners and %d secrets are in no log and no answer", len(d.used.owners), len(d.used.hidden))
	defer clear(d.used.done)
	return maps.Clone(d.used.done)
}

// event runs a function on one event, with tables of its own: empty ones, and the
// accounts. variables are those of the function, and known are the template's tables.
func (d deployment) event(t *testing.T, variables map[string]string, known []template.Table, binary string, f eventfiles.Fixture) {
	t.Parallel()
	env := []string{"AWS_SECRET_ACCESS_KEY=" + credential, "AWS_SESSION_TOKEN=" + credential, "AWS_ENDPOINT_URL_SECRETS_MANAGER=" + d.used.secrets(t)}
	tables := map[string]string{} // URLs for the test, by variable
	for name, value := range variables {
		for _, table := range known {
			if url, params, _ := strings.Cut(value, "?"); url == "dynamodb://"+table.ID {
				tables[name] = testservers.Table(t, d.endpoint, table.ID+"-"+d.name+"-"+f.Name, table.Key)
				if params != "" {
					tables[name] += "&" + params
				}
				variables[name] = strings.Replace(tables[name], d.endpoint, d.proxy, 1)
			}
		}
	}
	hold(t, openStore(t, tables["LOCK_URL"]), f.Held)
	openLedger(t, tables["ACCOUNTS_URL"])
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
	d.used.hides(t, string(r.Payload))
	d.used.hides(t, strings.Join(e.Logs(), "\n"), bearers(f.Event, r.Payload)...)
}

// bearers are the tokens in an event and in its answer: its caller's secrets, so not the log's.
func bearers(event, answer []byte) (tokens []string) {
	var waits struct{ TaskToken string }
	if json.Unmarshal(event, &waits) == nil && waits.TaskToken != "" {
		tokens = append(tokens, waits.TaskToken)
	}
	var response struct{ Body string }
	var body struct{ Token string }
	if json.Unmarshal(answer, &response) == nil && json.Unmarshal([]byte(response.Body), &body) == nil && body.Token != "" {
		tokens = append(tokens, body.Token)
	}
	return tokens
}

// dynamoProxy starts a way to DynamoDB. answer sees each request, and may answer it
// itself and return true.
func dynamoProxy(t *testing.T, endpoint string, answer func(http.ResponseWriter, *http.Request, []byte) bool) string {
	through := testservers.Forward(t, endpoint)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the function ended in the middle of its request
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !answer(w, r, body) {
			through.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}
