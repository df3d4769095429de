// Package lambdatest runs Lambda functions on this machine as the Lambda platform
// runs them, for tests of what happens between several execution environments.
//
// It starts the bootstrap binary that is deployed. Nothing in the binary is
// replaced: the package is a local Runtime API, which starts the binary, gives it
// events, enforces the function's timeout and kills the process. The binary may be
// written in any language, for this machine's operating system and processor. A
// function in Go uses github.com/aws/aws-lambda-go as always, and [Build] builds it.
//
// A test builds the binary once, starts environments with [Start] or [StartAll],
// and sends events with [Environment.Invoke] or [Environment.Send]. See the example.
//
// # What an environment is
//
// An [Environment] is one execution environment: one process at a time, with a Runtime API
// of its own on a free port of the loopback interface.
//
//   - The process is ready when it asks for its first event.
//   - The process gets the variables of the platform and those of Config.Env. It
//     inherits none of the test's own variables.
//   - An environment runs one event at a time, or Config.MaxConcurrency of them.
//     Further events wait for their turn. The platform would start more
//     environments; here the test starts as many as it wants.
//   - A process that has ended is replaced by a new process at the next event, as
//     after a crash on the platform.
//   - The last 10,000 lines that the process writes are kept: [Environment.Logs], [Environment.WaitLog].
//
// # What can happen to an environment
//
//	a test wants                       it calls            the event under way ends with
//	a crash, in the middle of work     e.Kill              ErrorExit
//	a frozen process that wakes up     e.Freeze, Thaw      what the function answers
//	a timeout of the function          Config.Timeout      ErrorTimeout
//	the end of an idle environment     e.Shutdown          (there is none)
//	a retry of an asynchronous event   Event.ID            what the function answers
//	two events in one process          MaxConcurrency      what the function answers
//	a deadline in the past             Event.Deadline      what the function answers
//
// When an invocation is longer than the function's timeout, the package kills its process with SIGKILL.
// A process that has registered an extension, as lambda.WithEnableSIGTERM does, gets
// SIGTERM at the timeout, and SIGKILL 500 ms later. With MaxConcurrency above 1 a timeout is only
// reported: the process and the code of that invocation run on, as on Lambda
// Managed Instances.
//
// # What is different from Lambda
//
// A process is not frozen between two events, its memory is not limited, and no
// request is signed. Freeze stops a process with SIGSTOP: its monotonic clock runs
// on, which the clock of a frozen environment on Lambda may not do. The package
// needs Unix signals: Linux, macOS.
package lambdatest
