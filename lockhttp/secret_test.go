package lockhttp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/clocktest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// manager is AWS Secrets Manager as the real client sees it.
type manager struct {
	url string

	mu       sync.Mutex
	values   map[string]string // by stage; as the API has them
	failing  int               // the status of each answer, when it is not 0
	asked    []string
	lastName string
}

func newManager(t *testing.T) *manager {
	m := &manager{values: map[string]string{}}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

func (m *manager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var in struct{ SecretId, VersionStage string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("X-Amz-Target") != "secretsmanager.GetSecretValue" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	m.asked, m.lastName = append(m.asked, in.VersionStage), in.SecretId
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	value, ok := m.values[in.VersionStage]
	switch {
	case m.failing != 0:
		w.WriteHeader(m.failing)
		_, _ = io.WriteString(w, `{"__type": "AccessDeniedException", "Message": "is not authorized to perform: secretsmanager:GetSecretValue"}`)
	case !ok:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type": "ResourceNotFoundException", "Message": "can't find the specified secret value for staging label"}`)
	default:
		_, _ = io.WriteString(w, `{"Name": "token", `+value+`}`)
	}
}

func (m *manager) set(failing int, stages ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing, m.asked = failing, nil
	m.values = map[string]string{}
	for i := 0; i < len(stages); i += 2 {
		m.values[stages[i]] = `"SecretString": "` + stages[i+1] + `"`
	}
}

// requests are those since the last set or call.
func (m *manager) requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.asked = nil }()
	return len(m.asked)
}

func (m *manager) getenv(name string) string {
	return map[string]string{"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
		"AWS_ENDPOINT_URL_SECRETS_MANAGER": m.url, "LOCK_CALLERS": `{"*": ["shared/"]}`}[name]
}

// open makes the real client, with a clock of the test.
func (m *manager) open(t *testing.T) (*managed, *time.Time) {
	s, err := openManaged(m.getenv, "prod/token")
	require.NoError(t, err)
	now := time.Now()
	s.now = func() time.Time { return now }
	return s, &now
}

const current, previous = "AWSCURRENT", "AWSPREVIOUS"

func TestManagedSecret(t *testing.T) {
	const third = "third " + newSecret
	const denied, some = http.StatusBadRequest, -1
	m := newManager(t)
	s, now := m.open(t)
	log := captureLog(t)
	for _, step := range []struct {
		says         string
		failing      int      // status of the manager's answers
		stages       []string // of the manager; nil is as before
		pass, maxAge time.Duration
		want         []string
		requests     int
	}{
		{"both versions are read", 0, []string{current, oldSecret}, 0, secretUse, []string{oldSecret}, 2},
		{"and used for a while", 0, []string{current, newSecret, previous, oldSecret}, secretUse - 1, secretUse, []string{oldSecret}, 0},
		{"and no longer", 0, nil, 1, secretUse, []string{newSecret, oldSecret}, 2},
		{"a token that is not known does not ask at once", 0, []string{current, third, previous, newSecret}, 0, 0, []string{newSecret, oldSecret}, 0},
		{"it asks for newer ones", 0, nil, secretRest, 0, []string{third, newSecret}, 2},
		{"once a second at most", 0, nil, 0, 0, []string{third, newSecret}, 0},
		{"what cannot be read again is kept", denied, nil, secretUse, secretUse, []string{third, newSecret}, some},
		{"a manager in trouble is left alone for a while", denied, nil, secretTrouble - 1, secretUse, []string{third, newSecret}, 0},
		{"it is read again", 0, []string{current, newSecret, previous, third}, secretTrouble, secretUse, []string{newSecret, third}, 2},
		{"a clock that was set back by a few seconds keeps nothing", 0, []string{current, third, previous, newSecret}, -20 * time.Second, secretUse, []string{third, newSecret}, 2},
		{"a clock that was set back keeps nothing for longer", 0, []string{current, oldSecret, previous, newSecret}, -time.Hour, secretUse, []string{oldSecret, newSecret}, 2},
		{"also in trouble", denied, nil, -time.Hour, secretUse, []string{oldSecret, newSecret}, some},
		{"and then leaves the manager alone", denied, nil, secretTrouble - 1, secretUse, []string{oldSecret, newSecret}, 0},
		{"a version before that was too short made no token", 0, []string{current, oldSecret, previous, "short"}, secretUse, secretUse, []string{oldSecret}, 2},
		{"one that is too short makes none", 0, []string{current, "short", previous, newSecret}, secretUse, secretUse, []string{oldSecret}, some},
	} {
		if step.stages != nil || step.failing != 0 {
			m.set(step.failing, step.stages...)
		}
		*now = now.Add(step.pass)
		got, err := s.secrets(t.Context(), step.maxAge)
		require.NoError(t, err, step.says)
		want, _ := fixed(step.want...)(t.Context(), 0)
		require.True(t, assert.ObjectsAreEqual(want, got), step.says)
		requests := m.requests()
		require.True(t, requests == step.requests || step.requests == some && requests > 0, "%s: %d requests", step.says, requests)
		if step.failing != 0 {
			_, err := s.secrets(t.Context(), 0)
			require.IsType(t, &secretError{}, err, "newer ones are not to be had")
		}
	}
	require.Equal(t, "prod/token", m.lastName)
	require.Contains(t, log.String(), "AccessDenied")
	require.NotContains(t, log.String(), newSecret)
}

