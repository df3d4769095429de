// Package lambdalock is the top of a module that gives functions on AWS Lambda, and other programs, a lock
// for each resource that they work on. It has no code; these packages have:
//
//   - [github.com/lambdalock/lambdalock/guard]: start here. Wrap starts a handler only when it has the lock
//     of its event's key, and cancels its context before another can get this lock. Do and DoAll
//     are for other programs.
//   - [github.com/lambdalock/lambdalock/boot]: the main function of a Lambda function, with settings from
//     the environment.
//   - [github.com/lambdalock/lambdalock/guard/httpapi], guard/sqsbatch, guard/stream, guard/schedule: handlers
//     for the events of an HTTP API, a queue, a stream, a schedule; guard/httpguard: for handlers of net/http.
//   - [github.com/lambdalock/lambdalock/guard/idempotency]: an event that comes again gets the first result.
//   - [github.com/lambdalock/lambdalock/lockstore]: what a lock is made of: leases, fences, states, errors. The
//     stores are below it: dynamostore, redisstore, zkstore, memstore for tests, and casstore for a store of
//     your own. SQL databases, Cosmos DB and Google's Datastore are modules of their own, lockstore/sqlstore,
//     lockstore/cosmosstore and lockstore/datastore.
//   - [github.com/lambdalock/lambdalock/lambdatest]: runs the binary of a function in several environments, to
//     test what happens when they freeze, die and overlap.
//   - [github.com/lambdalock/lambdalock/lockhttp]: the locks as an HTTP service.
//
// The command cmd/lockctl shows and revokes locks, and runs a command under a lock.
//
// A key has at most one live lease, unless its users allow several. A lease comes with a fence, a number that only grows: write it with your
// data and refuse a smaller one, because no lock can stop a write of a program that stood still.
package lambdalock
