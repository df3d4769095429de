// Package dynamostore keeps locks in an Amazon DynamoDB table.
//
// # URL
//
//	dynamodb://TABLE?region=eu-west-1&endpoint=http://127.0.0.1:8000&skew=1s
//
//	region    the table's region; without it AWS_REGION, then AWS_DEFAULT_REGION
//	endpoint  the address of an emulator
//	skew      how far the local clock may be behind DynamoDB's; 1s by default, see Options.Skew
//
// The credentials come from Lambda's environment: from AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from the endpoint in
// AWS_CONTAINER_CREDENTIALS_FULL_URI. An endpoint on this machine (localhost or a
// loopback address) needs no settings: the default region is us-east-1, and the
// default for both keys is "local".
//
// If you have a client of your own, call [New].
//
// # Table and permissions
//
// The table has the partition key "key" of type S and no sort key. Its time to live
// is on the attribute "ttl". The store never creates the table.
//
//	Acquire, Renew, Release, ReleaseAfter  dynamodb:UpdateItem
//	Inspect, which a waiting guard calls   dynamodb:GetItem
//	Check                                  dynamodb:DescribeTable, dynamodb:DescribeTimeToLive
//	StillHeld                              dynamodb:ConditionCheckItem
//
// A global table with eventual consistency is not safe: two Regions can hold the same
// lock. A global table with multi-Region strong consistency keeps every promise. But
// DynamoDB gives such a table no time to live and no transactions: the row of each key
// stays for ever, and StillHeld does not work.
//
// # Cost
//
//	1 request   Acquire of a free key, Acquire that is refused, Renew, Release, ReleaseAfter
//	2 requests  Acquire of an expired lease's key, Acquire again after a lost reply
//
// Each of these requests costs one write unit if the key has at most 512 bytes. A
// process whose clock is wrong sends a few requests more, see below.
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
//	a lease may be trusted for             min(TTL, expires - Date) - 250 ms
//
// If the local clock is right:
//
//	request      request + TTL - 250 ms    expires    expires + 1 s
//	|                       |                 |             |
//	+=== trusted ===========+- 250 ms + skew -+---- 1 s ----+== others may take over ==>
//
// Each formula takes the Date of one reply:
//
//   - Takeover. Date is from the reply that refused the acquire. The request that takes
//     the key over is refused if the row has changed since that reply. No local clock
//     takes part, so a new process does not have to correct its clock first.
//   - Trust. Date is from the reply that granted the lease. The time counts from before
//     the request, so the trust ends before a takeover can begin.
//   - Renewal. Renew answers ErrLost from the same moment on: Date >= expires + 1 s. One
//     exception: a process whose clock is behind can renew the lease later, if nobody
//     has taken the key over. The fence is still the same.
//
// The store compares each Date with the local clock, and corrects the local time from
// then on. So only the first request of a process can write a wrong expires. Then the
// reply to that request shows the error:
//
//   - Acquire. If the lease may be trusted for less than TTL / 2, or if expires is later
//     than Date + TTL + 2 skew + 1 s, the store releases the key and acquires it again.
//     That costs two more requests and a warning in the log.
//   - Renew. Renew first asks with the local time. The store renews once more if DynamoDB
//     refuses that because the local clock is ahead, or if expires is too early by more than
//     min(max(skew, 250 ms), TTL / 4). A renewal never makes expires earlier.
//
// How long other owners have to wait at most, rounded up to a whole second:
//
//	the holder died                             TTL + 2 skew + 2 s after its last request
//	ReleaseAfter(d)                             d + 2 skew + 2 s
//	expires is from a clock that was ahead      longer by the clock's error
//
// The third case happens when the first request of a process is a renewal or a
// ReleaseAfter, or when the process dies before it can correct its first acquire. A
// cooldown can be shorter than d: when the ReleaseAfter is the first request of a process
// whose clock is behind by more than skew + 1 s.
//
// The local clock may be set back while its process is frozen. The process cannot
// notice that, and may trust its lease for too long. Then only the fence protects the
// resource.
//
// # Consistency
//
// Every write is a conditional update of one row. DynamoDB applies the updates of a row
// one after the other. A fence is max(previous fence + 1, microseconds since 1970). The
// fence stays in the row after a release.
//
// Never delete a lock row by hand. An old request that is still on its way could make
// the row again, with a smaller fence.
//
// Time to live deletes a row at least a day after the last use, so it never frees a
// lock. The next fence then comes from the local clock alone. It is larger than the
// last one unless that clock is wrong by more than a day.
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
// 50 ms after the end of its context, even if the DynamoDB client is still busy.
//
// # Late duplicates
//
// An abandon (a Release with Fence 0) writes the owner of the acquire into the row and
// makes the fence larger than every fence that this process has sent. So a late duplicate
// of the acquire is refused. In these cases it is not refused, and takes the key until its
// own lease ends (no work runs under that lease):
//
//   - The abandon found a lease of another owner. The duplicate arrives after that
//     lease has been released or has expired. The same can happen without an abandon:
//     the SDK sent the acquire twice, and the second request was refused as held.
//   - The clock was ahead, and the store has corrected the acquire. The duplicate is
//     a copy of the first request, before the correction, and its fence is still larger
//     than the present time in microseconds.
//   - Another process sent the abandon. The clock of the process that sent the acquire
//     was ahead, and the duplicate's fence is still larger than the present time.
//
// A late duplicate of a renewal can extend the lease, if the SDK sent the renewal twice
// and the second request was told that the lease is lost.
//
// The row remembers one owner that has released. A second Release returns nil until
// another owner releases or abandons. The outcome of a Release is unknown if its reply
// was lost and the SDK's second request finds that another owner had the key since.
package dynamostore