// A process that was frozen reads the secret again: its monotonic clock may have stood still.
func TestAgeOfASecretIsWallTime(t *testing.T) {
	m := newManager(t)
	s, now := m.open(t)
	*now = clocktest.Ago(0, 2*secretUse)
	m.set(0, current, oldSecret)
	_, err := s.secrets(t.Context(), secretUse)
	require.NoError(t, err)
	require.NotZero(t, m.requests())
	*now = time.Now()
	_, err = s.secrets(t.Context(), secretUse)
	require.NoError(t, err)
	require.NotZero(t, m.requests(), "F08")
}

// Tokens of the secret before the last are no good. So between two new secrets has to be the longest lease, 15 minutes, and
// the time for which an environment may still use the secret before.
func TestTimeBetweenTwoSecrets(t *testing.T) {
	text, err := os.ReadFile("../template.yaml")
	require.NoError(t, err)
	require.Contains(t, string(text), "so let 20 minutes go by between two")
	require.LessOrEqual(t, secretUse+15*time.Minute, 20*time.Minute)
}

// TestNoSecret asks a service that has never read its secret.
func TestNoSecret(t *testing.T) {
	m := newManager(t)
	for name, set := range map[string]func(){
		"denied":                 func() { m.set(http.StatusBadRequest) },
		"too short":              func() { m.set(0, current, oldSecret[:minSecretBytes-1]) },
		"the one before refused": func() { m.set(0, current, oldSecret); m.values[previous] = "no JSON" },
	} {
		t.Run(name, func(t *testing.T) {
			set()
			log := captureLog(t)
			w := newWorld(t)
			s, now := m.open(t)
			w.secrets = s.secrets
			for _, method := range []string{"PUT", "PATCH", "DELETE"} {
				a := ask(t, w.Service, method, key, thirty, "Lock-Token", "x")
				require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
				require.Equal(t, "The service is not ready. Try again.", a.said["detail"])
			}
			require.Equal(t, lockstore.Free, w.state(t, key))
			require.Contains(t, log.String(), "the token secret cannot be read: ")
			require.NotContains(t, log.String(), oldSecret[:minSecretBytes-1])
			require.Equal(t, http.StatusOK, ask(t, w.Service, "GET", key, "").StatusCode, "to look takes no secret")

			m.set(0, current, oldSecret)
			*now = now.Add(secretRest)
			acquire(t, w.Service, key, thirty)
		})
	}
}

// Requests that have waited for a read that failed do not read again, one after the other.
func TestNoSecretIsReadOnce(t *testing.T) {
	m := newManager(t)
	m.set(http.StatusBadRequest)
	s, now := m.open(t)
	s.now = func() time.Time { // each request to the manager takes its time
		m.mu.Lock()
		defer m.mu.Unlock()
		return now.Add(time.Duration(len(m.asked)) * secretCall)
	}
	for range 5 {
		_, err := s.secrets(t.Context(), secretUse)
		require.IsType(t, &secretError{}, err)
	}
	require.Equal(t, 1, m.requests())
}

