// Package lambdatest runs real bootstrap binaries on this machine the way the
// Lambda platform runs them: it is a local Runtime API that starts a binary,
// feeds it invocations, enforces its timeout and kills it. Nothing of the
// binary is replaced, so what is tested is what is deployed.
//
// An [Env] is one execution environment: one process, with its own Runtime API
// on a free loopback port. It keeps the platform's rules:
//
//   - The process is ready when it first asks for an invocation.
//   - An environment runs one invocation at a time, or Config.MaxConcurrency of
//     them. Further ones wait for their turn; the platform would start more
//     environments, so a test starts as many as it wants.
//   - An invocation that outlives the function's timeout ends the process with
//     SIGKILL. A process that has registered an extension, as
//     lambda.WithEnableSIGTERM does, gets SIGTERM first and 500 ms to use it.
//     With MaxConcurrency above 1 a timeout is only reported: the process and
//     the code of that invocation run on, as on managed instances.
//   - A process that has ended is replaced by a new one for the next invocation.
//
// It does not freeze a process between invocations, limit memory, or sign
// anything. It needs Unix signals.
package lambdatest
