package memstore

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, open, synctest.Test)
}

func open(t *testing.T) storetest.Harness {
	var shift time.Duration
	s := New(func() time.Time { return time.Now().Add(shift) })
	set := func(key string, e entry) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.entries[key] = e
	}
	get := func(key string) entry {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.entries[key]
	}
	return storetest.Harness{
		Store:  s,
		Delete: func(_ *testing.T, key string) { set(key, entry{}) },
		Snapshot: func(_ *testing.T, key string) func() {
			e := get(key)
			return func() { set(key, e) }
		},
		Dump:       func(_ *testing.T, key string) string { return fmt.Sprintf("%#v", get(key)) },
		ShiftClock: func(_ *testing.T, d time.Duration) { shift += d },
	}
}
