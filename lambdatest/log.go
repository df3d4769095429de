package lambdatest

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
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

// lineReader reads what a process writes into a pipe, and cuts it into lines. A line longer
// than 64 KiB comes in pieces.
type lineReader struct {
	file     *os.File
	raw      syscall.RawConn // of file
	log      *logBuffer
	followed chan struct{} // closed when follow has returned

	mu     sync.Mutex // held from a read until its lines are in the log
	buffer [16 << 10]byte
	rest   []byte
}

// maxDrain bounds drain, for a process that never stops writing. A pipe holds less.
const maxDrain = 2 << 20

// newLineReader returns a reader that follows, and the end of the pipe for the process.
func newLineReader(log *logBuffer) (*lineReader, *os.File, error) {
	file, forProcess, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		_, _ = file.Close(), forProcess.Close()
		return nil, nil, err
	}
	r := &lineReader{file: file, raw: raw, log: log, followed: make(chan struct{})}
	go r.follow()
	return r, forProcess, nil
}

// follow reads until the end of the pipe, or until close.
func (r *lineReader) follow() {
	defer close(r.followed)
	for more := true; more; {
		err := r.raw.Read(func(fd uintptr) bool {
			n, err := r.read(fd)
			more = n > 0 || err == syscall.EINTR
			return err != syscall.EAGAIN
		})
		if err != nil {
			return
		}
	}
}

// drain reads what is in the pipe now. follow may be late: it is a goroutine of its own.
func (r *lineReader) drain() {
	_ = r.raw.Control(func(fd uintptr) { // an error: it is closed, and close has drained it
		for left := maxDrain; left > 0; {
			n, err := r.read(fd)
			if left -= n; n <= 0 && err != syscall.EINTR {
				return
			}
		}
	})
}

func (r *lineReader) read(fd uintptr) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := syscall.Read(int(fd), r.buffer[:])
	n = max(0, n)
	r.cut(r.buffer[:n])
	return n, err
}

func (r *lineReader) cut(b []byte) {
	for {
		line, rest, found := bytes.Cut(b, []byte{'\n'})
		r.rest = append(r.rest, line...)
		for len(r.rest) > maxLogLine {
			r.log.add(slices.Clone(r.rest[:maxLogLine]))
			r.rest = append(r.rest[:0], r.rest[maxLogLine:]...)
		}
		if !found {
			return
		}
		r.log.add(slices.Clone(r.rest))
		r.rest, b = r.rest[:0], rest
	}
}

// close reads the rest and ends a last line that has no line break. A child of the process
// that keeps the pipe open is read no more.
func (r *lineReader) close() {
	r.drain()
	_ = r.file.Close() // it was open for reading
	<-r.followed
	r.mu.Lock() // for the race detector: a drain of Send has ended, but Close does not show it that
	defer r.mu.Unlock()
	if len(r.rest) > 0 {
		r.log.add(slices.Clone(r.rest))
	}
}
