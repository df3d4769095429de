package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/isolate"
)

// shard works on batches of one source's records.
type shard[R any] struct {
	guard    *guard.Guard
	key      func(context.Context, R) (string, error)
	work     func(context.Context, guard.Lock, R) error
	sequence func(R) string
}

// run returns the sequence number of the first record that is not done, or "".
func (s shard[R]) run(ctx context.Context, records []R) (failed string, err error) {
	switch {
	case s.guard == nil:
		return "", errors.New("stream: the guard is nil")
	case s.key == nil:
		return "", errors.New("stream: the key function is nil")
	case s.work == nil:
		return "", errors.New("stream: the work is nil")
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
			s.log(ctx, keys[done], s.sequence(records[done]), len(records)-done, err)
			return s.sequence(records[done]), nil
		}
	}
	if len(keys) == len(records) {
		return "", nil
	}
	s.log(ctx, "", s.sequence(records[len(keys)]), len(records)-len(keys), stop)
	return s.sequence(records[len(keys)]), nil
}

// keys are those of the records up to the first whose key cannot be told.
func (s shard[R]) keys(ctx context.Context, records []R) (keys []string, stop error) {
	for _, r := range records {
		var key string
		err := isolate.Run(func() (err error) {
			key, err = s.key(ctx, r)
			return err
		})
		if err != nil {
			return keys, fmt.Errorf("its key cannot be told: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// hold works on records of the same key under one lock. It returns how many are
// done, and why not all. When the lock was lost that is none, because nobody
// knows since when.
func (s shard[R]) hold(ctx context.Context, key string, records []R) (done int, err error) {
	var said error // by the work, as one
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

// each works on the records one after the other. It returns how many are done,
// and why not all.
func (s shard[R]) each(ctx context.Context, lock guard.Lock, records []R) (done int, err error) {
	for _, r := range records {
		// A look at the context looks at the clocks.
		if ctx.Err() != nil {
			return done, fmt.Errorf("not begun: %w", context.Cause(ctx))
		}
		if err := isolate.Run(func() error { return s.work(ctx, lock, r) }); err != nil {
			return done, fmt.Errorf("the work: %w", err)
		}
		done++
	}
	return done, nil
}

// log says why the batch stops.
func (s shard[R]) log(ctx context.Context, key, sequence string, left int, err error) {
	level := slog.LevelWarn
	if _, busy := err.(*guard.LockBusy); busy {
		level = slog.LevelInfo // as it should be
	}
	attrs := []slog.Attr{
		slog.String("requestId", s.guard.Holder(ctx).ID),
		slog.String("sequenceNumber", sequence),
		slog.String("key", key),
		slog.Int("left", left),
	}
	slog.Default().LogAttrs(ctx, level, "record failed", append(attrs, isolate.Attrs(err)...)...)
}
