package operate

import (
	"bufio"
	"context"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// isTerminal says that there may be somebody to ask or to tell.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// width is how wide the lines are that somebody reads: COLUMNS, or the width of the terminal. 0 is no limit: a
// program reads them.
func width(out any) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// readLine reads what somebody types, until ctx ends. The read itself goes on then, until
// the process ends.
func readLine(ctx context.Context, in io.Reader) (line string, err error) {
	read := make(chan struct{})
	var typed string
	var failed error
	go func() {
		typed, failed = bufio.NewReader(in).ReadString('\n')
		close(read)
	}()
	select {
	case <-read:
		return typed, failed
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
