// Package dynamostore keeps locks in an Amazon DynamoDB table.
//
// # URL
//
//	dynamodb://TABLE?region=eu-west-1&endpoint=http://127.0.0.1:8000&skew=1s
//	dynamodb://TABLE?key=PK&sort=SK&prefix=LOCK%23&ttl=expires_at
//
//	region    the table's region; without it AWS_REGION, then AWS_DEFAULT_REGION
//	endpoint  the address of an emulator
//	skew      how far the local clock may be behind DynamoDB's; 1s by default, see Options.Skew
//	key       the table's partition key, of type S; "key" by default
//	sort      its sort key, of type S; without it the table has none
//	prefix    is written before each key
//	ttl       the attribute of its time to live; "ttl" by default
//	otherttl  a second name of ttl, which is accepted, too, while the name changes
//
// The credentials come from Lambda's environment: from AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from the endpoint in
// AWS_CONTAINER_CREDENTIALS_FULL_URI. An endpoint on this machine (localhost or a
// loopback address) needs no settings: the default region is us-east-1, and the
// default for the access key and the secret key is "local".
//
// If you have a client of your own, call [New].
//
// # Table and permissions
//
// The table has the partition key "key" of type S and no sort key. Its time to live
// is on the attribute "ttl". The store never creates the table.
//
// A table that has other items can hold locks, too, see [Options]. A row of a lock has the
// partition key prefix + key, the sort key [SortValue], and the attributes owner, fence, last,
// expires, handed, revoked, begun, shared, holder, released, ended, how, abandoned, kept, stored and queue. The names that
// the URL gives (key, sort, ttl, otherttl) must not be one of these; other items may have attributes
// of any name. The store touches no other item. But what reads the whole table, such as a stream, a
// trigger, an export or a scan, sees the rows of locks, and the results that they store. To
// allow a function the locks and not the other items, the policy compares the partition key.
// Do not allow dynamodb:Scan there: a scan has no partition key to compare.
//
//	"Condition": {
//	  "ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["LOCK#*"]},
//	  "Null": {"dynamodb:LeadingKeys": "false"}
//	}
//
//	Acquire, Renew, Release, MarkStarted, Complete  dynamodb:UpdateItem, dynamodb:GetItem
//	Leave, ResolveEffect, ResolveNoEffect, Revoke   dynamodb:GetItem, dynamodb:UpdateItem
//	TakeAddress                                     dynamodb:UpdateItem
//	Inspect, AwaitTurn                              dynamodb:GetItem
//	Check                                           dynamodb:DescribeTable, dynamodb:DescribeTimeToLive
//	StillHeld                                       dynamodb:ConditionCheckItem
//	CompleteItem                                    dynamodb:UpdateItem
//	List                                            dynamodb:Scan
//	Extent (how many keys there are)                dynamodb:DescribeTable
//
// A global table with eventual consistency is not safe: two Regions can hold the same
// lock. A global table with multi-Region strong consistency keeps every promise. But
// DynamoDB gives such a table no time to live and no transactions: the row of each key
// stays for ever, and StillHeld and CompleteItem do not work.
//
// # What the users of a table must agree on
//
// All programs that use one resource need the same region, endpoint, table, key, sort and prefix:
// with others they use other rows, and do not see each other. They need the same ttl: DynamoDB
// would delete a row by an attribute that not everybody moves. So a row without the attribute ttl
// of the store is refused, and left as it is; the error matches lockstore.ErrCorrupt. How to
// change the name without an outage is in docs/stores.md. They may have different skews, because
// the end of a lease in the row includes the skew of its writer.
//
// # Cost
//
//	1 write          Acquire of a free key, Acquire that is refused, also if it takes a place in the
//	                 queue, Acquire that extends a hand-over, Renew, Release, MarkStarted, Complete
//	2 writes         Acquire of an expired lease's key, of a key whose time of Complete is over, and again
//	                 after a lost reply; Acquire that takes a place behind work that has started; a
//	                 Release, if somebody has come or gone since the last reply to this owner
//	1 read, 1 write  Leave, an abandon (Release with fence 0), ResolveEffect, ResolveNoEffect, Revoke; a
//	                 Release that hands over before this process has had a reply, or after its clock
//	                 was set; and Acquire, Renew and Release of a key that several may hold
//	1 read           Acquire of an owner that found the queue full; it writes only if it then finds room
//
// A request writes again if others have changed the row between its read and its write: Renew, Release,
// Leave and an abandon up to 16 times, others up to 4 times.
//
// With n runs in the queue, each takes two writes: one takes its place, and its Release makes the next one
// the holder. If its work is longer than the hand-over, it extends, which is one more.
//
// AwaitTurn reads. A run reads first after 5 ms, and after 25 ms more for each place before its own. If
// hand-overs take as long as before, it reads next shortly before its turn should come. Otherwise the pause
// grows by a 20th of the time for which its place has not changed, and in place of 25 ms it becomes a quarter of
// that time for each place before its own. The longest pause is half a Turn. So a
// run in the queue reads at least once a second, however long the queue is. The next two in the queue, and who
// expects its turn within half a Turn, read consistently, the others at half the price. With 16 runs in a
// queue, 5 ms away, a run takes 2.0 writes and 3.5 reads with 20 ms of work (1.1 of them at half the price), and
// 3.0 writes and 22 reads with 1 s of work (14 at half the price).
//
// A queue has 64 places. A run without one reads, at half the price. If it finds room, it reads once more
// before it writes. The fewer places are free, the fewer runs try. A request for a place that is
// throttled is refused after a read. So 1,000 runs that come together for one key need less than
// the 1,000 write units a second that one partition has.
//
// Each UpdateItem costs one write unit if the row has at most 1 KB. Each GetItem costs one
// read unit for each 4 KB or part of it, and half of one if it is not consistent. A row has at most 1 KB if its key has at most 480
// bytes and few owners wait. With a short key about 30 owners can wait before the row is
// larger. A process whose clock is wrong sends a few requests more, see below.
//
// A key that several may hold has them in its row: each of n holders adds about 150 bytes and its
// holder's text, so from about 5 holders on each write costs 2 units. Their requests read first, and often
// find that another holder was quicker. With 16 runs, 5 ms away, for a key that 5 may hold, a run takes
// about 2.5 to 4.5 writes and 4.5 reads with 20 ms of work, and each holder more makes that more.
//
// The address of a parked owner has a row of its own: the partition key is that of the key's row, a newline and a hash. An
// Acquire that parks takes a read and two writes, three if it parks again, and TakeAddress one write; each write of an address costs a unit for
// each KB of it. A Release that hands over to a parked place takes two writes. The row stays without its address until
// its time to live, and for ever in a table that has none.
//
// A result is in the key's row, from Complete until the next grant. Each write of such a row costs
// a write unit for each KB of the row: the Complete, each Acquire that it refuses, and the next
// grant. List reads no result, but it costs the read units of the whole row.
//
// # Clock
//
// DynamoDB has no clock that a condition could use. So the process that acquires or
// renews a lease writes the end of the lease into the row, by its local clock:
//
//	expires = local time before the request + TTL + skew
//
// The reply to each request has a Date header: DynamoDB's own time, in whole seconds.
// Two formulas keep the lock safe, whatever the local clock says:
//
//	an acquire may take the key over if    Date >= expires + 1 s
//	a granted lease may be trusted for     min(TTL, expires - Date) - 250 ms
//	a renewed lease may be trusted for     min(max(TTL, R), expires - Date) - 250 ms, where R
//	                                       is what was left of the lease before the renewal
//
// If the local clock is right:
//
//	request      request + TTL - 250 ms    expires    expires + 1 s
//	|                       |                 |             |
//	+=== trusted ===========+- 250 ms + skew -+---- 1 s ----+== others may take over ==>
//
// Each formula takes the Date of one reply:
//
//   - Takeover. Date is from the reply that refused the acquire, or from the last read of
//     AwaitTurn. The request that takes
//     the key over is refused if the row has changed since that reply. No local clock
//     takes part, so a new process does not have to correct its clock first.
//   - Trust. Date is from the reply that granted the lease. The time counts from before
//     the request, so the trust ends before a takeover can begin. A lease that was handed over ends
//     at expires = local time of the release + Turn, without skew, and Date is from the consistent
//     read in which its owner sees that it has the key.
//   - Renewal. Renew answers ErrLost from the same moment on: Date >= expires + 1 s. One
//     exception: a process whose clock is behind can renew the lease later, if nobody
//     has taken the key over. The fence is still the same.
//
// The store compares each Date with the local clock, and corrects the local time from
// then on. So a wrong expires can come only from a request that was sent before the first
// reply, or before the first reply after somebody set the local clock. The reply to that
// request shows the error:
//
//   - Acquire. If expires - Date is less than TTL / 2, or if expires is later
//     than Date + TTL + 2 skew + 1 s, the store writes the end again, and a fence from a clock
//     that was ahead, too. That costs one more request and a warning in the log.
//   - Release that hands over. If the end is more than 1.25 s too early, because the request was
//     slow, the store writes it again. It makes no end earlier: the owner that was handed the key
//     may have seen it. A process that knows no Date yet, or whose clock was set since the last
//     reply, reads the row first.
//   - Renew. The store computes expires again with the corrected clock. If the new value is
//     later than the old one by more than min(max(skew, 250 ms), TTL / 4), it sends a second
//     request. That can be after the first request was applied. It can also be after DynamoDB
//     has refused it, because the lease is over by the local time, but by Date nobody may take
//     the key over yet. A renewal never makes expires earlier.
//
// How long other owners have to wait at most, rounded up to a whole second:
//
//	the holder died                             TTL + 2 skew + 2 s after its last request
//	Complete for d                              d + 2 skew + 2 s
//	expires is from a clock that was ahead      longer by the clock's error
//
// The third case happens when the request with the wrong clock is a renewal, or when the process
// dies before it can correct its acquire.
//
// Complete writes the end of its time by the local clock, too. If the reply shows that the clock
// was wrong, Complete writes the end again. Between the two requests the end is wrong.
//
// The local clock may be set back while its process is frozen. The process cannot
// notice that, and may trust its lease for too long. Then only the fence protects the
// resource.
//
// # Consistency
//
// Every write is a conditional update of one row. DynamoDB applies the updates of a row
// one after the other. A fence is max(previous fence + 1, microseconds since 1970). The
// fence stays in the row after a release, as last.
//
// Never delete a lock row by hand. An old request that is still on its way could make
// the row again, with a smaller fence.
//
// Time to live deletes a row at least a day after the last use, so it never frees a lock. It
// deletes a completed row at the earliest two days after the end of the time for which the key is
// closed. Before work that must not be repeated (idempotency.AtMostOnce), the guard calls
// MarkStarted. Until somebody says how this work ended, the row stays for at least
// lockstore.StartedFor (30 days) after the end of the lease; then the mark is lost with the row. A renewal about
// once a day takes a read and a write more, which move the time to live.
//
// The next fence after a deleted row comes from the local clock alone. It is larger than the last
// one unless that clock is wrong by more than a day.
//
// # Lost replies
//
// A reply can be lost after the request was applied. The SDK then sends the request
// again. Acquire, Renew and Release recognise their own earlier write in the row, and
// answer as if the first reply had come.
//
// What an error says when all attempts of a call have failed:
//
//	no attempt was applied     it matches lockstore.ErrUnavailable, or lockstore.ErrCorrupt
//	                           if the table is missing or cannot hold locks
//	one may have been applied  it matches none of lockstore's errors: the outcome is unknown,
//	                           repeat the same call to learn the outcome
//
// The store counts the attempts inside the client, see [API]. Each call returns at most
// 30 ms after the end of its context, even if the DynamoDB client is still busy.
//
// # Late duplicates
//
// An abandon is a Release with Fence 0. It takes its owner's place out of the queue, if there is one, and
// writes the owner of the acquire into the row as abandoned, or as released if its lease is there. If
// the key is free then, it makes the fence larger. (The fence stays if the owner's lease is in the row
// and this process has sent no acquire of it.) A late duplicate of the acquire is then refused, because
// its condition compares these owners and the fence.
//
// In these cases a late duplicate is not refused. It takes the key until its own lease ends; no
// work runs under that lease:
//
//   - Another owner held the key when the abandon came, and another abandon came since. The duplicate
//     arrives after that lease has been released or has expired.
//   - Nobody abandoned the acquire: the SDK sent it twice, and the second request was refused
//     as held. The first request arrives after the other lease has been released or has expired.
//   - Nobody abandoned the acquire: its clock was ahead, the store corrected it, and its lease
//     was released. Another owner has released the key since. The duplicate is a copy of the
//     request before the correction, and its fence is still larger than the present time.
//   - Another process sent the abandon. The clock of the process that sent the acquire
//     was ahead, and the duplicate's fence is still larger than the present time.
//
// If a reply is lost, a wake-up may be lost with it: the answer to the second request of a Complete names no parked
// owner, nor does the answer to a repeat of any call. A second TakeAddress finds nothing (its outcome is unknown). The
// parked owner then asks after a time of its own.
//
// The SDK may send a renewal twice. The answer to the second request may be that the lease
// is lost. If the first request arrives after that, it can extend the lease. Then the key
// stays locked until the new end of the lease. The caller already knows that the lease is
// lost.
//
// A MarkStarted that is applied after the end of its lease, as the Date of its reply shows, is removed again, and the answer is that the
// lease is lost. If no reply comes, nobody knows that: the key may be in doubt until the owner releases it.
//
// The row remembers the last owner whose lease was released, completed, resolved, revoked or abandoned, how it ended,
// and the last owner that abandoned an acquire and had no lease. A second Release returns nil for
// as long as the row remembers the owner. The outcome of a Release is unknown if its reply was lost
// and the SDK's second request no longer finds the owner in the row. A Complete, Resolve or Revoke is unknown
// in the same case.
package dynamostore
