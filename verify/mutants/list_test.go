package mutants

// bugs are the planted bugs, each with the test that has to catch it and the words that the test has to print.
// Mistakes in a rule of the lock are not here: package internal/wrongrules has them.
var bugs = []bug{
	// Trust, and outcomes that are unknown.
	{"M16", "an unknown outcome is taken as held", guardSimulation, "found its context open, but the store has",
		"guard/acquire.go", "\t\tdefault:\n\t\t\treturn r.notGranted(a, err)",
		"\t\tdefault:\n\t\t\tif outcome == OutcomeUnknown && r.granted(a.sent, lockstore.Lease{Key: key, Owner: a.owner, TTL: a.ttl}) {\n\t\t\t\treturn OutcomeOK, nil\n\t\t\t}\n\t\t\treturn r.notGranted(a, err)"},
	{"M17", "an unknown outcome is taken as busy and not abandoned", guardSimulation, "M17: busy, but the store never said so",
		"guard/acquire.go", "\t\tdefault:\n\t\t\treturn r.notGranted(a, err)",
		"\t\tdefault:\n\t\t\tif a.unknown != nil {\n\t\t\t\ta.unknown = nil\n\t\t\t\treturn OutcomeBusy, &LockBusy{Key: key}\n\t\t\t}\n\t\t\treturn r.notGranted(a, err)"},
	{"M18", "an unknown attempt is not abandoned", guardSimulation, "M18",
		"guard/acquire.go", "lease = lockstore.Lease{Key: r.report.Key, Owner: a.owner}", "return nil"},
	{"M20", "trust counts from the reply", guardSimulation, "found its context open, but the store has",
		"guard/acquire.go", "sent+lease.TTL-margin", "now+lease.TTL-margin"},
	{"M21", "trust on the monotonic clock alone", guardSimulation, "found its context open, but the store has",
		"guard/clock.go", "c.extra += change", ""},
	{"M22", "trust on the wall clock alone", guardSimulation, "found its context open, but the store has",
		"guard/clock.go", "return now.mono + c.extra, now.wall", "return now.wall, now.wall"},
	{"M23", "no margin", guardSimulation, "found its context open, but the store has",
		"guard/guard.go", "margin = 250 * time.Millisecond", "margin = 0 * time.Millisecond"},
	{"M25", "a lost lease does not cancel the work", test{pkg: "./guard", run: "^TestRenewal$/^F35_F43"}, `in chain: "context deadline exceeded"`,
		"guard/context.go", "\tw.cancel(cause)", ""},
	{"M78", "no renewal when the trust ends with the work's time", test{pkg: "./guard", run: "^TestWhoNeverRenews$"}, "the lease outlasts the work's time",
		"guard/run.go", "r.trust <= r.stop", "r.trust < r.stop"},
	{"M79", "a store that goes down makes a lost reply undone", test{pkg: "./guard", run: "^TestAnUnknownOutcomeStaysUnknown$/^F24_F25_F76_down_after_a_re"}, "that would say that nothing was applied",
		"guard/retry.go", "\t\tcase outcome == OutcomeUnknown:\n\t\t\tt.unknown = err\n", ""},
	{"M80", "busy, though the own attempt could not be abandoned", test{pkg: "./guard", run: "^TestWhatCannotBeAbandonedIsUnknown$"}, "it may be granted later: unknown",
		"guard/acquire.go", "remains == nil || outcome == OutcomeInvalid || outcome == OutcomeCorrupt", "remains == nil || outcome != OutcomeUnavailable"},
	{"M93", "trust for the whole TTL, though a late duplicate was granted earlier", test{pkg: "./guard", run: "^TestTrustAfterAWaitInAQueue$/^F26_F29"}, "the trust ends before the lease does",
		"guard/acquire.go", "\t\t\tif r.granted(a.sent, lease) {", "\t\t\tlease.TTL = a.ttl\n\t\t\tif r.granted(a.sent, lease) {"},

	// The end of a run.
	{"M24", "renewals go on after the handler", guardSimulation, "M24: a renewal after the end of its work",
		"guard/run.go", "\t\tr.window.close()\n\t\tif r.joined != nil {\n\t\t\t<-r.joined\n\t\t}", "\t\tr.mu.Lock()\n\t\tr.done = true\n\t\tr.mu.Unlock()"},
	{"M26", "the release uses the ended context", guardSimulation, "M26: not released, and nothing was in the way",
		"guard/retry.go", "t.ctx, t.releasing = context.WithoutCancel(r), true", "t.ctx, t.releasing = r, true"},
	{"M27", "a panic skips the release", guardSimulation, "still holds the key after its run",
		"guard/run.go", "\t\tr.releaseAfterWork(cooldown, releaseTime)", "\t\tif err == errNotReturned {\n\t\t\treturn\n\t\t}\n\t\tr.releaseAfterWork(cooldown, releaseTime)"},
	{"M39", "a duration that overflows", test{pkg: "./guard", run: "^TestTooLate$/^F48"}, "actual  : 1s",
		"guard/run.go", "min(r.left-now, r.holdEnd-now, r.guard.opt.MaxHold)", "min(r.left-now, r.holdEnd-now)"},
	{"M72", "Shutdown does not shorten a release that is under way", test{pkg: "./guard", run: "^TestNumbers$/^release_after_Shutdown$"}, "a release that is under way has until 300 ms after Shutdown",
		"guard/shutdown.go", "if r.releases.cut != nil {\n\t\t\ttime.AfterFunc(", "if false {\n\t\t\ttime.AfterFunc("},
	{"M88", "several keys are locked in the caller's order", test{pkg: "./guard", run: "^TestDoAllInOppositeOrders$/^F61_two_callers"}, "is busy: held by",
		"guard/all.go", "slices.Compact(slices.Sorted(slices.Values(keys)))", "slices.Compact(slices.Clone(keys))"},
	{"M89", "with several leases, only the last is checked", test{pkg: "./guard", run: "^TestDoAllLosesOneLease$/^F08_a_freeze_that_is_too_long"}, "An error is expected but got nil",
		"guard/context.go", "\tif w.outer != nil {\n\t\tw.outer.check()", "\tif false {"},

	// Queues.
	{"M30", "a wake-up that comes before the wait is not seen", redisTest("TestOneWakeUpForARelease"), "a wake-up that came before the wait",
		"lockstore/redisstore/queue.go", "\twords := []any{\"blpop\", list}", "\ts.client.Del(ctx, list)\n\twords := []any{\"blpop\", list}"},
	{"M33", "a release wakes all waiters", redisTest("TestOneWakeUpForARelease"), "one wake-up for a release",
		"lockstore/redisstore/finish.lua", "for _, owner in ipairs(woken) do", "if #handed > 0 then\n\tfor owner in string.gmatch(sub(entry, from), '%S+') do result = result .. '\\n' .. owner .. ' 1 1 0 ' end\nend\nfor _, owner in ipairs(woken) do"},
	{"M90", "a run that waits takes a new owner for each request", test{pkg: "./guard", run: "^TestQueue$/^a_run_asks"}, "a new owner would be the last in the queue",
		"guard/acquire.go", "\t\t\t\treturn OutcomeOK, nil\n\t\t\t}\n\t\t\ta.askAfresh()", "\t\t\t\treturn OutcomeOK, nil\n\t\t\t}\n\t\t\ta.begin()"},
	{"M91", "the end of a wait leaves the place in the queue", guardSimulation, "M91: ",
		"guard/acquire.go", "remains = r.leave(a)", "remains = nil"},
	{"M92", "an unknown request for a place is left and not abandoned", guardSimulation, "a request of a run that left nothing behind took",
		"guard/acquire.go", "\tvar remains error // why", "\tif a.queued {\n\t\ta.unknown = nil\n\t}\n\tvar remains error // why"},
	{"M94", "no pause between two turns that come at once", test{pkg: "./guard", run: "^TestQueueThatMisbehaves$/^each_turn_comes_at_once"}, "no request without a pause",
		"guard/acquire.go", "a.early > 1 || a.early == 1 && err != nil", "err != nil"},
	{"M119", "a release wakes the owner that was the first at the grant, whoever is the first now", redisTest("TestRequestsOfAWakeUp"), "F59_the_first_has_left",
		"lockstore/redisstore/finish.lua", "KEYS[2] and h.owner == ARGV[#ARGV] and wake", "KEYS[2] and wake"},
	{"M152", "who waits for a completed key gets it when the result ends", repeatSimulation, "met no fault, and was refused",
		"guard/acquire.go", "!r.completes && busy.Remaining", "busy.Remaining"},

	// Work that must not be repeated.
	{"M136", "a release after a Complete that failed", test{pkg: "./guard", run: "^TestDoOnce$/^a_time_out_of_its_bounds"}, "Should be zero",
		"guard/once.go", "\tr.lostUnderWork(err)\n}", "\tr.lostUnderWork(err)\n\tr.releaseAfterWork(0, releaseTime)\n}"},
	{"M137", "other input gets the stored result", test{pkg: once, run: "^TestRepeat$/^other_input"}, "<nil> <nil>",
		"guard/idempotency/result.go", "f.match != nil && s.match != nil && *f.match != *s.match", "s.match != nil && f.match == nil && s.kind == 0"},
	{"M138", "an error or a panic frees a key whose work has started", test{pkg: once, run: "^TestRunsWithoutAResult$/^F05_an_error:_refuse"}, "the work ran",
		"guard/once.go", "completion.NoEffect || !c.working", "completion.NoEffect || !c.working || err != nil"},
	{"M139", "an answer 500 is stored by default", test{pkg: "./guard/httpapi", run: "^TestOnceStatuses$"}, "expected: false",
		"guard/internal/httpanswer/once.go", "status >= 500", "status >= 600"},
	{"M140", "the work runs although the store did not confirm that it starts", test{pkg: "./guard", run: "^TestMarkStarted$/^a_mark_that_F23"}, "the work ran",
		"guard/run.go", "\tcase err != nil:", "\tcase err != nil && outcome != OutcomeUnknown:"},
	{"M141", "a result that cannot be stored frees the key", test{pkg: once, run: "^TestResults$/^F52_too_large"}, "the work ran twice",
		"guard/idempotency/result.go", "\t\tc.Result, c.Err = f.noResult(err.code), err\n\t\treturn c", "\t\treturn guard.Completion{Err: err}"},
	{"M142", "a Complete has the time of a release", test{pkg: "./guard", run: "^TestDoOnce$/^after_a_Complete_that_failed"}, "until the answer",
		"guard/once.go", "r.releasing(true, r.guard.completeTime(),", "r.releasing(true, releaseTime,"},
	{"M143", "the result of another version is read", test{pkg: once, run: "^TestPrograms$/^F52_the_result_of_another_version"}, "Object expected to be of type *idempotency.RepeatNoAnswer",
		"guard/idempotency/result.go", "f.version != s.version:", `f.version == "" && s.version != "":`},
	{"M144", "two callers share the keys of the header", test{pkg: "./guard/httpapi", run: "^TestOnceCallers$"}, "each caller has keys of its own",
		"guard/internal/httpanswer/once.go", `NewCall("http", api, route, caller, key)`, `NewCall("http", api, route, key)`},
	{"M145", "work whose lease has ended stores no result, though nobody was granted the key", test{pkg: "./guard", run: "^TestDoOnce$/^F07"}, "the lease can no longer be trusted",
		"guard/once.go", "err == nil && completion.ResultTime != 0", "err == nil && completion.ResultTime != 0 && r.lost == nil"},
	{"M146", "a repeat gets the cookies of the first caller", test{pkg: "./guard/httpapi", run: "^TestOnceReplays$"}, "Set-Cookie",
		"guard/internal/httpanswer/replay.go", `case "Set-Cookie", `, `case "Cookie", `},
	{"M147", "the error of a message is stored as done", test{pkg: "./guard/sqsbatch", run: "^TestOnce$"}, "m2",
		"guard/internal/once/once.go", "\t\t\treturn struct{}{}, work(ctx, lock, in)", "\t\t\t_ = work(ctx, lock, in)\n\t\t\treturn struct{}{}, nil"},
	{"M148", "a lost lease frees a key whose work has started", repeatSimulation, "has effect number",
		"guard/once.go", "completion.NoEffect || !c.working", "completion.NoEffect || !c.working || r.lost != nil"},
	{"M149", "a Complete that was refused as lost counts as completed", repeatSimulation, "returned its result as stored, and the store was not told",
		"guard/once.go", "\tif err == nil {", "\tif err == nil || errors.Is(err, lockstore.ErrLost) {"},
	{"M150", "a result in a transaction has no hash of its input", repeatSimulation, "got {said:replays",
		"guard/idempotency/idempotency.go", "Result{p.lock, p.form.result(text)", "Result{p.lock, form{version: p.form.version}.result(text)"},
	{"M151", "an error after the end of the context frees a key whose work has started", repeatSimulation, "has effect number",
		"guard/idempotency/idempotency.go", "guard.Completion{NoEffect: noEffect}", "guard.Completion{NoEffect: noEffect || ctx.Err() != nil}"},
	{"M157", "started work that had no effect has the time of a plain release", test{pkg: "./guard", run: "^TestMarkStarted$/^F22_started_work"}, "lock store is unavailable",
		"guard/once.go", "r.releaseAfterWork(0, g.completeTime())", "r.releaseAfterWork(0, releaseTime)"},

	// DynamoDB.
	{"M03", "the tolerance of whole seconds with the wrong sign", test{pkg: dynamo, run: "^TestTrustNeverOverlaps$", env: "VERIFY_SEEDS=30"}, "trust their lease at once",
		"lockstore/dynamostore/change.go", "Early: r.date.Add(-dateStep)", "Early: r.date.Add(dateStep)"},
	{"M19", "a takeover after a stale read", test{pkg: dynamo, run: "^TestRenewalStopsATakeover$"}, "in chain but got nil",
		"lockstore/dynamostore/change.go", "\t\tfor _, name := range leaseAttributes {\n\t\t\tconditions = append(conditions, was(name))\n\t\t}", "\t\tconditions = append(conditions, \"attribute_exists(#key)\")"},
	{"M38", "the time to live in milliseconds", test{pkg: dynamo, run: "^TestSweepTime$"}, "Acquire: 31972-02-06",
		"lockstore/dynamostore/row.go", "Add(idleRow).Unix()", "Add(idleRow).UnixMilli()"},
	{"M41", "renew judges by the local clock", test{pkg: dynamo, run: "^TestRenewByANewProcess$"}, "the lease has expired: lock is lost",
		"lockstore/dynamostore/renew.go", "takeable(h.End(), r.date)", "!h.End().Add(-t.skew).After(t.clock.local())"},
	{"M102", "the trust in a hand-over counts from the reply to the read", test{pkg: dynamo, run: "^TestSlowReadOfAHandOver$"}, "the end of the trust",
		"lockstore/dynamostore/queue.go", "\tplace := seen.place(q.Owner) + 1", "\tplace := seen.place(q.Owner) + 1\n\tpassed = max(0, min(time.Since(began), t.clock.local().Sub(local)))"},
	{"M132", "a wrong clock says for how long a result is stored", test{pkg: dynamo, run: "^TestCompleteWithAWrongClock$"}, "requests",
		"lockstore/dynamostore/complete.go", "min(max(t.skew, margin), q.TTL/4)", "2*time.Hour"},
	{"M133", "a renewal lets DynamoDB delete a row whose work has started", test{pkg: dynamo, run: "^TestSweepTime$"}, "Renew after MarkStarted",
		"lockstore/dynamostore/renew.go", `"if_not_exists(#begun, :ttl)"`, `":ttl"`},

	// Redis.
	{"M35", "no EVAL after NOSCRIPT", redisTest("TestScriptFlush"), "NOSCRIPT No matching script",
		"lockstore/redisstore/call.go", `if c.err != nil && meaning(c.err).kind == "NOSCRIPT"`, `if false && meaning(c.err).kind == "NOSCRIPT"`},
	{"M36", "a server error is taken as busy", redisTest("TestRefusalsAreUnavailable"), "is held by unknown",
		"lockstore/redisstore/call.go", `return fmt.Errorf("redisstore: key %q: %s: %w: %w", key, name.says("not applied"), lockstore.ErrUnavailable, err)`, "return &lockstore.Refused{Key: key, State: lockstore.Held}"},
	{"M56", "a request is written after its call has ended", redisTest("TestCallsEndWithTheirContext"), "written after the call has ended",
		"lockstore/redisstore/call.go", "before&returned != 0 || ", ""},
	{"M61", "an unwritten EVAL hides that an earlier attempt may have been applied", redisTest("TestUnwrittenEvalAfterALostReplyIsUnknown"), "lock store is unavailable",
		"lockstore/redisstore/call.go", "state&ambiguous == 0 && (state&written == 0 || what.refused)", "state&written == 0 || state&ambiguous == 0 && what.refused"},
	{"M87", "the end of a call does not reach its connection", redisTest("TestCallsEndWithTheirContext"), "the call goes on after its context",
		"lockstore/redisstore/conn.go", "_ = used.Conn.SetDeadline(past)", ""},
	{"M158", "a replica answers what it has read", redisTest("TestAReplicaAnswersNothing"), "lock store is unavailable",
		"lockstore/redisstore/entry.lua", "return type(proof) == 'table' and proof or answer", "return answer"},

	// Stores that compare and swap.
	{"M107", "\"not applied\" after a conflict", casSimulation, "M107: at",
		"lockstore/casstore/call.go", "c.sent = true // it may be the echo of this very write", ""},
	{"M114", "writes are not counted, and the service drops a write that changes nothing", casSimulation, "M114: a write was not counted",
		"lockstore/casstore/entry.go", "N: old.N + 1,", "N: max(1, old.N),"},
	{"M159", "a MarkStarted that was written after the end of its lease counts", test{pkg: cas, run: "^TestStartThatComesTooLate$"}, "somebody has to resolve the key",
		"lockstore/casstore/entry.go", "h.Starts && e.WrittenAt.Before(since.Add(h.TTL))", "h.Starts"},
	{"M160", "after a conflict, which may be the echo of one's own write, a read that may be old", test{pkg: cas, run: "^TestOldReadAfterARepeatedWrite$"}, "its first write has taken it",
		"lockstore/casstore/call.go", "\t}\n\treturn c.read(true)\n}", "\t}\n\treturn c.read(false)\n}"},

	{"M40", "the owner in a log line", test{pkg: "./lockstore", run: "^TestOwnerIsNeverPrintedWhole$"}, `should not contain "secret"`,
		"lockstore/driver/values.go", "io.WriteString(f, o.String())", "io.WriteString(f, string(o))"},
}

const (
	dynamo = "./lockstore/dynamostore"
	cas    = "./lockstore/casstore"
	once   = "./guard/idempotency"
)

var (
	// The rarest of its bugs shows in one seed of thirty.
	guardSimulation  = test{pkg: "./guard", run: "^TestSimulation$", env: "VERIFY_SEEDS=1000"}
	repeatSimulation = test{pkg: "./guard", run: "^TestRepeats$", env: "VERIFY_SEEDS=200"}
	casSimulation    = test{pkg: cas, run: "^TestSimulation$", env: "VERIFY_SEEDS=300"}
)

func redisTest(name string) test { return test{pkg: "./lockstore/redisstore", run: "^" + name + "$"} }