// A token may be made with a secret that this environment cannot read. That it is
// not known is no reason to say that its lease is lost.
func TestTokenOfASecretThatCannotBeRead(t *testing.T) {
	m := newManager(t)
	captureLog(t)
	w := newWorld(t)
	s, now := m.open(t)
	w.secrets = s.secrets
	m.set(0, current, oldSecret)
	token := acquire(t, w.Service, key, thirty).token()
	other := *w.Service // which has read it
	other.secrets = fixed(newSecret, oldSecret)
	renewed := ask(t, &other, "PATCH", key, thirty, "Lock-Token", token)
	require.Equal(t, http.StatusOK, renewed.StatusCode)

	m.set(http.StatusInternalServerError)
	*now = now.Add(secretRest)
	for _, method := range []string{"PATCH", "DELETE"} {
		t.Run("F23 "+method, func(t *testing.T) {
			for _, text := range []string{renewed.token(), "x"} {
				a := ask(t, w.Service, method, key, thirty, "Lock-Token", text)
				require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
			}
			require.Equal(t, http.StatusOK, ask(t, w.Service, "PATCH", key, thirty, "Lock-Token", token).StatusCode, "one that is known goes on")
		})
	}
	m.set(0, current, newSecret, previous, oldSecret)
	*now = now.Add(secretTrouble)
	require.Equal(t, http.StatusNoContent, ask(t, w.Service, "DELETE", key, "", "Lock-Token", renewed.token()).StatusCode)
}

// Many requests at once read the secret once. That the first one's client has
// gone away does not matter to the others.
func TestSecretIsReadOnce(t *testing.T) {
	m := newManager(t)
	m.set(0, current, oldSecret, previous, newSecret)
	s, _ := m.open(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.secrets(gone, secretUse)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			got, err := s.secrets(t.Context(), secretUse)
			assert.NoError(t, err)
			assert.Len(t, got, 2)
		})
	}
	all.Wait()
	require.Equal(t, 2, m.requests())
}

func TestOpen(t *testing.T) {
	m := newManager(t)
	with := func(url, name, value string) (*Service, error) { // a variable with another value
		u, err := lockstore.ParseURL(url)
		if err != nil {
			return nil, err
		}
		return Open(newWorld(t).guard, u, func(asked string) string {
			if asked == name {
				return value
			}
			return m.getenv(asked)
		})
	}
	open := func(url string) (*Service, error) { return with(url, "", "") }
	m.set(0, current, oldSecret)
	for _, url := range []string{"secretsmanager:///prod/token", "secretsmanager:///arn:aws:secretsmanager:eu-central-1:123456789012:secret:token-AbCdEf", "text:///" + oldSecret} {
		s, err := open(url)
		require.NoError(t, err, url)
		secrets, err := s.secrets(t.Context(), secretUse)
		require.NoError(t, err)
		require.Equal(t, oldSecret, string(secrets[0]))
		require.Equal(t, callers{"*": {"shared/"}}, s.callers)
	}
	require.Equal(t, "arn:aws:secretsmanager:eu-central-1:123456789012:secret:token-AbCdEf", m.lastName)
	binary := bytes.Repeat([]byte{0, 0xff}, 16)
	m.values[current] = `"SecretBinary": "` + base64.StdEncoding.EncodeToString(binary) + `"`
	s, _ := m.open(t)
	got, err := s.secrets(t.Context(), secretUse)
	require.NoError(t, err)
	require.Equal(t, string(binary), string(got[0]))
	for url, want := range map[string]string{
		"text:///" + oldSecret[:31]:              "the token secret's URL: the secret has 31 bytes; want at least 32",
		"text:///":                               "want secretsmanager:///NAME, or text:///TEXT",
		"text://" + oldSecret + "@/" + oldSecret: "want secretsmanager:///NAME, or text:///TEXT",
		"text:///" + oldSecret + "?" + oldSecret: "want no ? and no #; write %3F and %23",
		"text:///" + oldSecret + "?":             "want no ? and no #",
		"text:///" + oldSecret + "#" + oldSecret: "write # as %23",
		"secretsmanager://token":                 "want secretsmanager:///NAME",
		"file:///" + oldSecret:                   `the scheme is "file"; want secretsmanager or text`,
	} {
		_, err := open(url)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), oldSecret[:31])
	}
	coalesces, err := guard.New(memstore.New(nil), guard.Options{Coalesce: "index", Wait: time.Minute})
	require.NoError(t, err)
	_, err = Open(coalesces, nil, m.getenv)
	require.EqualError(t, err, "lockhttp: the guard has guard.Options.Coalesce (boot: LOCK_COALESCE); want none: each request says itself whether it coalesces")
	for missing, want := range map[string]string{"AWS_REGION": "set AWS_REGION", "AWS_ACCESS_KEY_ID": "only one of", "LOCK_CALLERS": "LOCK_CALLERS: want a JSON object"} {
		_, err := with("secretsmanager:///token", missing, "")
		require.ErrorContains(t, err, want)
	}
}

// captureLog has what the default logger writes in this test.
func captureLog(t *testing.T) *bytes.Buffer {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &log
}
