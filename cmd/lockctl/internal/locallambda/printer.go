package locallambda

import (
	"fmt"
	"io"
	"sync"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

// printer is where the command tells what it does. What a function, an event or a command says is Visible.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

func (p *printer) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.out, exit.Visible(fmt.Sprintf(format, args...)))
}
