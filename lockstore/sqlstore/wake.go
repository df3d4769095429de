package sqlstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

const (
	listenAgain = time.Second // after a Listen that has returned
	mostKept    = 256
)

// waker is PostgreSQL's KV, with notifications. All programs of a table listen to one channel. Package casstore proves the notes.
type waker struct {
	*kv
	channel string
	listen  func(ctx context.Context, channel string, listening func(), woken func(payload string)) error // nil: nobody is woken
	begin   sync.Once
	running sync.WaitGroup
	ready   chan struct{} // closed when it listens, or cannot
	isReady func()
	ctx     context.Context // until Close
	stop    context.CancelFunc

	mu    sync.Mutex
	notes map[string]chan string // by tag: the note of an owner's wake-up. They are of those that wait in this process, and of others for a while
	since time.Time              // from when on none is missing; zero while it does not listen
}

func newWaker(k *kv, listen func(context.Context, string, func(), func(string)) error) *waker {
	w := &waker{kv: k, listen: listen, channel: "lambdalock_" + tag(k.fill("{table}"), ""), ready: make(chan struct{}), notes: map[string]chan string{}}
	w.isReady = sync.OnceFunc(func() { close(w.ready) })
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// tag is an owner's name in payloads, which everybody in the database may read.
func tag(key, owner string) string {
	sum := sha256.Sum256([]byte(key + "\n" + owner))
	return fmt.Sprintf("%x", sum[:8])
}

// WriteAndWake implements casstore.Waker: the notification is part of the write. If the server may have refused it, because its queue of notifications is
// full (54000), or because this role may not notify (42501) or nobody can (42883), the write goes without it. It does not go again after other errors,
// such as that of a row that a transaction has kept for two seconds.
func (w *waker) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (casstore.Entry, error) {
	var all []string
	for owner, note := range notes {
		all = append(all, tag(key, owner)+" "+note)
	}
	notify := "CASE WHEN w.written IS NOT NULL THEN pg_catalog.pg_notify('" + w.channel + "', {notes})::pg_catalog.text END"
	e, err := w.write(ctx, key, value, ifVersion, notify, strings.Join(all, ","))
	var state interface{ SQLState() string }
	if errors.As(err, &state) && slices.Contains([]string{"54000", "42501", "42883"}, state.SQLState()) {
		return w.Write(ctx, key, value, ifVersion)
	}
	return e, err
}

func (w *waker) Listen(ctx context.Context, key, owner string, since time.Time) (<-chan string, bool, func(), error) {
	if w.listen == nil {
		return nil, false, nil, errors.New("nobody listens")
	}
	w.begin.Do(func() { w.running.Go(w.run) })
	select {
	case <-w.ready:
	case <-ctx.Done():
		return nil, false, nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t := tag(key, owner)
	woken := w.of(t)
	return woken, !w.since.IsZero() && w.since.Before(since), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.notes[t] == woken {
			delete(w.notes, t)
		}
	}, nil
}

// of needs the lock.
func (w *waker) of(tag string) chan string {
	if w.notes[tag] == nil {
		w.notes[tag] = make(chan string, 1)
	}
	return w.notes[tag]
}

// drop forgets the notes that nobody has read. It needs the lock.
func (w *waker) drop() {
	for t, note := range w.notes {
		if len(note) > 0 {
			delete(w.notes, t)
			w.since = time.Now()
		}
	}
}

// run listens until the store is closed.
func (w *waker) run() {
	for w.ctx.Err() == nil {
		_ = w.listen(w.ctx, w.channel, w.listening, w.woken)
		w.isReady()
		w.mu.Lock()
		w.since = time.Time{}
		w.mu.Unlock()
		_ = pause.For(w.ctx, listenAgain)
	}
}

// listening wakes all: there may have been notifications before.
func (w *waker) listening() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop()
	w.since = time.Now()
	w.isReady()
	for _, note := range w.notes {
		note <- ""
	}
}

// woken wakes those that a payload names. One without a name is not ours.
func (w *waker) woken(payload string) {
	if payload == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.notes) >= mostKept {
		w.drop()
	}
	for text := range strings.SplitSeq(payload, ",") {
		t, text, _ := strings.Cut(text, " ")
		note := w.of(t)
		select {
		case <-note: // an older one
		default:
		}
		note <- text
	}
}

// Close implements io.Closer: it ends listening.
func (w *waker) Close() error {
	w.stop()
	w.begin.Do(func() {})
	w.running.Wait()
	return nil
}
