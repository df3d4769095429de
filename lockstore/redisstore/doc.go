// Package redisstore keeps locks on a Redis or Valkey server (Redis 7 or later), also on
// ElastiCache and MemoryDB. A Lua script on the server makes all decisions. A free key takes
// one request to acquire and one to release.
//
// # URL
//
//	rediss://[user[:password]@]host[:port][/database][?cluster=true][&prefix=text][&connections=n]
//
//	rediss, valkeys  with TLS, 1.2 or later; the certificate is verified
//	redis, valkey    without TLS, only for this machine: localhost, a loopback address,
//	                 or host.docker.internal for a container
//	port             6379 by default
//	cluster          true for a server in cluster mode, such as ElastiCache Serverless;
//	                 host is any node or the configuration endpoint, and the client asks
//	                 it for the other nodes
//	plaintext        true allows redis and valkey for other machines; then anyone on the
//	                 network path can read the password, and can take and release locks
//	prefix           the beginning of each lock's key on the server, "lambdalock:" by
//	                 default; all users of a resource need the same prefix, see Options
//	connections      how many the client has at most, 10 by default, for each node of a cluster. A
//	                 process with hundreds of runs at once may want more. Renewals and releases
//	                 go before requests of runs that ask or wait, but not in a cluster
//
// Every other parameter is an error.
// For Sentinel, for tokens instead of a password, or for settings of your own, make a
// client and call [New].
//
// # Permissions
//
//	EVALSHA, EVAL, GET, SET, SETRANGE, PEXPIRE, TIME  for keys that begin with the prefix
//	RPUSH, BLPOP                                      the same; they tell runs that wait
//	SELECT                                            for a URL with a database other than 0
//	CLUSTER SLOTS, ASKING                             in cluster mode
//	INFO                                              for Check
//	INFO, SCAN, DBSIZE                                for List
//
// # Clock
//
// Only the server's clock decides which lease is live, which lease has expired, and what
// the next fence is. The function's own clock has no effect.
//
//   - If the server's clock jumps ahead, leases end early. Then only fences protect the
//     resource from late writes.
//   - If the server's clock steps back, a lease that began in the future begins now: the next request
//     of anybody writes that. So a dead holder blocks others for its whole TTL again, and no longer.
//
// # Consistency
//
// Replication is asynchronous. A failover can lose a lease that was granted just before.
// Then two owners hold the key for a while. A resource that checks fences is safe if both
// of these are true:
//
//   - The old primary serves no client any more.
//   - The new primary's clock is behind the old primary's clock by less than the time
//     from the lost grant to the next grant.
//
// Otherwise the fence of the next grant can be equal to that of the lost grant, or smaller. A
// restart of a server without an append-only file has the same effect. Several independent
// servers (Redlock) and WAIT would not change this, and the store does not use them.
//
// A server that knows that it is a replica refuses every request, because it may lag. So a planned failover, which
// waits until the replica has everything, loses no lease. An old primary that
// the others have cut off goes on answering; min-replicas-to-write
// limits for how long. Check finds a replica with replica-read-only set to no, and an eviction policy that may delete live locks.
//
// # Outcomes
//
// Every call returns when its context ends, also with a client of your own.
//
//   - After a lost reply the outcome is unknown. Repeat the same call to learn the outcome,
//     or abandon an acquire.
//   - An error matches lockstore.ErrUnavailable only in two cases: the request was not and
//     will not be sent, or the server's answer refuses it.
//   - A server that is out of memory grants nothing new. Who holds a key, or was handed it, can renew, complete and
//     release it.
//
// # Entries
//
// The server has one string for each key, and deletes the string by itself:
//
//	after a grant or a renewal  TTL + 1 h later
//	after Complete for d        d + 1 h later; the result is in the string
//	after MarkStarted           30 days + 1 h later; a release or a Complete makes it sooner
//	after an abandoned acquire  1 h later or more
//	after a hand-over           Turn + 1 h later
//	after a release             when it would have been without the release, or 1 h later
//
// An owner that waits has a list, for at most 5 s. Whoever hands the key over puts an element there, with the
// fence and the time of the lease: in the same request if it knows the owner from the note of its own lease, and by
// a second one otherwise. The list's name is the prefix, the entry's name in braces, a newline and a hash of the entry's name and the
// owner, so in a cluster it is on the node of its key. If the entry's name has a brace, the list begins with
// it, without new braces. An element that gets lost costs its owner the rest of one wait, less than a second.
//
// The address of a parked owner is a string, named as the list, a newline and "address". It stays until it is taken, or for
// the time that the request says. If a reply is lost, a wake-up may be lost with it: the parked owner then asks after a time of its own.
//
// An entry takes about 300 bytes of the server's memory: a million keys that are each used once a day, with a TTL of one minute,
// are 42,000 entries at a time, and 13 MB. A failover, a flush and an eviction can lose results and the marks that work has started. So
// work with an effect that must not happen twice needs another store, or a check of its own.
//
// An entry has the last fence, who holds the key, the queue of 128 places, and the last 8 owners that have
// ended, each with its fence and how it ended. An acquire by such an owner gets lockstore.ErrLost. A late
// duplicate of an acquire by any other owner takes the key. So does every late duplicate after the
// entry is deleted. No work runs under such a lease, and it ends by its TTL.
//
//	fence = max(last fence + 1, server's time in microseconds), below 2^53 (the year 2255)
//
// While the entry exists, fences grow even if the clock steps back. After that the next
// fence is larger too, unless the clock has stepped back by more than 1 h in all.
package redisstore
