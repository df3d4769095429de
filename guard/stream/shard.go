package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/isolate"
	"github.com/lambdalock/lambdalock/guard/internal/once"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

// shard works on batches of one source's records.
type shard[R any] struct {
	guard    *guard.Guard
	key      guard.KeyFunc[R]
	work     guard.Work[R]
	sequence func(R) string
}

// run returns the sequence number of the first record that is not done, or "".
func (s shard[R]) run(ctx context.Context, read func() ([]R, error)) (failed string, err error) {
	switch {
	case s.key == nil:
		return "", errors.New("stream: the key function is nil")
	case s.work == nil:
		return "", errors.New("stream: the work is nil")
	case s.guard.Validate() != nil:
		return "", s.guard.Validate()
	}
	records, err := read()
	if err != nil {
		return "", err
	}
	for i, r := range records {
		if s.sequence(r) == "" {
			return "", fmt.Errorf("stream: record %d of %d has no sequence number, so its failure could not be reported; nothing was run", i+1, len(records))
		}
	}
	keys, stop := s.keys(ctx, records)
	for done := 0; done < len(keys); {
		end := done + 1
		for end < len(keys) && keys[end] == keys[done] {
			end++
		}
		n, err := s.hold(ctx, keys[done], records[done:end])
		if done += n; done < end {
			return s.fail(ctx, keys[done], records[done:], err), nil
		}
	}
	if stop != nil {
		return s.fail(ctx, "", records[len(keys):], stop), nil
	}
	return "", nil
}

// keys returns the keys of the records, up to the first record whose key function fails.
func (s shard[R]) keys(ctx context.Context, records []R) (keys []string, stop error) {
	for _, r := range records {
		var key string
		err := isolate.Run(func() (err error) {
			key, err = s.key(ctx, r)
			return err
		})
		if err != nil {
			return keys, fmt.Errorf("the key function failed: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// hold works on records of the same key under one lock. It returns how many are done, and
// why not all. If the guard coalesces, the run of the first record does the work of the others, too; if the first is covered, the next one
// asks for itself: the run that waits may be its own earlier try.
func (s shard[R]) hold(ctx context.Context, key string, records []R) (done int, err error) {
	if !s.guard.Coalesces() {
		return s.lock(ctx, key, records)
	}
	for done < len(records) {
		n, err := s.lock(guard.WithEventID(ctx, s.sequence(records[done])), key, records[done:done+1])
		switch _, covered := err.(*guard.LockCovered); {
		case covered:
			done++
		case n == 0:
			return done, err
		default:
			return len(records), nil
		}
	}
	return done, nil
}

// lock runs the records under the lock of their key. After a lost lock none is done, because nobody knows when it was lost.
func (s shard[R]) lock(ctx context.Context, key string, records []R) (done int, err error) {
	var said error // the work's own error
	err = isolate.Run(func() error {
		return s.guard.Do(ctx, key, func(ctx context.Context, lock guard.Lock) error {
			done, said = s.each(ctx, lock, records)
			return said
		})
	})
	if err != said {
		return 0, err
	}
	return done, err
}

// each works on the records one after the other. It returns how many are done, and why
// not all.
func (s shard[R]) each(ctx context.Context, lock guard.Lock, records []R) (done int, err error) {
	for _, r := range records {
		// The context reads the clocks when it is asked.
		if ctx.Err() != nil {
			return done, fmt.Errorf("not begun: %w", context.Cause(ctx))
		}
		var skip once.Skip
		err := isolate.Run(func() error { return s.work(skip.Watch(ctx, s.guard), lock, r) })
		if skip.IsBusy(err) {
			return done, err
		}
		if err != nil {
			return done, fmt.Errorf("the work: %w", err)
		}
		done++
	}
	return done, nil
}

// fail logs why the batch stops, and returns the sequence number of the first record that is left.
func (s shard[R]) fail(ctx context.Context, key string, left []R, err error) string {
	level := slog.LevelWarn
	if _, busy := err.(*guard.LockBusy); busy {
		level = slog.LevelInfo // nothing is wrong
	}
	attrs := []slog.Attr{
		slog.String("requestId", s.guard.HolderInfo(ctx).ID),
		slog.String("sequenceNumber", s.sequence(left[0])),
		slog.String("key", key),
		slog.Int("left", len(left)),
	}
	tell.Log(ctx, nil, level, "record failed", append(attrs, isolate.Attrs(err)...)...)
	return s.sequence(left[0])
}
