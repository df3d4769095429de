package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestSAMVersionIsTheInstalledOne(t *testing.T) {
	script, err := os.ReadFile("install.sh")
	require.NoError(t, err)
	inScript := regexp.MustCompile(`(?m)^version=(\S+)`).FindSubmatch(script)
	require.NotNil(t, inScript)
	require.Equal(t, samVersion, string(inScript[1]))
}

func TestTemplate(t *testing.T) {
	tm, err := readTemplate("../../template.yaml")
	require.NoError(t, err)
	assert.Contains(t, tm.functions, function{"WithdrawFunction", "withdraw"})
	assert.Contains(t, tm.tables, dynamoTable{"LockTable", "key"})
	assert.Equal(t, "LockTable", tm.urls["LOCK_URL"])
	assert.Equal(t, "AccountsTable", tm.urls["ACCOUNTS_URL"])

	const whole = `
Globals: {Function: {Environment: {Variables: {LOCK_URL: !If [Cache, !Sub 'rediss://${Cache}', !Sub 'dynamodb://${Locks}'], OTHER: !Ref Locks}}}}
Resources:
  Locks: {Type: 'AWS::DynamoDB::Table', Properties: {KeySchema: [{AttributeName: key, KeyType: HASH}]}}
  NightlyFunction: {Type: 'AWS::Serverless::Function', Properties: {CodeUri: functions/nightly, Role: !GetAtt Role.Arn}}
  NightlyReportFunction:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: functions/nightly-report, Environment: {Variables: {ACCOUNTS_URL: !Sub 'dynamodb://${Locks}'}}}
`
	tm, err = parseTemplate([]byte(whole))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"LOCK_URL": "Locks", "ACCOUNTS_URL": "Locks"}, tm.urls)
	for event, want := range map[string]string{
		"nightly": "NightlyFunction", "nightly-twice": "NightlyFunction",
		"nightly-report": "NightlyReportFunction", "nightly-report-bad": "NightlyReportFunction",
	} {
		f, ok := tm.functionOf(event)
		assert.True(t, ok)
		assert.Equal(t, want, f.id, event)
	}
	_, ok := tm.functionOf("nightlyreport")
	assert.False(t, ok)

	for change, want := range map[[2]string]string{
		{"OCK_URL", "OCK"}:                         "no function has a variable LOCK_URL",
		{"ACCOUNTS_URL", "ACCOUNTS"}:               "no function has a variable ACCOUNTS_URL",
		{"dynamodb://${Locks}", "dynamodb://${X}"}: "there is no table X",
		{"KeyType: HASH}", "KeyType: HASH}, {AttributeName: sort, KeyType: RANGE}"}: "has 2 keys",
	} {
		_, err := parseTemplate([]byte(strings.Replace(whole, change[0], change[1], 1)))
		assert.ErrorContains(t, err, want)
	}
}

// TestFixtures looks at this repository's own events.
func TestFixtures(t *testing.T) {
	tm, err := readTemplate("../../template.yaml")
	require.NoError(t, err)
	fixtures, err := readFixtures("../../events", tm)
	require.NoError(t, err)
	requests := map[string]request{}
	for _, f := range fixtures {
		if r, ok := f.http(); ok {
			requests[f.Name] = r
		}
	}
	json := http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"}}
	plain := request{"POST", "/accounts/7/withdrawals", json, []byte(`{"id": "w-1", "amount": 500}`)}
	assert.Equal(t, plain, requests["withdraw"])
	assert.JSONEq(t, `{"id": "w-2", "amount": 500}`, string(requests["withdraw-base64"].Body))
	assert.Equal(t, "AQAGR9Wx", requests["locks-no-lease"].Header.Get("Lock-Token"))

	_, err = readFixtures(t.TempDir(), tm)
	assert.ErrorContains(t, err, "there is no ")
	dir := t.TempDir()
	for _, name := range []string{"other.json", "other.out.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600))
	}
	_, err = readFixtures(dir, tm)
	assert.ErrorContains(t, err, "belongs to no function")
}

