package lambdatest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
)

// logBuffer keeps the last lines and wakes up who waits for one.
type logBuffer struct {
	mu      sync.Mutex
	copyTo  io.Writer
	lines   []string
	dropped int           // lines cut off at the front
	changed chan struct{} // closed at each new line
}

func newLogBuffer(copyTo io.Writer) *logBuffer {
	return &logBuffer{copyTo: copyTo, changed: make(chan struct{})}
}

func (l *logBuffer) add(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) >= 2*maxLogLines {
		l.dropped += maxLogLines
		l.lines = slices.Delete(l.lines, 0, maxLogLines)
	}
	l.lines = append(l.lines, string(line))
	if l.copyTo != nil {
		_, _ = l.copyTo.Write(append(line, '\n')) // a reader who went away loses only its copy
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *logBuffer) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines[max(0, len(l.lines)-maxLogLines):])
}

func (l *logBuffer) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return ""
	}
	return l.lines[len(l.lines)-1]
}

func (l *logBuffer) wait(ctx context.Context, match func(string) bool) (string, error) {
	seen := 0 // lines looked at, counted from the first one ever
	for {
		l.mu.Lock()
		news := slices.Clone(l.lines[max(0, seen-l.dropped):])
		seen = l.dropped + len(l.lines)
		changed := l.changed
		l.mu.Unlock()
		if i := slices.IndexFunc(news, match); i >= 0 {
			return news[i], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// lineWriter cuts what a process writes into lines. A line longer than 64 KiB
// comes in pieces.
type lineWriter struct {
	mu   sync.Mutex
	log  *logBuffer
	rest []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(b)
	for {
		line, rest, found := bytes.Cut(b, []byte{'\n'})
		w.rest = append(w.rest, line...)
		for len(w.rest) > maxLogLine {
			w.log.add(slices.Clone(w.rest[:maxLogLine]))
			w.rest = append(w.rest[:0], w.rest[maxLogLine:]...)
		}
		if !found {
			return n, nil
		}
		w.log.add(slices.Clone(w.rest))
		w.rest, b = w.rest[:0], rest
	}
}

// flush ends a last line that has no line break.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		w.log.add(slices.Clone(w.rest))
		w.rest = nil
	}
}
