package memstore

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

// broken is the owner of a lease that was broken. No request has this owner, because it
// has spaces.
const broken lockstore.Owner = "broken by an operator"

// Break implements lockstore.Breaker.
func (s *Store) Break(ctx context.Context, req lockstore.BreakRequest) (lockstore.Status, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Status{}, err
	}
	if err := done(ctx); err != nil {
		return lockstore.Status{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(req.Key)

	if e.owner == "" || e.fence != req.Fence || !e.taken(now) {
		return lockstore.Status{}, lost(req.Key, "no lease with this fence holds it")
	}
	if req.Now && e.begun {
		return lockstore.Status{}, &lockstore.BegunError{HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(e.holder), Remaining: e.expires.Sub(now)}}
	}
	if e.owner != broken {
		e.end(e.owner, released)
		e.owner, e.holder = broken, req.By.Encode()
	}
	status := e.status(req.Key, now)
	if req.Now {
		e.owner, e.expires, e.freed = "", now, now
		status.Held, status.Broken = false, false
	}
	s.write(req.Key, e)
	return status, nil
}

// List implements lockstore.Lister: one page, in the order of the keys.
func (s *Store) List(ctx context.Context, prefix string, page func(lockstore.Page) error) error {
	if err := done(ctx); err != nil {
		return err
	}
	return page(s.list(prefix))
}

func (s *Store) list(prefix string) lockstore.Page {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := lockstore.Page{Read: len(s.entries), Requests: 1}
	for _, key := range slices.Sorted(maps.Keys(s.entries)) {
		if strings.HasPrefix(key, prefix) {
			now, e := s.read(key)
			p.Keys = append(p.Keys, e.status(key, now))
		}
	}
	return p
}

// Extent implements lockstore.Lister.
func (s *Store) Extent(ctx context.Context) (lockstore.Extent, error) {
	if err := done(ctx); err != nil {
		return lockstore.Extent{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return lockstore.Extent{Entries: int64(len(s.entries))}, nil
}
