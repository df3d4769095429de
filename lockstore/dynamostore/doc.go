// Package dynamostore keeps locks in an Amazon DynamoDB table.
//
// # URL
//
//	dynamodb://TABLE?region=eu-west-1&endpoint=http://127.0.0.1:8000&skew=1s
//
// region defaults to AWS_REGION, then AWS_DEFAULT_REGION. endpoint is for an
// emulator. skew is Options.Skew. The credentials are those of the Lambda
// environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or
// the endpoint in AWS_CONTAINER_CREDENTIALS_FULL_URI. With an endpoint on this
// machine (localhost or a loopback address) the region is us-east-1 and both keys
// are "local" if the environment has none. If you have a client, call [New].
//
// # Table and permissions
//
// The table has the partition key "key" of type S and no sort key, and time to
// live on the attribute "ttl". The store never makes it. Locking needs two
// actions on it, dynamodb:UpdateItem and dynamodb:GetItem (the second for
// Inspect alone). [Store.Check] needs dynamodb:DescribeTable and
// dynamodb:DescribeTimeToLive, and [StillHeld] dynamodb:ConditionCheckItem.
//
// A global table with eventual consistency cannot hold locks for two Regions. One
// with multi-Region strong consistency can, and keeps every promise, but DynamoDB
// gives it neither time to live nor transactions: the row of each key stays for
// ever, and StillHeld does not work.
//
// # Cost
//
// Acquire of a free key, Renew, Release and a refusal are one request each. A
// takeover is two requests, and so is the repeat of an Acquire whose reply was
// lost. Each request is one write unit for keys up to 512 bytes.
//
// # Clock
//
// DynamoDB has no clock that a condition could use. So a holder writes the end
// of its lease into the row by its own clock:
//
//	expires = local time before the request + TTL + skew
//
// Two rules keep that safe, whatever the local clock says:
//
//   - Another process may take over a lease only when the service's own time, the
//     Date header of the reply that refused it, is at least expires + 1 s. The
//     takeover is refused when anything in the row changed in between. A local
//     clock never takes a lease. A fresh process takes over a dead one at once.
//   - A lease may be trusted for min(TTL, expires - Date) - 250 ms, counted from
//     before its request. Date is that of the reply which granted it. So the trust
//     ends before a takeover can begin.
//
// Renew follows the same rule: the lease of an owner and a fence is lost only when
// another may take it over by the service's time. A process whose clock is behind
// can renew a lease whose end has passed, if nobody else has got the key. It is
// still the same grant, and no other was made in between.
//
// The store learns from each reply how far the local clock is off, and writes the
// corrected time from then on. The first request of a process with a wrong clock
// is corrected after its reply:
//
//   - A grant that could be trusted for less than half of its TTL, or that would
//     block others for too long, is released, with the fence that it replaced, and
//     made once more. That is two requests more, and a warning in the log.
//   - A renewal that ends too early, or that was refused because the local clock
//     is ahead, is sent once more. A renewal never moves the end of a lease back.
//
// A dead holder blocks others for the TTL + 2 skew + 2 s at most, counted from its
// last request and rounded up to a whole second. It blocks them for longer by as
// much as the clock was ahead in a process that renewed the lease by its first
// request, or that died before it could correct its grant. ReleaseAfter counts by
// the clock of its process, too, corrected by the replies before it.
//
// While a process is frozen its clock may be set back without it noticing. Then
// only the fence helps.
//
// # Consistency
//
// Every write is a conditional update of one row, and DynamoDB applies those
// of one row one after the other. The fence is in the row and stays there when
// the lock is released. Never delete a lock row by hand: a request that was
// stamped before may make it again with a smaller fence.
//
// The sweep by time to live, at least a day after the last use, never frees a
// lock. After it the next fence comes from the local clock alone. It grows all the
// same, unless that clock is wrong by more than a day.
//
// # Lost replies
//
// A request may be applied and its reply lost; the SDK then sends it again by
// itself. Acquire, Renew and Release recognise their own earlier write in the
// row and answer as if the reply had come. When all attempts fail and one of
// them may have been applied, the error matches none of lockstore's errors:
// the outcome is unknown, and the same call again finds out. When no attempt left
// this machine, the error matches [lockstore.ErrUnavailable]. The store counts the
// attempts inside the client, see [API]. Each call ends with its context, 50 ms
// later at most, also when the client does not.
//
// An abandon marks the row and raises its fence above every stamp that the
// owner has sent through this process, so that its late acquire is refused. In
// three cases a
// late duplicate of an acquire takes the key until its own lease ends. It runs
// nothing:
//
//   - The acquire was abandoned while another held the key, or its repeat by the
//     SDK was refused as held, and the duplicate arrives after the other's release
//     or after the end of the other's lease.
//   - A request with a corrected stamp has replaced it, and the time of the first
//     stamp is still to come.
//   - It was abandoned through another process than the one that sent it, and the
//     time of its stamp is still to come: the clock of the process that sent it was
//     ahead.
//
// So does a late duplicate of a renewal of which the SDK's repeat was told that the
// lease is lost.
//
// The row remembers one released owner: Release again is nil until another
// owner releases or abandons. A Release whose reply was lost, and that finds
// after the SDK's repeat that another has had the key since, is unknown.
package dynamostore
