// Package dynamostore keeps locks in an Amazon DynamoDB table.
//
// # URL
//
//	dynamodb://TABLE?region=eu-west-1&endpoint=http://127.0.0.1:8000&skew=1s
//	dynamodb://TABLE?key=PK&sort=SK&prefix=LOCK%23&ttl=expires_at
//
//	region    the table's region; without it AWS_REGION, then AWS_DEFAULT_REGION
//	endpoint  the address of an emulator
//	skew      how far the local clock may be behind DynamoDB's; 1s by default
//	key       the table's partition key, of type S; "key" by default
//	sort      its sort key, of type S; without it the table has none
//	prefix    is written before each key
//	ttl       the attribute of its time to live; "ttl" by default
//
// The credentials come from Lambda's environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN, or the endpoint in AWS_CONTAINER_CREDENTIALS_FULL_URI. An endpoint on this machine needs none. If
// you have a client of your own, call [New].
//
// # Table and rights
//
// The table has the partition key "key" of type S and no sort key. Its time to live is on the attribute "ttl".
// The store never creates it. A table that has other items can hold locks, too, see [Options]: a row of
// a lock has the partition key prefix + key and the sort key "lambdalock". The store touches no other item.
//
//	Acquire, Renew, Release, MarkStarted, Complete,
//	Leave, ResolveEffect, ResolveNoEffect, Revoke   dynamodb:UpdateItem, dynamodb:GetItem
//	TakeAddress, CompleteItem                       dynamodb:UpdateItem
//	Inspect, AwaitTurn                              dynamodb:GetItem
//	StillHeld                                       dynamodb:ConditionCheckItem
//	Check                                           dynamodb:DescribeTable, dynamodb:DescribeTimeToLive
//	List, Extent                                    dynamodb:Scan, dynamodb:DescribeTable
//
// To allow a function the locks and not the other items, the policy compares the partition key. A scan has none, so
// do not allow dynamodb:Scan there.
//
//	"Condition": {
//	  "ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["LOCK#*"]},
//	  "Null": {"dynamodb:LeadingKeys": "false"}
//	}
//
// All programs that use one resource need the same region, endpoint, table, key, sort, prefix and ttl. With another
// ttl DynamoDB would delete a row by an attribute that not everybody moves. So the store refuses such a row with
// lockstore.ErrCorrupt.
//
// A global table with eventual consistency is not safe: two Regions can hold the same lock. One with strong
// consistency is safe, but has no time to live and no transactions: rows stay for ever, and StillHeld and CompleteItem do not
// work. What reads the whole table, such as a stream, sees the results.
//
// # Cost
//
//	1 write          Acquire of a free key, or one that takes a place in the queue; Renew, Release, MarkStarted,
//	                 Complete and the extension of a hand-over, by the process that knows the lease
//	1 read, 1 write  the same by another process, and each first request of a process, or of one whose local clock was set;
//	                 Leave, an abandon, Resolve, Revoke; each request for a key that several may hold
//	2 writes         Acquire of a key whose lease or result is over, or was abandoned a moment ago, or of a place behind work
//	                 that has started; a Release, if this process does not know that somebody waits; any of these after a lost reply
//	1 read           Acquire of an owner that found the queue full
//
// If others change the row meanwhile, a request writes up to 16 times more.
//
// A run in the queue reads at least once a second.
//
// Each write costs a unit for each KB of the row, each read one for each 4 KB. A row has at most 1 KB if its key has at
// most 512 bytes, its owners are those of lockstore.NewOwner and nobody waits. With a short key about 15 owners can wait before the row is larger. Each of
// several holders adds about 150 bytes and its holder's text; a key for 5 takes 2.5 to 4.5 writes a run. A result is
// in the row from Complete until the next grant. The address of a parked owner has a row of its own.
//
// # Limits
//
// A queue has 64 places, of which 32 may be parked. One partition has 1,000 write units a second: that is enough for
// 1,000 runs that come together for one key.
//
// Never delete a lock row by hand: a request on its way could make it again, with a smaller fence. Time
// to live deletes a row at least a day after its last use, and a completed one two days after the key opens, so it
// never frees a lock. Until somebody says how started work has ended, the row stays for
// lockstore.StartMarkTime (30 days). The next fence after a deleted row is larger unless the local clock is wrong by more than a day.
//
// # Clocks
//
// DynamoDB has no clock that a condition could use. So the process that acquires or renews a lease writes its end by
// its local clock. But only the Date header of DynamoDB's replies decides whether it is over:
//
//	expires = local time before the request + TTL + skew
//	an acquire may take the key over if  Date >= expires + 1 s
//	a lease may be trusted for           min(TTL, expires - Date) - 250 ms
//
//	request      request + TTL - 250 ms    expires    expires + 1 s
//	|                       |                 |             |
//	+=== trusted ===========+- 250 ms + skew -+---- 1 s ----+== others may take over ==>
//
// The trust counts from before the request, and Date is of its reply. So it ends before a takeover can begin, whatever the
// local clock says. Each reply corrects the local time. The first request of a process, or the first one after its clock was
// set, reads, so that no wrong end is written. If a clock is set between the reading and the write, others wait longer if it was ahead,
// and the owner trusts its lease for less if it was behind. If a clock is set back while its process is frozen, nothing shows that: only
// the fence protects the resource then.
//
// Others wait at most for this, and longer by the error of a clock that was ahead:
//
//	the holder died   TTL + 2 skew + 2 s after its last request
//	Complete for d    d + 2 skew + 2 s
//
// # Lost replies
//
// Every write is a conditional update of one row. If the SDK sends one again, the store recognises its own write. What
// an error says when all attempts have failed:
//
//	no attempt was applied     it matches lockstore.ErrUnavailable, or lockstore.ErrCorrupt
//	                           if the table is missing or cannot hold locks
//	one may have been applied  it matches neither: the outcome is unknown, repeat the same call to learn it
//
// A late copy of an acquire whose end the row has forgotten takes a free key until its lease ends; no work runs under it.
package dynamostore
