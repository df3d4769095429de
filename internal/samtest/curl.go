package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/textproto"
	"os/exec"
	"strings"

	"github.com/lambdalock/lambdalock/internal/lambdatest"
)

// curl sends a request to the API and compares the response with the answer
// that the function gives for it.
func curl(ctx context.Context, base string, r request, want []byte) error {
	cmd := exec.CommandContext(ctx, "curl", "--silent", "--show-error", "--include", "--max-time", "60", "--noproxy", "*",
		"--request", r.Method, "--header", "Content-Type: "+r.ContentType, "--header", "Expect:", "--data-binary", "@-", base+r.Path)
	cmd.Stdin = bytes.NewReader(r.Body)
	cmd.SysProcAttr = ownGroup()
	var text, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &trouble
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("curl: %w: %s", err, strings.TrimSpace(trouble.String()))
	}
	status, header, body, err := splitResponse(text.String())
	if err != nil {
		return err
	}
	return sameResponse(want, status, http.Header(header), []byte(body))
}

// sameResponse compares a response with the answer that the function gives for
// its request. There may be more headers.
func sameResponse(want []byte, status int, header http.Header, body []byte) error {
	var answer struct {
		StatusCode int               `json:"statusCode"`
		Headers    map[string]string `json:"headers"`
		Body       string            `json:"body"`
	}
	if err := json.Unmarshal(want, &answer); err != nil {
		return err
	}
	if status != answer.StatusCode {
		return fmt.Errorf("want status %d\n     got  %d %s", answer.StatusCode, status, body)
	}
	for name, value := range answer.Headers {
		if got := header.Get(name); !lambdatest.SameText(value, got) {
			return fmt.Errorf("want %s: %s\n     got  %q", name, value, got)
		}
	}
	if !lambdatest.SameText(answer.Body, string(body)) {
		return fmt.Errorf("want %s\n     got  %s", answer.Body, body)
	}
	return nil
}

// splitResponse takes apart what curl --include prints.
func splitResponse(text string) (status int, header textproto.MIMEHeader, body string, err error) {
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	first, rest, _ := strings.Cut(head, "\r\n")
	if _, err := fmt.Sscanf(first, "HTTP/1.1 %d", &status); err != nil {
		return 0, nil, "", fmt.Errorf("the response begins with %.80q: %w", first, err)
	}
	header, err = textproto.NewReader(bufio.NewReader(strings.NewReader(rest + "\r\n\r\n"))).ReadMIMEHeader()
	return status, header, body, err
}
