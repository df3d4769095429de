package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// programs are those of the processes that the tests of this file start: each has a database file and a folder.
var programs = map[string]func(s *lockstore.Store, dir string) error{"works": works, "fills": fills, "reads": reads}

const whichProgram, ofFile = "SQLTEST_PROGRAM", "SQLTEST_FILE"

// isProgram runs a program instead of the tests, if this is its process.
func isProgram() bool {
	program := programs[os.Getenv(whichProgram)]
	if program == nil {
		return false
	}
	file := os.Getenv(ofFile)
	db, err := sql.Open("sqlite", "file:"+file)
	if err == nil {
		db.SetMaxOpenConns(2)
		var s *lockstore.Store
		if s, err = sqlstore.New(db, sqlstore.Options{Table: sqlstore.Table{Dialect: sqlstore.SQLite}}); err == nil {
			err = program(s, filepath.Dir(file))
		}
	}
	if err != nil {
		fmt.Println("failed:", err)
	}
	return true
}

// process is one that runs a program. It says a line for each item that is done.
type process struct {
	*exec.Cmd
	ended chan struct{} // closed when it has said all
}

// said are the lines of all processes of a test.
type said struct {
	mu    sync.Mutex
	lines map[string]bool
}

func (s *said) now() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.lines)
}

func (s *said) failures() (all []string) {
	for line := range s.now() {
		if strings.HasPrefix(line, "failed") {
			all = append(all, line)
		}
	}
	return all
}

func (s *said) start(t *testing.T, program, file string) process {
	exe, err := os.Executable()
	require.NoError(t, err)
	p := process{exec.Command(exe), make(chan struct{})}
	p.Env = append(os.Environ(), whichProgram+"="+program, ofFile+"="+file)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.mu.Lock()
			s.lines[lines.Text()] = true
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() { p.end() })
	return p
}

// end kills the process, if it has not ended.
func (p process) end() {
	_ = p.Process.Kill()
	<-p.ended
	_ = p.Wait()
}

// completed are the items of a database file whose work is done. The file is whole.
func completed(t *testing.T, file string) map[string]bool {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file)
	require.NoError(t, err)
	limited(t, db, 2)
	var whole string
	require.NoError(t, db.QueryRow("PRAGMA integrity_check").Scan(&whole))
	require.Equal(t, "ok", whole)
	items := map[string]bool{}
	require.NoError(t, store(t, db, sqlstore.Options{Table: sqlstore.Table{Dialect: sqlstore.SQLite}}).List(minute(t), "item/", func(p lockstore.Page) error {
		require.Zero(t, p.Damaged)
		for _, k := range p.Keys {
			items[k.Key] = k.State == lockstore.Completed
		}
		return nil
	}))
	return items
}

func complete(s *lockstore.Store, item string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	lease, err := s.Acquire(ctx, lockstore.Request{Key: item, Owner: lockstore.Owner("of/" + item), TTL: time.Minute})
	if err == nil {
		err = s.Complete(ctx, lease, []byte(strings.Repeat("x", 1000)), time.Hour)
	}
	return err
}

// works completes one item after the other, and holds a key that all processes want in between.
func works(s *lockstore.Store, dir string) error {
	for n := 0; ; n++ {
		key := fmt.Sprint("shared/", n%8)
		lease, err := s.Acquire(context.Background(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: 5 * time.Second})
		if err == nil {
			// The kernel ends this lock with the process.
			f, err := os.Create(filepath.Join(dir, fmt.Sprint("held", n%8)))
			if err != nil {
				return err
			}
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
				return fmt.Errorf("two processes hold the key %s: %w", key, err)
			}
			if err := errors.Join(f.Close(), s.Release(context.Background(), lease)); err != nil {
				return err
			}
		} else if !errors.Is(err, lockstore.ErrRefused) {
			return err
		}
		item := fmt.Sprintf("item/%d/%d", os.Getpid(), n)
		if err := complete(s, item); err != nil {
			return err
		}
		fmt.Println(item)
	}
}

