// Package redisstore keeps locks on a Redis or Valkey server (5 or later),
// among them ElastiCache and MemoryDB. Scripts decide on the server; a free key
// takes one request to acquire and one to release.
//
// # URL
//
//	rediss://[user[:password]@]host[:port][/database][?cluster=true][&prefix=text]
//
// It is TLS, 1.2 or later, and the certificate is verified. redis is without TLS
// and for a server on this machine: localhost, a loopback address, or
// host.docker.internal, as a container calls it. valkeys and valkey are the same
// as rediss and redis. The port is 6379 if it is left out.
//
//	cluster    true for a server in cluster mode, as ElastiCache Serverless is;
//	           host is then any node or the configuration endpoint, which says
//	           where the others are
//	plaintext  true lets redis and valkey name another machine; who reads along
//	           there learns the password, and can take and end locks
//	prefix     stands before each lock's key on the server, "lambdalock:" if it
//	           is left out; it must be the same for all who share a resource
//
// Another parameter is an error. No error shows user, password or path. For
// Sentinel, for tokens instead of a password, or for settings of your own, make
// the client yourself and use New.
//
// # Permissions
//
// EVALSHA, EVAL, GET, SET, SETRANGE, PEXPIRE and TIME, for keys that begin with
// the prefix; CLUSTER SLOTS in cluster mode; INFO for Check only.
//
// # Clock
//
// The server's clock decides, and only it: what is live, what is expired, and
// the time part of a fence. A function's own clock plays no part in it. When
// the server's clock jumps ahead, leases end early, and only fences keep late
// writes out. When it steps back by more than a second under a live lease,
// others get an error that names the clock and matches lockstore.ErrCorrupt,
// until the holder renews or releases or the clock has caught up.
//
// # Consistency
//
// Replication is asynchronous. A failover can lose a lease that was granted just
// before it, and then two hold the key for a while. A resource that checks the
// fence stays safe if the new primary's clock is behind the old one's by less
// than the time from the last lost grant to the next one, and if the old primary
// serves nobody any more; otherwise the next grant can have the same fence as
// the lost one. The same holds for a restart without an append-only file.
// Several independent servers (Redlock) and WAIT do not change that, and are not
// used.
//
// An eviction policy other than noeviction may remove live locks when memory
// runs out: see Check.
//
// # Outcomes
//
// A reply that is lost leaves the outcome unknown: the same request again tells
// it, or a Release with Fence 0 withdraws it. An error matches
// lockstore.ErrUnavailable only if the request was never written to a
// connection or the server said that it refused it. A server that is out of
// memory grants nothing, but leases can still be renewed and released.
//
// # What is kept
//
// One string for each key that was ever locked, about 150 bytes and the holder,
// until 30 days after its last grant or renewal. It remembers the last fence,
// the last two owners that had the key and ended that themselves (one of them,
// when the last lease expired), and the last withdrawn owner that did not have
// it. A late duplicate of an older acquire takes the key; it runs nothing and
// ends by its own expiry. Fences go up to 2^53 (the year 2255).
package redisstore