func TestLostUpdatesAreSeen(t *testing.T) {
	answers := func(balances ...int64) []withdrawal {
		var all []withdrawal
		for _, b := range balances {
			all = append(all, withdrawal{amount: 500, balance: b})
		}
		return all
	}
	assert.NoError(t, checkBalances(answers(99_000, 99_500, 98_500), 98_500))
	assert.ErrorContains(t, checkBalances(answers(99_500, 99_500, 99_000), 99_000), "after withdrawal 2 is 99500, not 99000")
	assert.ErrorContains(t, checkBalances(answers(99_500, 99_000), 99_500), "the account has 99500, not 99000")
}

func TestOverlapsAreSeen(t *testing.T) {
	report := func(second int, hold float64, fence int) string {
		return fmt.Sprintf(`{"timestamp":"x","message":"lock","hold_ms":%v,"fence":%d,"acquired_at":"2026-11-21T06:00:%02d.5Z"}`, hold, fence, second)
	}
	read := func(reports ...string) []section {
		return sections("START\nEND " + strings.Join(reports, "") + `{"message":"other"}{"message":"lock","outcome":"busy"} {cut`)
	}
	good := read(report(2, 1000, 7), report(1, 999, 6))
	assert.NoError(t, checkSections(good, 2))
	assert.NoError(t, checkSections(good, 3), "the output of one was lost")
	assert.ErrorContains(t, checkSections(good[:1], 3), "1 critical sections were reported, not 2 to 3")
	assert.ErrorContains(t, checkSections(good, 1), "2 critical sections were reported, not 2 to 1")
	assert.ErrorContains(t, checkSections(read(report(1, 1001, 6), report(2, 1, 7)), 2), "share 1ms")
	assert.ErrorContains(t, checkSections(read(report(1, 1, 7), report(2, 1, 7)), 2), "the fence of critical section 2 is 7, after 7")
}

// TestBurst plays start-lambda: a function that keeps a lock, one that has none,
// and one whose fence refuses.
func TestBurst(t *testing.T) {
	event := []byte(`{"body": "{\"id\": \"w-1\", \"amount\": 500}"}`)
	const held, ahead = `{"detail": "is held"}`, `{"detail": "went ahead"}`
	reply := func(w io.Writer, status int, body string) {
		fmt.Fprintf(w, `{"statusCode": %d, "body": %q}`, status, body)
	}
	for name, c := range map[string]struct {
		answer func(w io.Writer, nth int)
		want   string
	}{
		"busy is tried again": {func(w io.Writer, nth int) {
			if nth%2 == 0 {
				reply(w, 409, held)
			} else {
				reply(w, 200, fmt.Sprintf(`{"amount": 500, "balance": %d}`, nth))
			}
		}, ""},
		"a smaller fence is refused": {func(w io.Writer, _ int) { reply(w, 409, ahead) }, "status 409: " + ahead},
		"the function fails":         {func(w io.Writer, _ int) { fmt.Fprint(w, `{"errorType": "LockLost"}`) }, "status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			nth := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "/2015-03-31/functions/WithdrawFunction/invocations", r.URL.Path)
				c.answer(w, nth)
				nth++
			}))
			defer s.Close()
			got, err := withdraw(t.Context(), &server{&process{}, s.URL}, "WithdrawFunction", event, held, "burst-1")
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, withdrawal{amount: 500, balance: 1, busy: 1}, got)
		})
	}
}

func TestRenamed(t *testing.T) {
	text, err := renamed([]byte(`{"rawPath": "/x", "body": "{\"id\": \"w-1\", \"amount\": 500}"}`), "burst-3")
	require.NoError(t, err)
	assert.JSONEq(t, `{"rawPath": "/x", "body": "{\"amount\":500,\"id\":\"burst-3\"}"}`, string(text))
}