// TestProcesses: four processes use one file. Some are killed, and the power is cut: the database and its log are copied while all
// processes stand still. What a process was told is there afterwards, and no key has two holders.
func TestProcesses(t *testing.T) {
	for _, mode := range []string{"wal", "delete"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			file := newFile(t, mode)
			all := said{lines: map[string]bool{}}
			holds := func(file string, said map[string]bool) {
				t.Helper()
				done := completed(t, file)
				for line := range said {
					require.True(t, done[line], "a process said %q; done are %d items", line, len(done))
				}
			}
			var running []process
			for range 4 {
				running = append(running, all.start(t, "works", file))
			}
			more := func() {
				t.Helper()
				before := len(all.now())
				many := before + 10 + rand.N(10)
				require.Eventually(t, func() bool { return len(all.now()) >= many }, time.Minute, time.Millisecond, "%v", all.failures())
				require.Empty(t, all.failures())
			}
			for range 4 {
				more()
				i := rand.N(len(running))
				running[i].end()
				running[i] = all.start(t, "works", file)

				more()
				said := all.now()
				copied := filepath.Join(t.TempDir(), "locks.db")
				for _, p := range running {
					stop(t, p.Process.Pid)
				}
				for _, name := range []string{"", "-wal", "-journal"} {
					if data, err := os.ReadFile(file + name); err == nil {
						require.NoError(t, os.WriteFile(copied+name, data, 0o600))
					}
				}
				for _, p := range running {
					require.NoError(t, syscall.Kill(p.Process.Pid, syscall.SIGCONT))
				}
				holds(copied, said)
			}
			for _, p := range running {
				p.end()
			}
			holds(file, all.now())
			t.Logf("%d items", len(all.now()))
		})
	}
}

// newFile makes a database file with a table of locks.
func newFile(t *testing.T, mode string) string {
	file := filepath.Join(t.TempDir(), "locks.db")
	db, err := sql.Open("sqlite", "file:"+file)
	require.NoError(t, err)
	schema, err := sqlstore.Table{Dialect: sqlstore.SQLite}.Schema()
	require.NoError(t, err)
	run(t, db, "PRAGMA journal_mode = "+mode)
	run(t, db, schema)
	require.NoError(t, db.Close())
	return file
}

// stop returns when the process stands still.
func stop(t *testing.T, pid int) {
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	var is syscall.WaitStatus
	_, err := syscall.Wait4(pid, &is, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, is.Stopped(), "it has ended")
}

// fills completes items until the disk is full, twice, and goes on when there is room again.
func fills(s *lockstore.Store, _ string) error {
	signal.Ignore(syscall.SIGXFSZ) // the write fails then
	limit := func(size uint64) error {
		return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: unlimited})
	}
	for round := range uint64(2) {
		if err := limit((round + 1) * 300 << 10); err != nil { // files of more bytes cannot be written
			return err
		}
		for n := 0; ; n++ {
			item := fmt.Sprintf("item/%d/%d", round, n)
			err := complete(s, item)
			if err != nil {
				fmt.Println("full:", err)
				if err := limit(unlimited); err != nil {
					return err
				}
				err = complete(s, item) // also when the outcome was unknown
			}
			if err != nil {
				return err
			}
			if fmt.Println(item); n > 5000 {
				return errors.New("the disk is not full")
			}
			var now syscall.Rlimit
			if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &now); err != nil {
				return err
			}
			if now.Cur == unlimited {
				break
			}
		}
	}
	return nil
}

const unlimited = ^uint64(0)

// TestFullDisk: the error says what is wrong, nothing is lost, and the store works as soon as there is room.
func TestFullDisk(t *testing.T) {
	for _, mode := range []string{"wal", "delete"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			file := newFile(t, mode)
			all := said{lines: map[string]bool{}}
			p := all.start(t, "fills", file)
			<-p.ended
			done, full := completed(t, file), 0
			for line := range all.now() {
				switch {
				case strings.HasPrefix(line, "full: "):
					full++
					require.Contains(t, line, "free space")
				default:
					require.True(t, done[line], line)
				}
			}
			require.Equal(t, 2, full, "%v", all.now())
		})
	}
}

// reads wants a key, without the rights of an administrator.
func reads(s *lockstore.Store, _ string) error {
	if os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
	fmt.Println(err)
	return nil
}

// TestReadOnlyFile: each error names what to change.
func TestReadOnlyFile(t *testing.T) {
	for _, mode := range []string{"wal", "delete"} {
		for _, c := range []struct {
			what         string
			file, folder os.FileMode
			says         string
		}{
			{"the file only reads", 0o444, 0o777, "only reads"},
			{"the folder only reads", 0o666, 0o555, "folder"},
			{"both only read", 0o444, 0o555, "only reads"},
			{"the folder is closed", 0o666, 0o700, "folder"},
			{"the file is closed", 0o600, 0o777, "folder"},
		} {
			t.Run(mode+", "+c.what, func(t *testing.T) {
				t.Parallel()
				file := newFile(t, mode)
				require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(file)), 0o711))
				require.NoError(t, os.Chmod(filepath.Dir(file), c.folder))
				require.NoError(t, os.Chmod(file, c.file))
				defer func() { require.NoError(t, os.Chmod(filepath.Dir(file), 0o700)) }()
				all := said{lines: map[string]bool{}}
				p := all.start(t, "reads", file)
				<-p.ended
				require.Len(t, all.now(), 1)
				for line := range all.now() {
					require.Contains(t, line, c.says)
					require.Contains(t, line, "not applied")
				}
			})
		}
	}
}
