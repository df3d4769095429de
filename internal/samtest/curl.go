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

	"github.com/lambdalock/lambdalock/internal/eventfiles"
)

// response is what a client of the HTTP API gets.
type response struct {
	status int
	header http.Header
	body   []byte
}

// curl sends a request to the API.
func curl(ctx context.Context, base string, r request) (response, error) {
	args := []string{"--silent", "--show-error", "--include", "--max-time", "60", "--noproxy", "*",
		"--path-as-is", "--globoff", "--request", r.Method, "--header", "Expect:"}
	for name, values := range r.Header {
		args = append(args, "--header", name+": "+values[0])
	}
	if len(r.Body) > 0 {
		args = append(args, "--data-binary", "@-")
	}
	cmd := exec.CommandContext(ctx, "curl", append(args, base+r.Path)...)
	cmd.Stdin = bytes.NewReader(r.Body)
	cmd.SysProcAttr = ownGroup()
	var text, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &trouble
	if err := cmd.Run(); err != nil {
		return response{}, fmt.Errorf("curl: %w: %s", err, strings.TrimSpace(trouble.String()))
	}
	return splitResponse(text.String())
}

// same compares the response with the answer that the function gives for its
// request. There may be more headers.
func (r response) same(want []byte) error {
	var answer struct {
		StatusCode int               `json:"statusCode"`
		Headers    map[string]string `json:"headers"`
		Body       string            `json:"body"`
	}
	if err := json.Unmarshal(want, &answer); err != nil {
		return err
	}
	if r.status != answer.StatusCode {
		return fmt.Errorf("want status %d\n     got  %d %s", answer.StatusCode, r.status, r.body)
	}
	for name, value := range answer.Headers {
		if got := r.header.Get(name); !eventfiles.SameText(value, got) {
			return fmt.Errorf("want %s: %s\n     got  %q", name, value, got)
		}
	}
	if !eventfiles.SameText(answer.Body, string(r.body)) {
		return fmt.Errorf("want %s\n     got  %s", answer.Body, r.body)
	}
	return nil
}

// answer is the function's, as far as its text tells.
func (r response) answer() []byte {
	text, err := json.Marshal(map[string]string{"body": string(r.body)})
	if err != nil {
		return nil // a string is JSON
	}
	return text
}

// splitResponse takes apart what curl --include prints.
func splitResponse(text string) (r response, err error) {
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	first, rest, _ := strings.Cut(head, "\r\n")
	if _, err := fmt.Sscanf(first, "HTTP/1.1 %d", &r.status); err != nil {
		return r, fmt.Errorf("the response begins with %.80q: %w", first, err)
	}
	header, err := textproto.NewReader(bufio.NewReader(strings.NewReader(rest + "\r\n\r\n"))).ReadMIMEHeader()
	r.header, r.body = http.Header(header), []byte(body)
	return r, err
}
