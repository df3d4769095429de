package main

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// screen is where the demo tells what it does. On a terminal the progress is
// one line that is written again and again; elsewhere only finished steps are
// written.
type screen struct {
	color bool

	mu       sync.Mutex
	out      io.Writer
	terminal bool
	shown    int // length of the progress line that stands there
}

func newScreen(out *os.File, noColor bool) *screen {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &screen{out: out, terminal: terminal, color: terminal && !noColor}
}

func (s *screen) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	fmt.Fprintf(s.out, format, args...)
}

// progress shows what is going on now.
func (s *screen) progress(format string, args ...any) {
	if !s.terminal {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	line = line[:min(len(line), 78)]
	fmt.Fprintf(s.out, "\r%-*s", s.shown, line)
	s.shown = len(line)
}

// done replaces the progress by a line that stays.
func (s *screen) done(format string, args ...any) { s.printf(format+"\n", args...) }

func (s *screen) clear() {
	if s.shown > 0 {
		fmt.Fprintf(s.out, "\r%*s\r", s.shown, "")
		s.shown = 0
	}
}
