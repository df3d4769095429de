package zkstore

import (
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// copies are the entries of keys that owners of this process were handed. A release has to know who waits, and with a
// copy it need not read that first: a hand-over takes a third less. A copy may be old, like each read that is
// not fresh. A write on top of it then finds another version.
type copies struct {
	mu  sync.Mutex
	all map[string]*entryCopy
}

type entryCopy struct {
	entry casstore.Entry // its Version is "" while there is none
	until time.Time      // without a monotonic reading: timers and that stand still while Lambda freezes the process
	over  chan struct{}
}

// of returns the copy of a key's entry, if there is one.
func (c *copies) of(key string) (casstore.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[key]; one != nil && one.entry.Version != "" && time.Now().Before(one.until) {
		return one.entry, true
	}
	return casstore.Entry{}, false
}

// replace ends the copy of a key's entry. The new one may be nil.
func (c *copies) replace(key string, by *entryCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.all[key]; old != nil {
		close(old.over)
		delete(c.all, key)
	}
	if by != nil {
		if c.all == nil {
			c.all = map[string]*entryCopy{}
		}
		c.all[key] = by
	}
}

// end ends this copy, if another one has not replaced it.
func (c *copies) end(key string, one *entryCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[key] == one {
		delete(c.all, key)
	}
}

func (c *copies) set(one *entryCopy, e casstore.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.entry = e
}

// follow has a copy of a key's entry, and reads the entry again after each change. It closes woken after the first read. It ends
// when this process writes the entry, and after a turn: the reads for the runs that join the queue
// must not cost more than the one that they save.
func (k *kv) follow(conn *zk.Conn, key string, woken chan<- struct{}) {
	one, turn := &entryCopy{over: make(chan struct{}), until: time.Now().Round(0).Add(lockstore.Turn)}, time.After(lockstore.Turn)
	k.copies.replace(key, one)
	defer k.copies.end(key, one)
	for {
		data, stat, changed, err := conn.GetW(k.lock(key))
		if err == nil {
			var e casstore.Entry
			if e, err = decode(data, stat); err == nil {
				k.copies.set(one, e)
			}
		}
		if woken != nil {
			close(woken)
			woken = nil
		}
		if err != nil {
			return // who needs the entry reads it, and gets the error
		}
		select {
		case <-changed:
			k.copies.set(one, casstore.Entry{})
		case <-one.over:
			return
		case <-turn:
			return
		}
	}
}
