package storetest

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

const brokenOwner fullOwner = "broken by an operator"

func (m *buggyStore) Break(ctx context.Context, req lockstore.BreakRequest) (lockstore.Status, error) {
	if err := req.Validate(); err != nil && !m.has("break: fence 0 is every lease") {
		return lockstore.Status{}, err
	}
	var st lockstore.Status
	err := m.request(ctx, req.Key, func(r *row, now time.Time) error {
		anyFence := m.has("break: fence not compared") || m.has("break: fence 0 is every lease") && req.Fence == 0
		switch {
		case r.Owner == "" && !m.has("break: ends a cooldown") && !(m.has("break: ends what is kept") && len(r.Data) > 0),
			r.Fence != req.Fence && !anyFence,
			!r.taken(now) && !m.has("break: of an expired lease"):
			return lockstore.ErrLost
		case req.Now && r.Begun && !m.has("break: now frees a begun key"):
			return &lockstore.BegunError{HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(r.Holder), Remaining: r.left(now)}}
		}
		if m.has("break: begun is dropped") {
			r.Begun = false
		}
		if r.Owner != brokenOwner || m.has("break: the second one takes over") {
			if r.Owner != brokenOwner && !m.has("break: released not set") {
				r.Ended = append(r.Ended, r.Owner)
			}
			if !m.has("break: the owner stays") {
				r.Owner = brokenOwner
			}
			if !m.has("break: the holder stays") {
				r.Holder = req.By.Encode()
			}
			switch {
			case m.has("break: end shortened"):
				r.Expires -= int64(time.Second)
			case m.has("break: the end as at the grant"):
				r.Expires = min(r.Expires, now.Add(short).UnixNano())
			case m.has("break: ends the queue"):
				r.Queue = nil
			}
		} else if m.has("break: again is lost") {
			return lockstore.ErrLost
		}
		st = lockstore.Status{Key: req.Key, Held: true, Broken: true, Holder: lockstore.DecodeHolder(r.Holder), Fence: r.Fence, Remaining: r.left(now)}
		if m.has("break: frees a begun key at once") && r.Begun {
			r.Owner, r.Begun, r.Expires, r.Freed = "", false, 0, now.UnixNano()
		}
		if req.Now && !m.has("break: now waits") {
			st.Held, st.Broken = false, false
			r.Owner, r.Begun, r.Expires, r.Freed = "", false, 0, now.UnixNano()
		}
		return nil
	})
	return st, err
}

func (m *buggyStore) List(_ context.Context, prefix string, page func(lockstore.Page) error) error {
	var p lockstore.Page
	var err error
	m.locked(func() {
		now := m.now()
		for key, text := range m.rows {
			r, damaged := m.decode(text)
			if damaged != nil {
				if m.has("list: ends at a foreign entry") {
					err = lockstore.ErrCorrupt
				}
				p.Damaged++
				continue
			}
			listed := strings.HasPrefix(key, prefix)
			switch {
			case m.has("list: the prefix is a pattern"):
				listed, _ = path.Match(prefix+"*", key)
			case m.has("list: everything"):
				listed = true
			case m.has("list: not what is waited for"):
				listed = listed && len(r.Queue) == 0
			}
			if !listed || text == "" {
				continue
			}
			st := lockstore.Status{Key: key, Fence: r.Fence, Waiting: len(r.Queue)}
			st.Kept = r.taken(now) && r.Owner == "" && !m.has("list: kept is only held")
			st.InDoubt = !r.taken(now) && r.Begun && !m.has("list: in doubt is free")
			if r.taken(now) || st.InDoubt || m.has("list: the dead are held") && r.Owner != "" {
				st.Held, st.Remaining = true, max(0, r.left(now))
				st.Broken = r.taken(now) && r.Owner == brokenOwner && !m.has("list: broken is only held")
				st.Holder = lockstore.DecodeHolder(r.Holder)
			}
			if m.has("list: everything is free") {
				st.Held = false
			}
			p.Keys = append(p.Keys, st)
			if m.has("list: twice") {
				p.Keys = append(p.Keys, st)
			}
		}
	})
	slices.SortFunc(p.Keys, func(a, b lockstore.Status) int { return strings.Compare(a.Key, b.Key) })
	if err != nil {
		return err
	}
	return page(p)
}

func (m *buggyStore) Extent(context.Context) (lockstore.Extent, error) {
	return lockstore.Extent{}, nil
}
