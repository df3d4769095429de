package sfnwake_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/lockstore"
)

const token = "AQCMAAAAKgAAAAMAAAAA+hunter2/=="

// server is Step Functions as the real client of the SDK sees it.
func server(t *testing.T, answer http.HandlerFunc) map[string]string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "AWSStepFunctions.SendTaskSuccess", r.Header.Get("X-Amz-Target"))
		assert.Regexp(t, "^AWS4-HMAC-SHA256 Credential=AKID/[0-9]{8}/eu-central-1/states/aws4_request, .*Signature=[0-9a-f]{64}$", r.Header.Get("Authorization"))
		var in map[string]string
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&in))
		assert.Equal(t, map[string]string{"taskToken": token, "output": "{}"}, in)
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return map[string]string{"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_ENDPOINT_URL_SFN": s.URL}
}

func open(t *testing.T, env map[string]string) func(context.Context, lockstore.WakeAddress) error {
	t.Helper()
	wake, err := sfnwake.FromEnv(func(name string) string { return env[name] })
	require.NoError(t, err)
	return wake
}

func TestWake(t *testing.T) {
	requests := 0
	wake := open(t, server(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		_, _ = io.WriteString(w, "{}")
	}))
	require.NoError(t, wake(t.Context(), lockstore.TaskToken(token)))
	require.Equal(t, 1, requests)
}

func TestRefusals(t *testing.T) {
	for code, c := range map[string]struct {
		status int
		final  bool // the guard does not repeat it
		want   string
	}{
		"TaskTimedOut":                {400, true, "no execution waits with this task token any more (TaskTimedOut)"},
		"TaskDoesNotExist":            {400, true, "no execution waits with this task token any more (TaskDoesNotExist)"},
		"InvalidToken":                {400, true, "no execution waits with this task token any more (InvalidToken)"},
		"AccessDeniedException":       {400, true, "it needs states:SendTaskSuccess (AccessDeniedException: the message"},
		"UnrecognizedClientException": {400, true, "is not allowed"},
		"KmsAccessDeniedException":    {400, true, "is not allowed; it needs the KMS key of the state machine (KmsAccessDeniedException)"},
		"ValidationException":         {400, true, "refuses the wake-up (ValidationException)"},
		"InvalidOutput":               {400, true, "refuses the wake-up (InvalidOutput)"},
		"ThrottlingException":         {400, false, "the wake-up failed (ThrottlingException)"},
		"KmsThrottlingException":      {400, false, "the wake-up failed (KmsThrottlingException)"},
		"InternalFailure":             {500, false, "the wake-up failed (InternalFailure)"},
	} {
		t.Run(code, func(t *testing.T) {
			message := "the message"
			if code != "AccessDeniedException" && code != "UnrecognizedClientException" {
				message = "Value '" + token + "' at 'taskToken' is wrong"
			}
			requests := 0
			wake := open(t, server(t, func(w http.ResponseWriter, _ *http.Request) {
				requests++
				w.WriteHeader(c.status)
				assert.NoError(t, json.NewEncoder(w).Encode(map[string]string{"__type": "com.amazonaws.states#" + code, "message": message}))
			}))
			err := wake(t.Context(), lockstore.TaskToken(token))
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.final, errors.Is(err, lockstore.ErrInvalid))
			require.NotContains(t, err.Error(), token)
			require.Equal(t, 1, requests, "the guard repeats, and not the client")
		})
	}
}

func TestNoAnswer(t *testing.T) {
	env := server(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := open(t, env)(ctx, lockstore.TaskToken(token))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, err.Error(), token)

	env["AWS_ENDPOINT_URL_SFN"] = "http://127.0.0.1:1"
	err = open(t, env)(t.Context(), lockstore.TaskToken(token))
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotErrorIs(t, err, lockstore.ErrInvalid)
	require.NotContains(t, err.Error(), token)
}

func TestBadInput(t *testing.T) {
	require.ErrorIs(t, sfnwake.New(nil)(t.Context(), lockstore.TaskToken(token)), lockstore.ErrInvalid)
	env := server(t, func(http.ResponseWriter, *http.Request) { t.Error("nothing is sent") })
	err := open(t, env)(t.Context(), "https://hunter2")
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	require.NotContains(t, err.Error(), "hunter2")
	for name, want := range map[string]string{"AWS_REGION": "set AWS_REGION", "AWS_SECRET_ACCESS_KEY": "only one of"} {
		one := env[name]
		delete(env, name)
		_, err := sfnwake.FromEnv(func(name string) string { return env[name] })
		require.ErrorContains(t, err, "sfnwake: ")
		require.ErrorContains(t, err, want)
		env[name] = one
	}
}
