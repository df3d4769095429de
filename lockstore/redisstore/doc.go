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
//	plaintext  true lets redis and valkey name another machine. Anyone on the
//	           network path learns the password, and can take and release locks
//	prefix     stands before each lock's key on the server, "lambdalock:" if it
//	           is left out; it must be the same for all who share a resource, see
//	           Options
//
// Another parameter is an error. No error shows user, password or path. For
// Sentinel, for tokens instead of a password, or for settings of your own, make
// the client yourself and use New.
//
// # Permissions
//
// EVALSHA, EVAL, GET, SET, SETRANGE, PEXPIRE and TIME, for keys that begin with
// the prefix; CLUSTER SLOTS and ASKING in cluster mode; INFO for Check only.
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
// Every call ends when its context ends, by cancellation or at its deadline,
// whatever client it goes through.
//
// A lost reply leaves the outcome unknown. The same request again tells it, or a
// Release with Fence 0 abandons it. An error matches lockstore.ErrUnavailable only
// if the request was not written to a connection and never will be, or if the
// server said that it refused it. A server that is out of memory grants nothing,
// but leases can still be renewed and released.
//
// # What is kept
//
// The server keeps one string for each key, and drops it by itself. It is kept for
// its TTL and an hour after each grant and each renewal, for the cooldown and an
// hour after ReleaseAfter, and for an hour at least after an abandoned acquire. A
// release changes nothing in that. So a million keys that are used once a day with
// a TTL of a minute are 42,000 entries at a time. An entry takes about 300 bytes of
// the server's memory, so that is 13 MB (measured with 100,000 keys of 14 bytes and
// holders of 59: 293 bytes each on Redis 7.0, 277 on Valkey 8.0).
//
// The entry remembers the last fence, the last owner that released its lease, the
// one that released before it as long as nobody has taken the key since, and the
// last owner that was abandoned without a lease. An acquire of such an owner gets
// lockstore.ErrLost. A late duplicate of an older acquire takes the key, and so does
// any that arrives when the entry is gone. It runs nothing, and its lease ends by
// its TTL.
//
// Fences are the server's time in microseconds, or one more than the last fence if
// that is higher, up to 2^53 (the year 2255). While the entry is there, a clock that
// steps back cannot make a fence fall. When it is gone, the next fence is higher
// too, unless the clock has stepped back by more than the TTL and an hour in all.
package redisstore
