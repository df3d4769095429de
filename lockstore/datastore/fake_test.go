package datastore

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fake answers lookup and commit as Google's emulator does; the suite run
// on both. Its connections are pipes, so it works in a synctest bubble. Its clock is
// time.Now and shift.
type fake struct {
	mu       sync.Mutex
	shift    time.Duration
	entities map[string]stored
	versions int64
	fault    fault
	match    string // faults are for requests that contain it
	conns    sync.WaitGroup
}

type stored struct {
	properties json.RawMessage
	version    int64
	updated    time.Time
}

type fault int

const (
	works     fault = iota
	refuses         // connections
	loseReply       // the request is applied, then the connection ends
	hangs           // no answer
	quotes          // every answer is an error that quotes the request
	talks           // every answer is the request, and not HTTP
	answers         // every answer is an error with the status match
)

func newFake() *fake { return &fake{entities: map[string]stored{}} }

func (f *fake) set(kind fault, match string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.match = kind, match
}

func (f *fake) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault == refuses {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	ours, theirs := net.Pipe()
	f.conns.Go(func() { f.serve(theirs) })
	return ours, nil
}

func (f *fake) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		f.mu.Lock()
		kind, match := f.fault, f.match
		f.mu.Unlock()
		status, reply := 0, any(nil)
		switch {
		case kind == answers:
			status, reply = refused(match)
		case kind == quotes:
			status, reply = http.StatusTeapot, map[string]any{"error": map[string]any{"status": fmt.Sprint(req.Header, string(body))}}
		case kind == talks:
			_, _ = fmt.Fprintln(conn, req.Header, string(body))
			return
		case kind == hangs && strings.Contains(req.URL.Path, match):
			_, _ = r.ReadByte() // until the client ends the connection
			return
		default:
			status, reply = f.answer(req.URL.Path, body)
			if kind == loseReply && strings.Contains(req.URL.Path, match) {
				return
			}
		}
		text, err := json.Marshal(reply)
		if err != nil {
			panic(err)
		}
		resp := http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(text)), Body: io.NopCloser(strings.NewReader(string(text)))}
		if resp.Write(conn) != nil {
			return
		}
	}
}

var statusCodes = map[string]int{
	"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404,
	"ABORTED": 409, "ALREADY_EXISTS": 409, "RESOURCE_EXHAUSTED": 429, "INTERNAL": 500, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504,
}

// reserved finds names that Google keeps for itself, which the emulator lets pass.
var reserved = regexp.MustCompile(`"(kind|name)":"__[^"]*__"`)

func refused(status string) (int, any) {
	return statusCodes[status], map[string]any{"error": map[string]any{"code": statusCodes[status], "status": status, "message": "…"}}
}

func (f *fake) answer(path string, body []byte) (int, any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().Add(f.shift).Round(0)
	var in struct {
		DatabaseID string
		Keys       []json.RawMessage
		Mode       string
		Mutations  []struct {
			Insert, Update, Upsert *struct {
				Key, Properties json.RawMessage
			}
			Delete                                  json.RawMessage
			BaseVersion, ConflictResolutionStrategy string
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return refused("INVALID_ARGUMENT")
	}
	if reserved.MatchString(string(body)) {
		return refused("INVALID_ARGUMENT")
	}
	if strings.HasSuffix(path, ":lookup") {
		reply := map[string]any{"readTime": now}
		key := in.Keys[0]
		if e, ok := f.entities[string(key)]; ok {
			reply["found"] = []any{map[string]any{
				"entity":  map[string]any{"key": key, "properties": e.properties},
				"version": strconv.FormatInt(e.version, 10), "updateTime": e.updated,
			}}
		} else {
			reply["missing"] = []any{map[string]any{"entity": map[string]any{"key": key}}}
		}
		return http.StatusOK, reply
	}
	m := in.Mutations[0]
	if m.ConflictResolutionStrategy != "" && m.BaseVersion == "" {
		return refused("INVALID_ARGUMENT")
	}
	f.versions = max(f.versions+1, now.UnixMicro())
	put := m.Upsert
	switch {
	case m.Delete != nil:
		delete(f.entities, string(m.Delete))
		return http.StatusOK, map[string]any{"mutationResults": []any{map[string]any{"version": strconv.FormatInt(f.versions, 10)}}}
	case m.Insert != nil:
		put = m.Insert
		if _, ok := f.entities[string(put.Key)]; ok {
			return refused("ALREADY_EXISTS")
		}
	case m.Update != nil:
		put = m.Update
		if m.ConflictResolutionStrategy == "FAIL" && strconv.FormatInt(f.entities[string(put.Key)].version, 10) != m.BaseVersion {
			return refused("FAILED_PRECONDITION")
		}
	}
	e := stored{put.Properties, f.versions, now}
	if old, ok := f.entities[string(put.Key)]; ok && string(old.properties) == string(put.Properties) {
		e = old // a write that changes nothing has no time
	}
	f.entities[string(put.Key)] = e
	return http.StatusOK, map[string]any{"mutationResults": []any{map[string]any{"version": strconv.FormatInt(e.version, 10), "updateTime": e.updated}}}
}
