package samlocal

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestScriptWithoutAnEngine(t *testing.T) {
	dir := t.TempDir()
	for program, text := range map[string]string{"docker": "exit 1", "id": "echo 1000", "uname": "echo Linux"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	for ci, status := range map[string]int{"": 0, "true": 1} {
		cmd := exec.CommandContext(t.Context(), "sh", "internal/samlocal/run.sh")
		cmd.Dir = "../.."
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "CI=" + ci}
		text, err := cmd.CombinedOutput()
		assert.Equal(t, "samlocal: nothing was tested: no Docker engine can run here: none answers, and to start one needs root\n", string(text))
		assert.Equal(t, status, cmd.ProcessState.ExitCode(), "%v", err)
	}
}

func TestFixturesBelongToFunctions(t *testing.T) {
	functions := []template.Function{{ID: "NightlyFunction", CodeURI: "functions/nightly"}, {ID: "NightlyReportFunction", CodeURI: "functions/nightly-report"}}
	dir := t.TempDir()
	write := func(names ...string) {
		for _, name := range names {
			for _, end := range []string{".json", ".out.json"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name+end), []byte("{}"), 0o600))
			}
		}
	}
	assert.ErrorContains(t, tried(func(t tester) { readFixtures(t, dir, functions) }).failed, "there is no ")
	write("nightly", "nightly-report", "nightly-report-bad", "nightly-twice")
	got := map[string]string{}
	for _, f := range readFixtures(t, dir, functions) {
		got[f.Name] = f.function
	}
	assert.Equal(t, map[string]string{
		"nightly": "NightlyFunction", "nightly-twice": "NightlyFunction",
		"nightly-report": "NightlyReportFunction", "nightly-report-bad": "NightlyReportFunction",
	}, got)
	write("nightlyreport")
	assert.ErrorContains(t, tried(func(t tester) { readFixtures(t, dir, functions) }).failed, "belongs to no function")
}

// TestRequests looks at this repository's own events.
func TestRequests(t *testing.T) {
	t.Chdir("../..")
	tm := readTemplate(t)
	assert.Equal(t, map[string]string{"LOCK_URL": "LockTable", "ACCOUNTS_URL": "AccountsTable"}, tableOf(t, tm))
	functions, err := tm.Functions()
	require.NoError(t, err)
	requests, unused := map[string]request{}, map[string]request{}
	for _, f := range readFixtures(t, "events", functions) {
		if r, ok := f.request(t); ok {
			requests[f.Name] = r
			unused[f.Name], _ = f.unused().request(t)
		}
	}
	json := http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"}}
	assert.Equal(t, request{"POST", "/accounts/7/withdrawals", json, []byte(`{"id": "w-1", "amount": 500}`)}, requests["withdraw"])
	assert.JSONEq(t, `{"id": "w-2", "amount": 500}`, string(requests["withdraw-base64"].Body))
	assert.Equal(t, "AQAGR9Wx", requests["locks-no-lease"].Header.Get("Lock-Token"))
	key := func(r request) string { return r.Header.Get("Idempotency-Key") }
	assert.NotEqual(t, key(requests["withdraw-key"]), key(unused["withdraw-key"]))
	assert.Len(t, strings.Split(key(unused["withdraw-key-two"]), ","), 2)
	assert.Equal(t, requests["withdraw"], unused["withdraw"])
}

func TestVariablesOfTheTemplateNameTables(t *testing.T) {
	const whole = `
Globals: {Function: {Environment: {Variables: {LOCK_URL: !Sub 'dynamodb://${Locks}', ACCOUNTS_URL: !Sub 'dynamodb://${Locks}'}}}}
Resources:
  Locks: {Type: 'AWS::DynamoDB::Table'}
  NightlyFunction: {Type: 'AWS::Serverless::Function', Properties: {CodeUri: functions/nightly}}
`
	for change, want := range map[[2]string]string{
		{"LOCK_URL", "OTHER"}:                      "no function has a variable LOCK_URL",
		{"ACCOUNTS_URL", "OTHER"}:                  "no function has a variable ACCOUNTS_URL",
		{"dynamodb://${Locks}", "dynamodb://${X}"}: "names ${X}",
	} {
		tm, err := template.Parse([]byte(strings.Replace(whole, change[0], change[1], 1)), nil)
		require.NoError(t, err)
		assert.ErrorContains(t, tried(func(t tester) { tableOf(t, tm) }).failed, want)
	}
}

