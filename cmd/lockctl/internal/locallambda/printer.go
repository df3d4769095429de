package locallambda

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

// printer is where the command tells what it does. On a terminal the progress is
// one line that is written again and again; elsewhere only finished steps are
// written. What a function, an event or a command says is Visible.
type printer struct {
	color bool

	mu       sync.Mutex
	out      io.Writer
	terminal bool
	shown    int // length of the progress line that stands there
}

func newPrinter(out io.Writer, dumb, noColor bool) *printer {
	p := &printer{out: out}
	if f, ok := out.(*os.File); ok && !dumb {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
		p.color = p.terminal && !noColor
	}
	return p
}

func (p *printer) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprint(p.out, exit.Visible(fmt.Sprintf(format, args...)))
}

// progress shows what is going on now.
func (p *printer) progress(format string, args ...any) {
	if !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line := []rune(exit.Visible(fmt.Sprintf(format, args...)))
	line = line[:min(len(line), 78)]
	fmt.Fprintf(p.out, "\r%-*s", p.shown, string(line))
	p.shown = len(line)
}

// done replaces the progress by a line that stays.
func (p *printer) done(format string, args ...any) { p.printf(format+"\n", args...) }

// colored prints a text that is Visible already, and has colors.
func (p *printer) colored(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.out, text)
}

func (p *printer) clear() {
	if p.shown > 0 {
		fmt.Fprintf(p.out, "\r%*s\r", p.shown, "")
		p.shown = 0
	}
}
