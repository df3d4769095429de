package sqlstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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

	mu      sync.Mutex
	waiters map[string]chan string // by tag
	kept    map[string]string      // notes by tag, of owners that do not wait in this process, or not yet
	since   time.Time              // from when on none is missing; zero while it does not listen
}

func newWaker(k *kv, listen func(context.Context, string, func(), func(string)) error) *waker {
	w := &waker{kv: k, listen: listen, channel: "lambdalock_" + tag(k.fill("{table}"), ""), ready: make(chan struct{}), waiters: map[string]chan string{}, kept: map[string]string{}}
	w.isReady = sync.OnceFunc(func() { close(w.ready) })
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// tag is an owner's name in payloads, which everybody in the database may read.
func tag(key, owner string) string {
	sum := sha256.Sum256([]byte(key + "\n" + owner))
	return fmt.Sprintf("%x", sum[:8])
}

// WriteAndWake implements casstore.Waker: the notification is part of the write.
func (w *waker) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (casstore.Entry, error) {
	var all []string
	for owner, note := range notes {
		all = append(all, tag(key, owner)+" "+note)
	}
	notify := "pg_catalog.pg_notify('" + w.channel + "', " + w.literal(strings.Join(all, ",")) + ")::pg_catalog.text"
	return w.write(ctx, key, value, ifVersion, "CASE WHEN w.written IS NOT NULL THEN "+notify+" END")
}

// Listen implements casstore.Waker.
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
	t, woken := tag(key, owner), make(chan string, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiters[t] = woken
	if note, ok := w.kept[t]; ok {
		w.wake(t, note)
	}
	return woken, !w.since.IsZero() && w.since.Before(since), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiters[t] == woken {
			delete(w.waiters, t)
		}
	}, nil
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
	w.since = time.Now()
	clear(w.kept)
	w.isReady()
	for t := range w.waiters {
		w.wake(t, "")
	}
}

// woken wakes those that a payload names. One without a name is not ours.
func (w *waker) woken(payload string) {
	if payload == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.kept) >= mostKept {
		w.since = time.Now()
		clear(w.kept)
	}
	for text := range strings.SplitSeq(payload, ",") {
		t, note, _ := strings.Cut(text, " ")
		w.wake(t, note)
	}
}

// wake needs the lock.
func (w *waker) wake(tag, note string) {
	if woken := w.waiters[tag]; woken != nil {
		woken <- note
		delete(w.waiters, tag)
		delete(w.kept, tag)
	} else {
		w.kept[tag] = note
	}
}

// Close implements io.Closer: it ends listening.
func (w *waker) Close() error {
	w.stop()
	w.begin.Do(func() {})
	w.running.Wait()
	return nil
}