func TestCurlComparesEverything(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		missing(t, "curl is not installed")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, `{"method": %q, "path": %q, "body": %q}`, r.Method, r.URL.Path, body)
	}))
	defer server.Close()
	r := request{"PUT", "/a/./7", http.Header{"Content-Type": {"text/x"}}, []byte("body")}
	answer := func(status int, retry, path string) []byte {
		return fmt.Appendf(nil, `{"statusCode": %d, "headers": {"Content-Type": "text/x", "Retry-After": %q}, "body": "{\"method\": \"PUT\", \"path\": %q, \"body\": \"body\"}"}`,
			status, retry, path)
	}
	quoted := func(s string) []byte { return []byte(strings.ReplaceAll(s, `"/a/`, `\"/a/`)) }
	fix := func(b []byte) []byte { return quoted(strings.ReplaceAll(string(b), `7",`, `7\",`)) }
	got, err := curl(t.Context(), server.URL, r)
	require.NoError(t, err)
	assert.NoError(t, got.same(fix(answer(409, "1", "/a/./7"))))
	assert.ErrorContains(t, got.same(fix(answer(200, "1", "/a/./7"))), "want status 200")
	assert.ErrorContains(t, got.same(fix(answer(409, "2", "/a/./7"))), "want Retry-After: 2")
	assert.ErrorContains(t, got.same(fix(answer(409, "1", "/a/7"))), `/a/7`)
	server.Close()
	_, err = curl(t.Context(), server.URL, r)
	assert.ErrorContains(t, err, "curl: ")
}

func TestTableFits(t *testing.T) {
	fixtures := []fixture{
		{Fixture: eventfiles.Fixture{Name: "withdraw"}},
		{Fixture: eventfiles.Fixture{Name: "withdraw-with-a-name-that-is-too-long"}},
	}
	tm := template{functions: []function{{id: "WithdrawFunction"}}}
	var reports []*report
	for _, name := range []string{"Redis", "DynamoDB Local"} {
		reports = append(reports, &report{
			store:   name,
			invoked: map[string]check{"withdraw": {took: 1400 * time.Millisecond}, fixtures[1].Name: {err: errors.New("x"), took: 99900 * time.Millisecond}},
			called:  map[string]check{"withdraw": {took: time.Second}},
			burst:   check{took: 99900 * time.Millisecond}, busy: 1000,
			cold: map[string]check{"WithdrawFunction": {took: 99999900 * time.Microsecond}},
			warm: map[string]time.Duration{"WithdrawFunction": 12340 * time.Microsecond},
		})
	}
	text := table(fixtures, tm, reports)
	for line := range strings.Lines(text) {
		assert.LessOrEqual(t, len(line)-1, 80, line)
	}
	assert.Contains(t, text, "ok 1.4s")
	assert.Contains(t, text, "differs 100s")
	assert.Contains(t, text, "12.3 ms")
	assert.ErrorContains(t, verdict(reports), "2 of 10 checks differ")
	assert.NoError(t, verdict(nil))
}

func TestEnding(t *testing.T) {
	noEngine := fmt.Errorf("x: %w", &noEngineError{"no root"})
	for _, c := range []struct {
		err             error
		interrupted, ci bool
		status          int
		text            string
	}{
		{nil, false, true, 0, ""},
		{noEngine, false, false, 0, "nothing was tested: no Docker engine can run here: no root"},
		{noEngine, false, true, 1, "no root"},
		{errors.New("2 differ"), false, false, 1, "2 differ"},
		{context.Canceled, true, true, 130, "interrupted"},
	} {
		status, text := ending(c.err, c.interrupted, c.ci)
		assert.Equal(t, c.status, status)
		assert.Contains(t, text, c.text)
	}
}

func TestNoCredentialsReachTheFunctions(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "a-person's own")
	t.Setenv("SAM_CLI_POLL_DELAY", "1")
	s := &sam{engine: &engine{host: "unix:///x"}}
	for _, v := range s.environment() {
		assert.NotContains(t, v, "a-person's own")
		assert.NotContains(t, v, "SAM_CLI_POLL_DELAY")
	}
	assert.Contains(t, s.environment(), "DOCKER_HOST=unix:///x")
}

