package httpguard

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
)

// upload is a request with the file "f", which has the text "text".
func upload(t *testing.T, url string) *http.Request {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f")
	require.NoError(t, err)
	fmt.Fprint(part, "text")
	require.NoError(t, form.Close())
	r := httptest.NewRequest(http.MethodPost, url, &body)
	r.RequestURI = "" // it goes to a server, too
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Idempotency-Key", "k")
	return r
}

// parse parses the form of an upload. Its file is above the limit of the memory, so it goes into the folder of temporary files.
func parse(t *testing.T, r *http.Request) {
	assert.NoError(t, r.ParseMultipartForm(1))
	files, err := os.ReadDir(os.TempDir())
	assert.NoError(t, err)
	assert.NotEmpty(t, files)
}

// text is that of the file.
func text(t *testing.T, r *http.Request) string {
	f, _, err := r.FormFile("f")
	if !assert.NoError(t, err) {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	assert.NoError(t, err)
	return string(b)
}

func noFiles(t *testing.T) {
	t.Helper()
	files, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, files)
}

// A server removes the files of a form that its own request has. The program's functions get copies of it.
func TestNoFilesOfFormsStay(t *testing.T) {
	handle := func(w http.ResponseWriter, r *http.Request) {
		parse(t, r)
		fmt.Fprint(w, text(t, r))
	}
	key := func(r *http.Request) (string, error) {
		parse(t, r)
		return "account", nil
	}
	fingerprint := func(r *http.Request, _ []byte) any {
		parse(t, r)
		return text(t, r)
	}
	for name, site := range map[string]func() http.Handler{
		"plain":         func() http.Handler { return http.HandlerFunc(handle) },
		"Wrap":          func() http.Handler { return wrapped(t, Options{}, handle) },
		"Wrap, Timeout": func() http.Handler { return wrapped(t, Options{Timeout: time.Minute}, handle) },
		"Wrap in Wrap":  func() http.Handler { return wrapped(t, Options{}, handle).inside() },
		"Once":          func() http.Handler { return onced(t, idempotency.AtMostOnce, OnceOptions{}, handle) },
		"Once, Key":     func() http.Handler { return onced(t, idempotency.AtMostOnce, OnceOptions{Key: key}, handle) },
		"Once, Fingerprint": func() http.Handler {
			return onced(t, idempotency.AtMostOnce, OnceOptions{Fingerprint: fingerprint}, handle)
		},
		"a middleware outside": func() http.Handler {
			s := wrapped(t, Options{}, handle)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				parse(t, r)
				s.ServeHTTP(w, r)
				assert.Equal(t, "text", text(t, r), "its own form")
			})
		},
		"Wrap, key": func() http.Handler {
			s := wrapped(t, Options{}, handle)
			wrap, err := Wrap(s.guard, key, Options{})
			require.NoError(t, err)
			return wrap(http.HandlerFunc(handle))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			server := httptest.NewServer(site())
			defer server.Close()
			answer, err := server.Client().Do(upload(t, server.URL))
			require.NoError(t, err)
			require.Equal(t, "text", body(t, answer))
			require.NoError(t, answer.Body.Close())
			server.Close() // waits for the end of the request
			noFiles(t)
		})
	}
}

// After the 503 of a Timeout the request of the server ends, and the handler has its files until it returns.
func TestFilesOfAFormAfterATimeout(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, guard.Options{})
		wrap, err := Wrap(s.guard, func(r *http.Request) (string, error) {
			parse(t, r)
			return "account", nil
		}, Options{Timeout: time.Second})
		require.NoError(t, err)
		got := ""
		s.Handler = wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-time.After(time.Minute)
			got = text(t, r)
		}))
		r := upload(t, "/x")
		tooLate(t, <-s.asks(r), takesLonger)
		if r.MultipartForm != nil {
			require.NoError(t, r.MultipartForm.RemoveAll()) // as a server does
		}
		<-time.After(time.Hour)
		synctest.Wait()
		require.Equal(t, "text", got)
		noFiles(t)
	})
}
