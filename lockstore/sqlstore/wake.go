package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

const (
	idleTime    = 5 * time.Second // for which the store listens after the last wait
	listenAgain = time.Second     // after the beginning of a Listen that has failed
)

// waker is PostgreSQL's KV, with notifications. All programs of a table listen to one channel. A wake-up only makes its owner read, so
// nobody has to prove that it is true.
type waker struct {
	*kv
	channel string
	running sync.WaitGroup

	mu      sync.Mutex
	listen  func(ctx context.Context, channel string, woken func(payload string)) error // nil: nobody is woken
	waiters map[string]chan struct{}                                                    // by tag
	ready   chan struct{}                                                               // closed when it listens; nil: it does not try to
	begun   time.Time
	stop    context.CancelFunc
	idle    *time.Timer
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// tag is an owner's name in payloads, which everybody in the database may read.
func tag(key, owner string) string { return digest(key + "\n" + owner) }

// WriteAndWake implements casstore.Waker: the notification is part of the write.
func (w *waker) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, owners []string) (casstore.Entry, error) {
	var tags []string
	for _, owner := range owners {
		tags = append(tags, tag(key, owner))
	}
	notify := "pg_catalog.pg_notify('" + w.channel + "', '" + strings.Join(tags, " ") + "')::pg_catalog.text"
	return w.write(ctx, key, value, ifVersion, "CASE WHEN w.written IS NOT NULL THEN "+notify+" END")
}

// Listen implements casstore.Waker. It returns when the store listens.
func (w *waker) Listen(ctx context.Context, key, owner string) (<-chan struct{}, func(), error) {
	t, woken := tag(key, owner), make(chan struct{})
	w.mu.Lock()
	if w.listen == nil {
		w.mu.Unlock()
		return nil, nil, errors.New("nobody listens")
	}
	if w.ready == nil && time.Since(w.begun) > listenAgain {
		w.ready, w.begun = make(chan struct{}), time.Now()
		w.running.Go(w.run(w.listen, w.ready))
	}
	w.waiters[t] = woken
	ready := w.ready
	w.mu.Unlock()
	stop := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiters[t] == woken {
			delete(w.waiters, t)
		}
		w.idle.Reset(idleTime)
	}
	select {
	case <-ready:
		return woken, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, ctx.Err()
	}
}

// run returns what listens, until nobody has waited for a while. It closes ready when it does.
func (w *waker) run(listen func(context.Context, string, func(string)) error, ready chan struct{}) func() {
	ctx, stop := context.WithCancel(context.Background())
	w.stop, w.idle = stop, time.AfterFunc(idleTime, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.waiters) == 0 {
			stop()
		}
	})
	first := true
	return func() {
		_ = listen(ctx, w.channel, func(payload string) {
			if first {
				close(ready)
			} else {
				w.woken(payload)
			}
			first = false
		})
		stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ready = nil
	}
}

// woken wakes those that a payload names, and all if a connection was lost: there may have been others.
func (w *waker) woken(payload string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, c := range w.waiters {
		if payload == "" || strings.Contains(payload, t) {
			close(c)
			delete(w.waiters, t)
		}
	}
}

// Close implements io.Closer: it ends listening.
func (w *waker) Close() error {
	w.mu.Lock()
	if w.listen = nil; w.ready != nil {
		w.stop()
	}
	w.mu.Unlock()
	w.running.Wait()
	return nil
}
