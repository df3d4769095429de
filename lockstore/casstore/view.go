package casstore

import (
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/internal/entry"
)

// view is an entry as it was read or written.
type view struct {
	rules.State
	entry   entry.Entry
	version string
	written time.Time
	fresh   bool // it was read fresh, or the call has written it
	own     bool // the call has written it: its stamp is the time
}

// begins is the latest time at which something in it begins.
func (v view) begins() time.Time {
	latest := v.Closed.Since
	for _, h := range v.Holders {
		latest = later(latest, h.Since)
	}
	return latest
}

// view decodes an entry. Its error matches lockstore.ErrCorrupt.
func (s *store) view(key string, e Entry) (view, error) {
	if e.Version == "" {
		return view{written: e.WrittenAt}, nil
	}
	decoded, err := entry.Decode(e.Value)
	v := s.viewOf(decoded, e)
	if err == nil {
		err = v.Corrupt()
	}
	if err != nil {
		return view{}, fmt.Errorf("%s: key %q: %w: %w", s.opt.Name, key, err, lockstore.ErrCorrupt)
	}
	return v, nil
}

// viewOf is the view of an entry whose value is decoded.
func (s *store) viewOf(decoded entry.Entry, e Entry) view {
	return view{State: s.codec.State(decoded, e.WrittenAt), entry: decoded, version: e.Version, written: e.WrittenAt}
}

// OwnerOf is the owner of the lease with this fence in a value that a KV has read, "" for none. It is for a KV that completes a lease in a
// transaction of a program that knows the fence and not the owner. An owner is a secret.
func OwnerOf(value []byte, fence lockstore.Fence) (owner lockstore.Owner) {
	decoded, err := entry.Decode(value)
	if err != nil {
		return ""
	}
	for _, h := range (entry.Codec{}).State(decoded, time.Time{}).Holders {
		if h.Fence == fence {
			owner = h.Owner
		}
	}
	return owner
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
