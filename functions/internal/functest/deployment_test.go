package functest

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
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

func TestMain(m *testing.M) {
	watchdog.Start()
	m.Run()
}

// deployment is one function of the template on a DynamoDB, which it finds by the template's own URLs, through a proxy
// that notes what the function does, and what it knows that nobody is to see.
type deployment struct {
	template.Function
	tables   []template.Table // of the template
	binary   string
	endpoint string // of DynamoDB
	proxy    string // to it

	mu     sync.Mutex
	done   actions
	owners map[string]bool
	hidden map[string]bool // passwords, tokens and the like
}

// credential is the secret part of the functions' credentials.
const credential = "the-secret-key-and-the-session-token"

// hides fails the test if an owner or a secret is in a text. more are those of one
// event (M40).
func (d *deployment) hides(t *testing.T, text string, more ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, secret := range slices.Concat(slices.Collect(maps.Keys(d.owners)), slices.Collect(maps.Keys(d.hidden)), more) {
		if strings.Contains(text, secret) {
			t.Errorf("%q is shown in %s", secret, text)
		}
	}
}

// note remembers a text in one of the sets.
func (d *deployment) note(in map[string]bool, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in[text] = true
}

// through starts a way to DynamoDB that notes what passes.
func (d *deployment) through(t *testing.T) string {
	forward := testservers.Forward(t, d.endpoint)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the function ended in the middle of its request
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var in struct {
			TableName                 string // stays "" for an action on several tables or on none
			ExpressionAttributeValues map[string]map[string]any
		}
		assert.NoError(t, json.Unmarshal(body, &in))
		for _, name := range []string{":me", ":theirs"} {
			if text, ok := in.ExpressionAttributeValues[name]["S"].(string); ok && len(text) >= 16 { // as all owners
				d.note(d.owners, text)
			}
		}
		table, _, _ := strings.Cut(in.TableName, "-")
		_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		d.note(d.done, "dynamodb:"+action+" "+table)
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// secrets starts a Secrets Manager that notes what it is asked for.
func (d *deployment) secrets(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ SecretId, VersionStage string }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&in))
		d.note(d.done, strings.Replace(r.Header.Get("X-Amz-Target"), ".", ":", 1)+" "+in.SecretId)
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		text := strings.Repeat(in.VersionStage, 4)
		d.note(d.hidden, text)
		assert.NoError(t, json.NewEncoder(w).Encode(map[string]string{"SecretString": text}))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// events runs a function on all its events, and returns what it did.
func events(t *testing.T, f template.Function, tables []template.Table, endpoint string) actions {
	d := &deployment{Function: f, tables: tables, endpoint: endpoint, done: actions{}, owners: map[string]bool{}, hidden: map[string]bool{credential: true}}
	d.proxy, d.binary = d.through(t), filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/"+f.CodeURI, d.binary))
	fixtures, err := eventfiles.Read("../../../events", f.Name())
	require.NoError(t, err)
	t.Run("events", func(t *testing.T) {
		for _, f := range fixtures {
			t.Run(f.Name, func(t *testing.T) { d.event(t, f) })
		}
	})
	require.NotEmpty(t, d.owners, "no request named an owner")
	t.Logf("%d owners and %d secrets are in no log and no answer", len(d.owners), len(d.hidden))
	return d.done
}

// event runs the function on one event, with tables of its own: empty ones, and the accounts.
func (d *deployment) event(t *testing.T, f eventfiles.Fixture) {
	t.Parallel()
	variables := maps.Clone(d.Environment.Variables)
	env := []string{"AWS_SECRET_ACCESS_KEY=" + credential, "AWS_SESSION_TOKEN=" + credential, "AWS_ENDPOINT_URL_SECRETS_MANAGER=" + d.secrets(t)}
	tables := map[string]string{} // URLs for the test, by variable
	for name, value := range variables {
		for _, table := range d.tables {
			if value == "dynamodb://"+table.ID {
				tables[name] = testservers.Table(t, d.endpoint, table.ID+"-"+d.ID+"-"+f.Name, table.Key)
				variables[name] = strings.Replace(tables[name], d.endpoint, d.proxy, 1)
			}
		}
	}
	hold(t, OpenStore(t, tables["LOCK_URL"]), f.Held)
	for _, account := range []string{"7", "9"} {
		OpenAccounts(t, tables["ACCOUNTS_URL"], func(string) string { return "local" }).Put(t, account, Opening)
	}
	for name, value := range variables {
		env = append(env, name+"="+value)
	}
	e, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: d.binary, Timeout: 30 * time.Second, Env: env})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) }) // again is fine
	r, err := e.Invoke(t.Context(), f.Event)
	require.NoError(t, err)
	require.NoError(t, eventfiles.SameAnswer(f.Want, r.Payload), "%q", e.Logs())
	require.NoError(t, e.Close()) // then its log is whole
	d.hides(t, string(r.Payload))
	d.hides(t, strings.Join(e.Logs(), "\n"), bearers(f.Event, r.Payload)...)
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
