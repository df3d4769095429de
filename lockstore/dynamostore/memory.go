package dynamostore

import (
	"sync"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// maxRemembered bounds the memory of rows. For a key that is not remembered readAndChange reads first.
const maxRemembered = 1024

// memory has the row of each key of which an owner of this process has a lease: as this process wrote it last, or
// read it when the owner was handed the key, or asked again. Only what is written may rest on it, because the write is refused if the lease has
// changed since. None of these rows has a result.
type memory struct {
	mu   sync.Mutex
	rows map[string]row
}

// remember keeps a row in which the owner has a lease; one that is damaged it drops. Without a lease in it, it forgets the key if this owner had it alone,
// and changes nothing for a shared key. For a new key it drops any other one if there are too many. answerWrite calls it after a write that does not close
// the key, answerUnchanged and Await only for a lease that is granted.
func (m *memory) remember(key string, r row, owner driver.Owner) {
	if r.holder(owner) < 0 {
		m.forget(key, owner)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rows, key)
	if r.damaged {
		return
	}
	for old := range m.rows {
		if len(m.rows) < maxRemembered {
			break
		}
		delete(m.rows, old) // any of them
	}
	if m.rows == nil {
		m.rows = map[string]row{}
	}
	m.rows[key] = r
}

// forget forgets the row of a key if the owner has the key alone. release and answerWrite call it after a write that has ended the lease, and
// remember for a row without a lease of this owner.
func (m *memory) forget(key string, owner driver.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.rows[key].alone(); h != nil && h.Owner == owner {
		delete(m.rows, key)
	}
}

// of is the row that is remembered for a key, if there is one. remembered and release call it.
func (m *memory) of(key string) (row, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.rows[key]
	return r, ok
}

// remembered is the row of a key from memory, in place of a read, and the time in place of a reply; only readAndChange calls it. It sends and changes
// nothing. It counts if the owner has the key alone, if the rules would write and do what is asked for, and if the time is known; by that time the lease must
// last. Others change the row of a key that they share.
func (t *table) remembered(key string, q driver.Request) (row, reply, bool) {
	seen, ok := t.memory.of(key)
	if h := seen.alone(); q.Fence == 0 || !ok || h == nil || h.Owner != q.Owner || !t.clock.right() {
		return row{}, reply{}, false
	}
	r := reply{sent: t.clock.local(), date: t.clock.read().Add(dateStep)} // so it is now at the earliest, see clockOf
	_, changed, a := t.decide(seen, r, q)
	return seen, r, changed && (a.Outcome == driver.Granted || a.Outcome == driver.Done)
}
