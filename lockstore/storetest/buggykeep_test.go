package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// keptError is the refusal of a key that is kept.
func (m *buggyStore) keptError(req lockstore.Request, r *row, left time.Duration) error {
	place := 0
	if m.has("queue: one waits for the end of a cooldown") {
		place = m.join(r, req)
	}
	err := m.held(req.Key, r, left, place)
	if held, ok := errors.AsType[*lockstore.HeldError](err); ok {
		kept := &lockstore.KeptError{HeldError: *held, Data: r.Data}
		switch {
		case m.has("keep: the error shows the data"):
			return fmt.Errorf("%s: %w", r.Data, kept)
		case m.has("keep: the error knows no holder"):
			kept.Holder = lockstore.Holder{}
		case m.has("keep: a plain refusal"):
			return err
		}
		return kept
	}
	return err
}

// keptData is the data in the row.
func (m *buggyStore) keptData(data []byte) []byte {
	text := string(data)
	switch m.bug {
	case "keep: the data is a text":
		text = strings.ToValidUTF8(text, "?")
	case "keep: the data ends at a NUL":
		text, _, _ = strings.Cut(text, "\x00")
	case "keep: a newline at the end is cut":
		text = strings.TrimSuffix(text, "\n")
	case "keep: data that looks like a queue is none":
		if strings.HasSuffix(text, " ") {
			text = ""
		}
	case "keep: 64 KiB":
		text = text[:min(len(text), 64<<10)]
	}
	return []byte(text)
}

// dataAfterGrant is the data in the row of a new lease.
func (m *buggyStore) dataAfterGrant(r *row) []byte {
	if m.has("keep: the answer survives the next grant") || m.has("keep: the answer stays in the entry") {
		return r.Data
	}
	return nil
}

// endOfKeep is the end of the time of a Keep that begins now.
func (m *buggyStore) endOfKeep(now time.Time, d time.Duration) int64 {
	switch m.bug {
	case "keep: at most a day":
		d = min(d, 24*time.Hour)
	case "keep: for ever":
		d += 100 * 24 * time.Hour
	case "keep: by another clock":
		now = now.Add(-m.shift)
	}
	return m.end(now, d)
}

// Begin implements lockstore.Keeper.
func (m *buggyStore) Begin(ctx context.Context, l lockstore.Lease) error {
	if err := m.checked(lockstore.ValidateGrant(l)); err != nil {
		return err
	}
	if m.has("cost: Begin reads first") {
		m.locked(func() { m.requests++ })
	}
	return m.misread("Begin", l.Key, m.request(ctx, l.Key, func(r *row, now time.Time) error {
		mine := m.same(r.Owner, fullOwner(l.Owner))
		switch {
		case m.has("begin: by anybody"),
			m.has("begin: whatever the fence") && mine,
			m.has("begin: also after the end") && mine && r.Fence == l.Fence,
			m.has("begin: of a kept key") && slices.Contains(r.Kept, fullOwner(l.Owner)):
		case m.has("begin: says lost and begins") && r.Owner != "" && r.Fence != l.Fence:
			r.Begun = true
			return lockstore.ErrLost
		case !mine || r.Fence != l.Fence || !r.taken(now), m.has("begin: again is lost") && r.Begun:
			return lockstore.ErrLost
		case m.has("begin: does nothing"):
			return nil
		}
		r.Begun = true
		return nil
	}))
}

// Keep implements lockstore.Keeper.
func (m *buggyStore) Keep(ctx context.Context, l lockstore.Lease, data []byte, d time.Duration) error {
	err := m.checked(lockstore.ValidateKeep(l, data, d))
	switch {
	case err == nil:
	case m.has("F48 cooldown of what was never granted") && l.Fence == 0,
		m.has("F48 the size of an answer is not checked") && len(data) > lockstore.MaxAnswer,
		m.has("F48 the time of Keep is not checked") && d > lockstore.MaxKeep:
	default:
		return err
	}
	switch {
	case m.has("cooldown of no time"):
		d = 0
	case m.has("cooldown of half the time"):
		d /= 2
	}
	return m.misread("Keep", l.Key, m.release(ctx, l, d, data))
}

// SettleKept implements lockstore.Settler.
func (m *buggyStore) SettleKept(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	if err := m.checked(lockstore.ValidateSettleKept(key, fence, data, d)); err != nil {
		return err
	}
	return m.settle(ctx, key, fence, true, func(r *row, now time.Time) {
		if m.has("settle: the data is dropped") {
			data = nil
		}
		if m.has("settle: the owner itself has kept it") {
			r.Kept = append(r.Kept, r.Owner)
		}
		r.Ended, r.Data, r.Queue = append(r.Ended, r.Owner), data, nil
		r.Owner, r.Begun, r.Expires = "", false, m.end(now, d)
		r.Freed = r.Expires
	})
}

// SettleFree implements lockstore.Settler.
func (m *buggyStore) SettleFree(ctx context.Context, key string, fence lockstore.Fence) error {
	if err := m.checked(lockstore.ValidateSettleFree(key, fence)); err != nil {
		return err
	}
	return m.settle(ctx, key, fence, false, func(r *row, now time.Time) {
		if !m.has("settle: the owner may come back") {
			r.Ended = append(r.Ended, r.Owner)
		}
		r.Freed = r.Expires
		r.Owner, r.Begun, r.Expires = "", false, 0
	})
}

func (m *buggyStore) settle(ctx context.Context, key string, fence lockstore.Fence, keeps bool, change func(*row, time.Time)) error {
	return m.request(ctx, key, func(r *row, now time.Time) error {
		switch {
		case m.has("settle: a live lease too") && r.Begun,
			m.has("settle: whatever the fence") && r.Begun && !r.taken(now),
			m.has("settle: what has not begun too") && r.Owner != "" && r.Fence == fence && !r.taken(now):
			change(r, now)
		case m.has("settle: again is lost") && r.Owner == "",
			m.has("settle: what is broken is never in doubt") && r.Owner == brokenOwner && !r.taken(now):
			return lockstore.ErrLost
		case r.Owner != "" && r.taken(now):
			return &lockstore.HeldError{Key: key, Holder: lockstore.DecodeHolder(r.Holder), Remaining: r.left(now)}
		case r.Fence != fence || r.Owner != "" && !r.Begun || r.Owner == "" && r.taken(now) != keeps:
			return lockstore.ErrLost
		case r.Owner != "":
			change(r, now)
		}
		return nil
	})
}
