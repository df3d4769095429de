package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
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

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/watchdog"
)

func TestMain(m *testing.M) {
	watchdog.Start()
	m.Run()
}

// local is an environment in which every variable is "local".
func local(string) string { return "local" }

// start serves the locks of a store on a free port until stop is called, or the test ends, and returns what
// it prints.
func start(t *testing.T, store string) (base, printed string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, store, local, "0", in)
		_ = in.Close() // a start that fails prints no more
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		assert.NoError(t, <-ended)
	})
	lines := bufio.NewReader(out)
	for !strings.Contains(printed, "Ctrl-C") {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		printed += line
	}
	base = regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(printed)
	require.NotEmpty(t, base)
	return base, printed, cancel
}

// client is a connection on which a test writes requests itself.
type client struct {
	net.Conn
	answers *bufio.Reader
}

func dial(t *testing.T, address string) client {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute))) // a server without a bound never answers
	return client{conn, bufio.NewReader(conn)}
}

// asks sends a text, and returns the next answer.
func (c client) asks(t *testing.T, text string) *http.Response {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	r, err := http.ReadResponse(c.answers, nil)
	require.NoError(t, err)
	return r
}

// put is the head of a request.
func put(length int, header string) string {
	return fmt.Sprintf("PUT /locks/a HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n", header, length)
}

// A server that is stopped answers those who wait for a lock, and ends.
func TestStop(t *testing.T) {
	base, _, stop := start(t, "memory://")
	address := strings.TrimPrefix(base, "http://")
	const has, wants = `{"ttl": 60}`, `{"ttl": 60, "wait": 20}`
	require.Equal(t, 200, dial(t, address).asks(t, put(len(has), "")+has).StatusCode)
	waits := dial(t, address)
	require.Equal(t, 100, waits.asks(t, put(len(wants), "Expect: 100-continue\r\n")).StatusCode, "the request is being answered")
	stop()
	assert.Equal(t, 503, waits.asks(t, wants).StatusCode)
}

// A request that another name has led here is refused, as that of a web page whose name
// points to this machine.
func TestForeignHost(t *testing.T) {
	server := newServer(http.NotFoundHandler(), time.Second)
	for host, want := range map[string]int{
		"127.0.0.1:1": 404, "localhost:1": 404, "LocalHost:1": 404, "a.localhost:1": 404, "localhost": 404, "[::1]:1": 404, "[::1]": 404,
		"evil.example:1": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example:1": 403, "192.0.2.1": 403, "0.0.0.0:1": 403, "host.docker.internal:1": 403,
	} {
		r, answer := httptest.NewRequest("GET", "/locks/a", nil), httptest.NewRecorder()
		r.Host = host
		server.Handler.ServeHTTP(answer, r)
		assert.Equal(t, want, answer.Code, host)
		if want == 403 {
			assert.Contains(t, answer.Body.String(), "want localhost or a loopback address")
		}
	}
}

// A body that does not come is not waited for, and a wait for a lock may take longer than a
// body.
func TestSlowBody(t *testing.T) {
	const short = time.Second
	lasts := make(chan error, 1)
	server := httptest.NewUnstartedServer(nil)
	server.Config = newServer(gateway(func(ctx context.Context, _ httpapi.Request) (httpapi.Response, error) {
		select { // ends early only if the request is ended
		case <-ctx.Done():
		case <-time.After(short + short/2):
		}
		lasts <- ctx.Err()
		return httpapi.Response{StatusCode: 200}, nil
	}), short)
	server.Start()
	defer server.Close()
	address := server.Listener.Addr().String()
	assert.Equal(t, 200, dial(t, address).asks(t, put(2, "")+"{}").StatusCode)
	require.NoError(t, <-lasts, "the request goes on after the time for its body")
	slow := dial(t, address).asks(t, put(2, "")+"{")
	assert.Equal(t, 400, slow.StatusCode)
	assert.True(t, slow.Close)
}

// A path is decoded once and taken as it is.
func TestPaths(t *testing.T) {
	var got string
	h := gateway(func(_ context.Context, r httpapi.Request) (httpapi.Response, error) {
		got = r.URL.Path
		return httpapi.Response{StatusCode: 200}, nil
	})
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/locks/a%2Fb%252Fc//../d/", nil))
	require.Equal(t, "/locks/a/b%2Fc//../d/", got)
}

func TestAddresses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	err = run(t.Context(), "redis://127.0.0.1:1", local, port, io.Discard) // told before the store is asked
	assert.EqualError(t, err, "the address 127.0.0.1:"+port+` is taken; choose another port: "lockctl serve 0" or make serve PORT=0 takes one that is free`)
	for _, bad := range []string{"", "http", "65536", "-1", "+1", "127.0.0.1", "127.0.0.1:", ":8080", "0.0.0.0:80", "[::]:80", "192.0.2.1:80", "example.com:80", "localhost.example.com:80", "host.docker.internal:80"} {
		err := run(t.Context(), "memory://", local, bad, io.Discard)
		assert.ErrorContains(t, err, fmt.Sprintf("ADDRESS is %q; want a port", bad))
		assert.Equal(t, exit.Usage, exit.Status(err))
	}
	for given, want := range map[string]string{"0": "127.0.0.1:0", "8080": "127.0.0.1:8080", "localhost:1": "localhost:1", "127.0.0.2:1": "127.0.0.2:1", "[::1]:65535": "[::1]:65535"} {
		address, err := loopback(given)
		require.NoError(t, err, given)
		assert.Equal(t, want, address)
	}
	for _, network := range []string{"192.0.2.1:0", "[2001:db8::1]:0", "0.0.0.0:0", "[::]:0", ":0"} { // as an address of localhost in the hosts file
		_, err := listen(network)
		assert.ErrorContains(t, err, fmt.Sprintf("ADDRESS is %q, which is %s here; want a loopback address", network, network))
		assert.Equal(t, exit.Usage, exit.Status(err))
	}
}

// What it prints to be tried can be copied line by line.
func TestPrintedLines(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("curl is not installed")
		}
		t.Skip("curl is not installed")
	}
	store := "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
	_, printed, _ := start(t, store+"?table=locks")
	assert.Contains(t, printed, ", in the store "+store+". Take a lock")
	_, rest, _ := strings.Cut(printed, "\n\n")
	lines, _, _ := strings.Cut(rest, "\n\n")
	require.Len(t, strings.Split(lines, "\n"), 3)
	text, err := exec.CommandContext(t.Context(), "sh", "-c", lines).CombinedOutput()
	require.NoError(t, err, "%s", text)
	answers := strings.SplitN(string(text), "\n", 3)
	require.Len(t, answers, 3)
	assert.Contains(t, answers[0], `"token":`)
	assert.Contains(t, answers[1], `"state":"held"`)
	assert.Contains(t, answers[1], `"me"`)
	assert.Contains(t, answers[2], "204 No Content")
}
