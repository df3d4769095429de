// Package dynamostore keeps locks in an Amazon DynamoDB table.
//
// # URL
//
//	dynamodb://TABLE?region=eu-west-1&endpoint=http://127.0.0.1:8000&skew=1s
//
// region defaults to AWS_REGION, then AWS_DEFAULT_REGION. endpoint is for an
// emulator. skew is Options.Skew; all users of a table need the same. The
// credentials are those of the Lambda environment: AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the endpoint in
// AWS_CONTAINER_CREDENTIALS_FULL_URI. Who has a client already calls [New].
//
// # Table and permissions
//
// The table has the partition key "key" of type S and no sort key, and time to
// live on the attribute "ttl". The store never makes it. Locking needs two
// actions on it, dynamodb:UpdateItem and dynamodb:GetItem (the second for
// Inspect alone). [Store.Check] needs dynamodb:DescribeTable and
// dynamodb:DescribeTimeToLive, and [StillHeld] dynamodb:ConditionCheckItem.
//
// # Cost
//
// Acquire of a free key, Renew, Release and a refusal are one request each; a
// takeover is two, and so is the repeat of an Acquire whose reply was lost. Each
// is one write unit for keys up to 512 bytes.
//
// # Clock
//
// DynamoDB has no clock that a condition could use, so a holder stamps the end
// of its lease with its own clock, and two rules keep that safe whatever this
// clock says:
//
//   - Another may take over only when the service itself, in the Date header
//     of the refusal, is past the end by skew + 1 s. The takeover is refused
//     when anything changed in between. A client's clock never takes a lease,
//     and a fresh process takes over a dead one at once.
//   - A lease is trusted for the TTL, or until the end + skew by the Date of
//     its own grant, whichever is earlier, less 250 ms, counted from before the
//     request. So trust ends before a takeover can begin.
//
// The store learns from each reply how far the local clock is off and stamps
// with the corrected time. If a grant's stamp is off nevertheless (the first
// one of a process with a bad clock), it is released, with the fence that it
// replaced, and made again: two requests more, and a warning in the log.
//
// A dead holder blocks others for the TTL + 2 skew + 2 s at most, counted from
// its last request, and longer by as much as its clock was ahead if it died
// before it could correct its stamp. While a process is frozen its clock may be
// set back without it noticing; there only the fence helps.
//
// # Consistency
//
// Every write is a conditional update of one row, and DynamoDB applies those
// of one row one after the other. The fence is in the row and stays there when
// the lock is released. Never delete a lock row by hand: a request that was
// stamped before may make it again with a smaller fence. The sweep by time to
// live, at least 30 days after the last use, is safe; it never frees a lock. A
// global table with eventual consistency cannot hold locks for two Regions.
//
// # Lost replies
//
// A request may be applied and its reply lost; the SDK then sends it again by
// itself. Acquire, Renew and Release recognise their own earlier write in the
// row and answer as if the reply had come. When all attempts fail and one of
// them may have been applied, the error matches none of lockstore's errors:
// the outcome is unknown, and the same call again finds out.
//
// A withdrawal marks the row and raises its fence above every stamp that the
// owner has sent, so that its late acquire is refused. One ghost remains: an
// acquire that was withdrawn while another held the key, or of which the SDK's
// repeat was refused as held, and that is delivered after the other's release (or
// as a takeover of the other's dead lease), locks the key until its own lease
// ends. It runs nothing. A request that a corrected stamp has replaced can do the
// same while its time is to come.
//
// The row remembers one released owner: Release again is nil until another
// owner releases or withdraws. A Release whose reply was lost, and that finds
// after the SDK's repeat that another has had the key since, is unknown.
package dynamostore
