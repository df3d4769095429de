package storetest

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Harness is a store under test, with hooks to its clock, its client and its server. Only
// Store is required. A case that needs a nil field is skipped and names the field. Every
// key of the suite is new, so harnesses may share a server.
//
// When a hook has changed the key's entry, the store's next read has to see the change, also
// if the store's reads may be old otherwise.
type Harness struct {
	// Store is the store under test.
	Store *lockstore.Store

	// Other returns the same locks as another process has them: a second client of the same
	// server. If its clock can be set, it is an hour ahead. The suite then sends the requests of every other
	// owner through it, so it finds a lock of one process only, and times that a client writes. Nil
	// is a store of one process.
	Other func(t *testing.T) *lockstore.Store

	// Sleep lets d pass, in a bubble, for the clock that decides about expiry, too; nil means time.Sleep.
	// Several goroutines may call it at the same time.
	Sleep func(d time.Duration)

	// TakeoverDelay is how long another owner may have to wait after a lease's TTL: for
	// clock tolerance, or for a clock with whole seconds.
	TakeoverDelay time.Duration

	// Margin is what the store subtracts from the time of trust.
	Margin time.Duration

	// Sequences is how many random sequences of requests are compared with the rule book: 0 is
	// 300, 30 under the race detector, and 16 at once on the wall clock.
	Sequences int

	// Marks is how many owners that have ended the store remembers for each key, if it
	// remembers each of them. 0 is a store that promises only what package lockstore does.
	Marks int

	// Yields is for a store that refuses a request for a place, and gives none, while others write the
	// entry that the holder has to renew soon. It is allowed on the wall clock only.
	Yields bool

	// Places is how many places a queue has. 0 is more than a random sequence of requests can fill.
	Places int

	// Parks is for a store whose queue has parked places. If its driver is a driver.Parker, it keeps addresses, too.
	Parks bool

	// TurnDelay is by how much a turn of the queue may differ from lockstore.TurnTime, for
	// clocks with whole seconds.
	TurnDelay time.Duration

	// DamageQueue are ways to damage the queue in the key's entry and nothing else of
	// the entry. The key may be free, closed or in doubt. A way that needs a queue changes nothing if there is none.
	DamageQueue map[string]func(t *testing.T, key string)

	// Requests returns how many requests the store has sent.
	Requests func() int

	// RequestsPerCall is how many requests a call may take at most, for a store that reads
	// before it writes. The default is 2 for driver.Abandon and 1 for all other calls. driver.Acquire
	// is for a free key and for a refusal; a takeover and a repeat may take one more.
	RequestsPerCall map[driver.Kind]int

	// Delete removes the key's entry, as an operator or an eviction would.
	Delete func(t *testing.T, key string)

	// Snapshot saves the key's entry. restore puts the saved entry back.
	Snapshot func(t *testing.T, key string) (restore func())

	// Dump returns the key's entry as a text: the same text for the same entry. There may be
	// no entry.
	Dump func(t *testing.T, key string) string

	// Foreign are ways to store a value of another program at the key.
	Foreign map[string]func(t *testing.T, key string)

	// Corrupt are ways to damage the key's entry. If a name has "says: ", the errors have what follows it.
	Corrupt map[string]func(t *testing.T, key string)

	// ShiftClock sets the clock that writes fences and ends of leases, in the process or on
	// the server, to the right time + d. A second call replaces d. The suite does not set
	// the clock back at the end.
	ShiftClock func(t *testing.T, d time.Duration)

	// Unreachable returns a store like Store whose server refuses connections.
	Unreachable func(t *testing.T) *lockstore.Store

	// LoseReplies makes the server apply requests and lose the replies, until restore. For a
	// store that reads before it writes, lose only the reply to the request that changes
	// the entry: after a lost read it is certain that nothing was applied.
	LoseReplies func(t *testing.T) (restore func())

	// Hang makes the server send no reply and keep the connections open, until restore.
	// After that it answers new requests. It may apply the requests without a reply.
	Hang func(t *testing.T) (restore func())

	// Delay makes the network keep the next request that changes an entry, and lets all others pass. deliver lets it arrive, also
	// if its client has given up. See Delayer and Send.
	Delay func(t *testing.T) (deliver func())

	// Inside makes the server call do just before the n-th request from now on arrives, once. do sends requests of its
	// own. If lost is true, the reply to the request before that is lost. It is for a store whose calls are several
	// requests, in virtual time: others may come between these. The store sends a request again without a pause.
	Inside func(n int, lost bool, do func())
}

// Delayer is for Harness.Delay. The zero Delayer delays nothing.
type Delayer struct{ next atomic.Pointer[delayed] }

type delayed struct{ delivered, arrived chan struct{} }

// Delay is a Harness.Delay.
func (d *Delayer) Delay(t *testing.T) (deliver func()) {
	k := &delayed{make(chan struct{}), make(chan struct{})}
	d.next.Store(k)
	return func() {
		if d.next.Load() == k {
			t.Fatal("storetest: no request was sent that Delayer.Delay delays")
		}
		close(k.delivered)
		<-k.arrived
	}
}

// Send sends a request that may change an entry. If d delays it, it arrives when it is delivered, also after the end of ctx; send is then called
// on another goroutine, with a context that does not end.
func Send[T any](ctx context.Context, d *Delayer, send func(context.Context) (T, error)) (T, error) {
	type reply struct {
		value T
		err   error
	}
	late := make(chan reply, 1)
	if !d.keeps(func() {
		value, err := send(context.WithoutCancel(ctx))
		late <- reply{value, err}
	}) {
		return send(ctx)
	}
	select {
	case r := <-late:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// keeps says whether the request is delayed. If it is, send is called when it is delivered, and returns when the server has applied it.
func (d *Delayer) keeps(send func()) bool {
	k := d.next.Swap(nil)
	if k == nil {
		return false
	}
	go func() {
		<-k.delivered
		send()
		close(k.arrived)
	}()
	return true
}

// Conn delays requests of a client that sends each of them by one Write. changes says whether one may change an entry.
func (d *Delayer) Conn(conn net.Conn, changes func(request []byte) bool) net.Conn {
	return &delayedConn{Conn: conn, delayer: d, changes: changes}
}

type delayedConn struct {
	net.Conn
	delayer *Delayer
	changes func([]byte) bool

	mu      sync.Mutex
	kept    bool          // a request is
	closed  bool          // by the client
	replied chan struct{} // after a request was kept: closed by the reply
}

func (c *delayedConn) Write(b []byte) (int, error) {
	request := slices.Clone(b)
	c.mu.Lock()
	if c.changes(b) && c.delayer.keeps(func() { c.arrive(request) }) {
		c.kept, c.replied = true, make(chan struct{})
		c.mu.Unlock()
		return len(b), nil
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// arrive sends the request, and waits until somebody has the reply.
func (c *delayedConn) arrive(request []byte) {
	c.mu.Lock()
	c.kept = false
	closed, replied := c.closed, c.replied
	c.mu.Unlock()
	if closed {
		_ = c.Conn.SetDeadline(time.Time{})
	}
	_, err := c.Conn.Write(request)
	switch {
	case !closed && err == nil:
		<-replied
	case closed:
		_, _ = c.Conn.Read(make([]byte, 1))
		_ = c.Conn.Close()
	}
}

func (c *delayedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered()
	return n, err
}

func (c *delayedConn) answered() {
	if c.replied != nil && !c.kept {
		close(c.replied)
		c.replied = nil
	}
}

// Close lets a request that is under way arrive.
func (c *delayedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.answered()
	if c.kept {
		return nil
	}
	return c.Conn.Close()
}