func TestReadableCommandFits(t *testing.T) {
	root, err := os.Getwd()
	require.NoError(t, err)
	s := &sam{dir: "/tmp/x", built: filepath.Join(root, "build"), image: standIn + "x86_64", engine: &engine{arch: "x86_64"}}
	s.dir = t.TempDir()
	args, err := s.arguments("invoke", map[string]string{"LOCK_URL": "x"}, "WithdrawFunction", "--event", "events/withdraw.json")
	require.NoError(t, err)
	text := s.readable(args)
	assert.Contains(t, text, "--template build/template.yaml", "paths are as seen from here")
	var words []string
	for line := range strings.Lines(text) {
		assert.LessOrEqual(t, len(strings.ReplaceAll(line, s.dir, "/tmp/lambdalock-sam1234567890")), 81, line)
		words = append(words, strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), `\`))...)
	}
	assert.Len(t, words, len(args))
}

func TestProcessThatEndsSaysWhy(t *testing.T) {
	never := func(context.Context) error { return errors.New("not yet") }
	_, err := background(t.Context(), t.TempDir(), "x", exec.Command("sh", "-c", "echo no such setting; exit 1"), 20*time.Second, never)
	assert.ErrorContains(t, err, "no such setting")
	_, err = background(t.Context(), t.TempDir(), "x", exec.Command("sh", "-c", "echo slow; exec tail -f /dev/null"), 300*time.Millisecond, never)
	assert.ErrorContains(t, err, "not yet")
}

func TestProcessIsAskedBeforeItIsKilled(t *testing.T) {
	dir := t.TempDir()
	p, err := background(t.Context(), dir, "x", exec.Command("sh", "-c", "trap 'echo tidied; exit' TERM; echo up; while :; do tail -f /dev/null & wait $!; done"), 20*time.Second,
		func(context.Context) error {
			text, err := os.ReadFile(filepath.Join(dir, "x.log"))
			if err == nil && !strings.Contains(string(text), "up") {
				return errors.New("not up")
			}
			return err
		})
	require.NoError(t, err)
	p.stop()
	p.stop() // again is nothing
	assert.Contains(t, p.tail(), "tidied")
}

// TestStores sets up fixtures on the real servers.
func TestStores(t *testing.T) {
	tm, err := readTemplate("../../template.yaml")
	require.NoError(t, err)
	cache, err := cacheFolder(os.Getenv)
	require.NoError(t, err)
	t.Chdir("../..")
	clerk, err := buildDesk(t.Context(), t.TempDir())
	require.NoError(t, err)
	for name, start := range map[string]func(dir string) (*store, error){
		"redis":    func(dir string) (*store, error) { return startRedis(t.Context(), &engine{}, dir) },
		"dynamodb": func(dir string) (*store, error) { return startDynamo(t.Context(), tm, cache, dir) },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := start(t.TempDir())
			mustStart(t, err)
			defer func() { s.server.stop(); assert.NoError(t, s.close()) }()
			require.NoError(t, s.fresh(t.Context()))
			d, err := openDesk(t.Context(), clerk, s, tm)
			require.NoError(t, err)
			defer func() { assert.NoError(t, d.env.Close()) }()

			for range 2 { // the second finds a used server
				require.NoError(t, holding(lockstore.Key("account", account)).prepare(t.Context(), s, d, tm))
				balance, err := d.balance(t.Context(), account)
				require.NoError(t, err)
				assert.EqualValues(t, opening, balance)
				_, err = s.hold(t.Context(), tm, lockstore.Key("account", account))
				assert.ErrorIs(t, err, lockstore.ErrHeld)
			}
			require.NoError(t, holding("schedule/nightly").prepare(t.Context(), s, d, tm))
			_, err = s.hold(t.Context(), tm, "schedule/nightly")
			assert.ErrorIs(t, err, lockstore.ErrHeld)
			require.NoError(t, holding("").prepare(t.Context(), s, d, tm))
			for range 2 {
				release, err := s.hold(t.Context(), tm, lockstore.Key("account", account))
				require.NoError(t, err, "a plain event finds the lock free, and so does who comes after its release")
				require.NoError(t, release(t.Context()))
			}
		})
	}
}

// holding is an event about a key that another holds, "" for none.
func holding(key string) fixture { return fixture{Fixture: eventfiles.Fixture{Held: key}} }

// mustStart ends a test whose server did not start.
func mustStart(t *testing.T, err error) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), "install") || errors.Is(err, exec.ErrNotFound) {
		missing(t, err.Error())
	}
	require.NoError(t, err)
}

// missing ends a test that needs something else on the machine.
func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
