package faults

import (
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// PostgresPair is a PostgreSQL with a replica that has each commit before it is answered.
type PostgresPair struct {
	t testing.TB

	mu               sync.Mutex
	primary, replica *testservers.Server
}

// StartPostgresPair starts both.
func StartPostgresPair(t testing.TB) *PostgresPair {
	t.Helper()
	p := &PostgresPair{t: t, primary: testservers.StartPostgreSQL(t)}
	p.replica = testservers.PostgreSQLReplica(t, p.primary)
	return p
}

// Primary is the address of the present primary.
func (p *PostgresPair) Primary() string { return p.Servers()[0].Addr }

// Servers are the present primary and its replica.
func (p *PostgresPair) Servers() []*testservers.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []*testservers.Server{p.primary, p.replica}
}

// FailOver kills the primary, makes the replica the primary, and starts a new replica of it. Nothing that was
// acknowledged is lost.
func (p *PostgresPair) FailOver() {
	p.t.Helper()
	servers := p.Servers()
	servers[0].Pause() // a request that was sent just now gets no answer
	<-time.After(60 * time.Millisecond)
	servers[0].Kill()
	testservers.PromotePostgreSQL(p.t, servers[1])
	p.mu.Lock()
	p.primary = servers[1]
	p.mu.Unlock()
	replica := testservers.PostgreSQLReplica(p.t, servers[1])
	p.mu.Lock()
	p.replica = replica
	p.mu.Unlock()
}