func TestLostUpdatesAreSeen(t *testing.T) {
	answers := func(balances ...int64) (all []withdrawal) {
		for _, b := range balances {
			all = append(all, withdrawal{Amount: 500, Balance: b})
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

// TestWithdraw plays start-lambda: a function that keeps a lock, a function without
// a lock, and a function that refuses a fence.
func TestWithdraw(t *testing.T) {
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
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "/2015-03-31/functions/WithdrawFunction/invocations", r.URL.Path)
				body, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.JSONEq(t, `{"rawPath": "/x", "body": "{\"amount\":500,\"id\":\"burst-1\"}"}`, string(body))
				c.answer(w, nth)
				nth++
			}))
			defer server.Close()
			s := &service{lambda: newLambda(region, server.URL, credentials.NewStaticCredentialsProvider("a", "b", ""))}
			event := []byte(`{"rawPath": "/x", "body": "{\"id\": \"w-1\", \"amount\": 500}"}`)
			got, err := s.withdraw(t.Context(), fixture{eventfiles.Fixture{Event: event}, "WithdrawFunction"}, held, "burst-1")
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, withdrawal{Amount: 500, Balance: 1, busy: 1}, got)
		})
	}
}

func TestResponsesAreComparedWhole(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, `{"method": %q, "path": %q, "body": %q}`, r.Method, r.RequestURI, body)
	}))
	defer server.Close()
	answer := func(status int, retry, path string) []byte {
		return fmt.Appendf(nil, `{"statusCode": %d, "headers": {"Content-Type": "text/x", "Retry-After": %q}, "body": %q}`,
			status, retry, fmt.Sprintf(`{"method": "PUT", "path": %q, "body": "body"}`, path))
	}
	const path = "/a/./%2E//b%2Fc/../7%FF%00"
	got, err := (&service{api: server.URL}).call(t.Context(), request{"PUT", path, http.Header{"Content-Type": {"text/x"}}, []byte("body")})
	require.NoError(t, err)
	assert.NoError(t, got.same(answer(409, "1", path)))
	assert.ErrorContains(t, got.same(answer(200, "1", path)), "want status 200")
	assert.ErrorContains(t, got.same(answer(409, "2", path)), "want Retry-After: 2")
	assert.ErrorContains(t, got.same(answer(409, "1", "/a/7")), `/a/7`)
}

func TestNoCredentialsReachTheFunctions(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "a-person's own")
	t.Setenv("AWS_PROFILE", "a-person's own")
	t.Setenv("SAM_CLI_POLL_DELAY", "1")
	for _, v := range environment() {
		assert.NotContains(t, v, "a-person's own")
		assert.NotContains(t, v, "SAM_CLI_POLL_DELAY")
	}
	assert.Contains(t, environment(), "AWS_SECRET_ACCESS_KEY=local")
}

func TestColdStartsAreRead(t *testing.T) {
	for log, want := range map[string]bool{
		"REPORT RequestId: 1\tDuration: 1.2 ms\tInit Duration: 40.1 ms\t": true,
		`{"record":{"metrics":{"initDurationMs":40.1}}}`:                  true,
		"REPORT RequestId: 1\tDuration: 1.2 ms\t":                         false,
		"": false,
	} {
		text := base64.StdEncoding.EncodeToString([]byte(log))
		assert.Equal(t, want, coldStart(&text), log)
	}
	assert.False(t, coldStart(nil))
}

// TestStores sets up fixtures on the real servers.
func TestStores(t *testing.T) {
	inSAMTest(t)
	t.Chdir("../..")
	tm := readTemplate(t)
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			s := newSuite(t, t.Context(), tm, start(t, tm))
			holding := func(key string) fixture { return fixture{Fixture: eventfiles.Fixture{Held: key}} }
			busy := func(key string) {
				_, err := s.locks.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: 2e9})
				assert.ErrorIs(t, err, lockstore.ErrRefused)
			}
			key := lockstore.Key("account", account)
			for range 2 { // the second finds a used server
				release := s.prepare(t, holding(key))
				assert.EqualValues(t, opening, s.accounts.balance(t, account))
				busy(key)
				release()
			}
			release := s.prepare(t, holding("schedule/nightly"))
			busy("schedule/nightly")
			release()
			s.prepare(t, holding(""))
			for range 2 {
				s.hold(t, key)() // a plain event finds the lock free, and so does who comes after its release
			}
		})
	}
}
