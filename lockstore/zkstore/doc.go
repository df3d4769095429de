// Package zkstore keeps locks in a ZooKeeper ensemble, or on a single ZooKeeper server
// (3.5 or later).
//
// # URL
//
//	zookeeper://host1:2181,host2:2181,host3:2181/prefix?tls=true&skew=500ms
//
//	hosts   the servers of the ensemble; without ports the port is 2181. Give each of them a port, or
//	        none. No URL has several IPv6 addresses: give the servers names, or call [New]
//	prefix  the node below which the store keeps its nodes, /lambdalock by default; all
//	        users of a resource need the same prefix, see Options
//	tls     true or false: TLS 1.2 or later, and the servers' certificates are verified; by
//	        default true, unless every host is this machine (localhost, a loopback address,
//	        or host.docker.internal for a container). With tls=false anyone on the network
//	        path can read the password, and can take and release locks
//	skew    how far the clocks of the servers may disagree, 500ms by default
//
// A URL with a user or a password is an error. The credentials are in the environment:
//
//	ZOOKEEPER_AUTH  user:password, for ZooKeeper's scheme digest
//
// With credentials the store makes its nodes for this user alone. Without credentials
// everybody who reaches the servers can take and release locks. No error shows the
// credentials or the prefix. For certificates of your own call [New].
//
// # Nodes and permissions
//
//	/lambdalock                      made by the first use of the store
//	/lambdalock/locks/KEY            a lock; KEY is the key, percent-encoded
//	/lambdalock/locks/KEY/BIRTH      a child that is made with the lock's node
//	/lambdalock/clock                is written to read the servers' time
//	/lambdalock/waiters/HASH         ephemeral, for each owner that waits for its turn
//
// The user needs create, read, write and delete on these nodes, also for Revoke. List needs less,
// if the nodes exist: read on /lambdalock/locks and the nodes of the keys, and write on
// /lambdalock/clock. A node of a key that the user may not read ends the listing with an error.
//
// If nodes above the prefix do not exist, the store makes them too, with credentials for its user
// alone: another user cannot make a prefix below them. So an administrator makes a node that
// prefixes of several users share, with the right to create for each.
//
// The store never deletes the node of a lock, and each server keeps all nodes in memory:
// about a kilobyte for each key that was ever used. (Measured with 16,000 keys of 15
// bytes: 1,040 bytes each.) So ZooKeeper is for resources that are used again and again,
// and not for a new key with each order. To delete the node of a key that nobody holds or
// waits for, delete its child and the node: Inspect says free.
//
// # Cost
//
// A request here is a request to ZooKeeper. A write goes to most servers of the
// ensemble, and a read to one.
//
//	Acquire of a free key       1 read, 1 write; 1 write after a release by this process
//	Acquire that is refused     1 read; with a place in the queue also 1 write
//	Renew, Release              1 write; 1 read more if another process has acquired it, or somebody waits
//	a wait for a turn           1 write (of the owner's node), 3 reads; the wake-up is part of the release
//	List                        1 read of all names, 1 read for each key with the prefix, and
//	                            1 write for the names and for each 100 keys
//	Extent                      1 read
//
// Package casstore has the others. A fresh read is a write of the clock, and a read.
//
// The names of all nodes come in one answer, because ZooKeeper has no other way to list them.
// It may have 64 MB, which is about 600,000 keys of 100 bytes. Above that List fails, and its
// connection ends. The servers' setting jute.maxbuffer does not bound the answer.
//
// The first call of a process makes a session (a write) and may read the clock (a write).
//
// # Clock
//
// Only the clock of the server that leads the ensemble decides: the time at which it
// wrote the node.
//
//	another owner may be granted the key   begin + TTL + 1 ms + skew
//	the holder trusts its lease until      the time before its request + TTL
//
// begin is the time of the write that granted or renewed the lease. After a change of
// the leader the clock is another server's. If the servers' clocks differ by more than
// skew, a lease may end early or late. Then only fences protect the resource from late
// writes.
//
// # Consistency
//
// ZooKeeper applies writes in one order, and only with a majority of the servers. A read
// may be old. What the store answers rests on a write of its own, or on a read that
// follows a write of the clock node in the same session. Only a refusal, and that an
// acquisition has ended, may rest on an older read.
//
// Leases do not depend on sessions. A session ends with its connection, for example while Lambda
// has frozen the process. That costs a new one and nothing else.
//
// # Connections
//
// Each process has a connection. A server takes 60 of one address (maxClientCnxns), and closes more at once. Functions in a
// VPC share the addresses of its network interfaces: set it above the concurrency of all your functions.
//
// # Outcomes
//
//   - Each call returns when its context ends. The request may still be sent and applied
//     after that. A later write of the same key makes it fail.
//   - A call that finds no session waits for 1.5 s at most. Then its error matches
//     lockstore.ErrUnavailable. So does the error of a call without permission.
//   - An ensemble without a majority closes its connections: that is a call without a
//     session. If the connection ends after a call has sent a write of a lock,
//     the outcome of this call is unknown.
//   - When the leader dies, calls fail until the others have elected a leader. With the
//     usual settings of ZooKeeper that takes a few seconds.
//   - When a server does not answer, the client leaves it after two thirds of the session's
//     timeout: after 2.7 s, or later if the servers' minSessionTimeout is more than 4 s.
//
// # Waiting
//
// An owner that waits for its turn has an ephemeral node. The write of a release also deletes the node of the owner that it hands the key
// over to, in one transaction. Only this owner wakes up. The queue itself is in the lock's node. A waiter also
// reads the lock's node every 0.75 s, so a wake-up that gets lost costs less than a second.
//
// # What was tried
//
// The tests run on ZooKeeper 3.8.0: one server, and an ensemble of three on one machine
// whose leader is killed and paused, and one server with TLS. Never tried: ZooKeeper's
// schemes sasl and x509, observers, a change of the
// ensemble's servers, other versions, servers on several machines.
package zkstore
