// Package samtest tries the functions of template.yaml where functions run: under
// the SAM CLI, in Docker, with locks on a Redis, a DynamoDB Local and a ZooKeeper, and deployed in
// AWS.
//
//	make sam-test               # run.sh
//	make test-aws STACK=name    # STACK=name go test -tags sam ./functions/internal/samtest -run '^TestAWS$' -v
//
// Each run sends every event of events/ to its function and compares the answer
// with the expected answer, sends the events of the HTTP API through that API, and
// borrows a lock there from PUT to DELETE. On ZooKeeper it sends the events without those of the lock service. Under
// the SAM CLI examples/own-function runs, too, by the commands that README.md prints. The functions, tables and variables are
// those of the template.
//
// In AWS the run asks CloudFormation for the stack's names, invokes its functions
// and signs its requests to the stack's API. It replaces the accounts 7 and 9 of the
// stack, and the functions take the locks of the events, and some in shared/, which
// all callers must have in LockCallers; nothing else is written. The run fails
// before that where account 8 exists: the events expect an account 8 that does not
// exist. A test is skipped where it needs a lock that another holds and the locks of
// the stack are in a cache, because that may be out of reach.
//
// Nothing here is linked into a function. What the run in AWS asks for is tried on a fake AWS. All tests have the build
// tag sam, and make sam-test runs them.
package samtest
