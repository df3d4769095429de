package mutants

import "github.com/lambdalock/lambdalock/internal/verifyrecord"

// mutants are the planted bugs, and the tests that have to catch them. Some patches plant several, each
// with a case of its own: numbers that a test looks at one by one.
var mutants = []mutant{
	{id: "M01", what: "acquire without a condition", suite: rulebook, testRun: compared, says: "M01 acquire unconditional: "},
	{id: "M02", what: "expiry compared the wrong way", suite: rulebook, testRun: compared, says: "M02 expiry compare flipped: "},
	{id: "M03", what: "the tolerance of whole seconds with the wrong sign", suite: simulation, testRun: dynamoSimulation, says: "trust their lease at once"},
	{id: "M04", what: "release without a look at owner and fence", suite: rulebook, testRun: compared, says: "M04 release unchecked: "},
	{id: "M05", what: "release without a look at the fence", suite: rulebook, testRun: compared, says: "M05 release ignores the fence: "},
	{id: "M06", what: "renew without a look at owner and fence", suite: rulebook, testRun: compared, says: "M06 renew unchecked: "},
	{id: "M07", what: "renew makes a lost lease anew", suite: rulebook, testRun: compared, says: "M07 renew recreates lost: "},
	{id: "M08", what: "renew revives an expired lease", suite: rulebook, testRun: compared, says: "M08 renew after expiry: "},
	{id: "M09", what: "renew shortens a lease", suite: rulebook, testRun: compared, says: "M09 renew shortens: "},
	{id: "M10", what: "the fence stays what the first grant made it", suite: rulebook, testRun: compared, says: "M10 fence constant: "},
	{id: "M11", what: "release deletes the entry, and the fence with it", suite: rulebook, testRun: compared, says: "M11 release deletes the fence: "},
	{id: "M12", what: "the fence moves when the key is busy", suite: rulebook, testRun: compared, says: "M12 fence moves on busy: "},
	{id: "M13", what: "the fence from a counter in the process", suite: rulebook, testRun: compared, says: "M13 fence from a local counter: "},
	{id: "M14", what: "the fence in 32 bits", suite: rulebook, testRun: compared, says: "M14 fence int32: "},
	{id: "M15", what: "an owner's repeated acquire reads as busy", suite: rulebook, testRun: compared, says: "M15 own retry reads busy: "},
	{id: "M16", what: "an unknown outcome is taken as held", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M17", what: "an unknown outcome is taken as busy and not abandoned", suite: simulation, testRun: guardSimulation, says: "M17: busy, but the store never said so"},
	{id: "M18", what: "an unknown attempt is not abandoned", suite: simulation, testRun: guardSimulation, says: "M18"},
	{id: "M19", what: "a takeover after a stale read", suite: store, testRun: dynamoTest("TestRenewalStopsATakeover"), says: "in chain but got nil"},
	{id: "M20", what: "trust counts from the reply", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M21", what: "trust on the monotonic clock alone", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M22", what: "trust on the wall clock alone", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M23", what: "no margin", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M24", what: "renewals go on after the handler", suite: simulation, testRun: guardSimulation, says: "M24: a renewal after the end of its work"},
	{id: "M25", what: "a lost lease does not cancel the work", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestRenewal$/^F35_F43"}, says: `in chain: "context deadline exceeded"`},
	{id: "M26", what: "the release uses the ended context", suite: simulation, testRun: guardSimulation, says: "M26: not released, and nothing was in the way"},
	{id: "M27", what: "a panic skips the release", suite: simulation, testRun: guardSimulation, says: "still holds the key after its run"},
	{id: "M28", what: "the owner is the request id", suite: processes, testRun: testRun{dir: "verify", pkg: "./processes", run: "^TestProcesses$/^redis_F01"}, says: "belongs to try"},
	{id: "M29", what: "two keys become one", suite: rulebook, testRun: compared, says: "M29 keys meet without case: "},
	{id: "M30", what: "a wake-up that comes before the wait is not seen", suite: store, testRun: redisTest("TestOneWakeUpForARelease"), says: "a wake-up that came before the wait"},
	{id: "M31", what: "a dead waiter blocks the queue", suite: rulebook, testRun: compared, says: "M31 a dead waiter blocks the queue: "},
	{id: "M32", what: "a new waiter overtakes the queue", suite: rulebook, testRun: compared, says: "M32 callers without a place overtake the queue: "},
	{id: "M33", what: "a release wakes all waiters", suite: store, testRun: redisTest("TestOneWakeUpForARelease"), says: "one wake-up for a release"},
	{id: "M35", what: "no EVAL after NOSCRIPT", suite: store, testRun: testRun{pkg: redis, run: "^TestScriptFlush$"}, says: "NOSCRIPT No matching script"},
	{id: "M36", what: "a server error is taken as busy", suite: store, testRun: testRun{pkg: redis, run: "^TestRefusalsAreUnavailable$"}, says: "is held by unknown"},
	{id: "M37", what: "a TTL in the wrong unit", suite: rulebook, testRun: compared, says: "M37 TTL in other units: "},
	{id: "M38", what: "the time to live in milliseconds", suite: store, testRun: testRun{pkg: dynamo, run: "^TestSweepTime$"}, says: "Acquire: 31972-02-06"},
	{id: "M39", what: "a duration that overflows", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestTooLate$/^F48"}, says: "actual  : 1s"},
	{id: "M40", what: "the owner in a log line", suite: unit, testRun: testRun{pkg: "./lockstore", run: "^TestOwnerIsNeverPrintedWhole$"}, says: `should not contain "secret"`},
	{id: "M41", what: "renew judges by the local clock", suite: store, testRun: dynamoTest("TestRenewByANewProcess"), says: "the lease has expired: lock is lost"},
	{id: "M42", file: "numbers-dynamodb", what: "half the clock tolerance in the row", suite: store, testRun: dynamoTest("TestEdgeOfTheTakeover"), says: "taken over before its time"},
	{id: "M43", file: "clock-dynamodb", what: "half a second for the whole seconds of Date", suite: store, testRun: dynamoTest("TestEdgeOfTheTakeover"), says: "taken over before its time"},
	{id: "M44", file: "numbers-dynamodb", what: "half the store's margin", suite: store, testRun: dynamoTest("TestEdgesOfAGrant"), says: "the trust in a grant"},
	{id: "M45", file: "clock-dynamodb", what: "an end that is too early is accepted for longer", suite: store, testRun: dynamoTest("TestEdgesOfAGrant"), says: "requests of a grant"},
	{id: "M46", file: "clock-dynamodb-2", what: "an end that is too late is corrected too soon", suite: store, testRun: dynamoTest("TestEdgesOfAGrant"), says: "requests of a grant"},
	{id: "M47", file: "numbers-dynamodb", what: "rows are deleted after half a day", suite: store, testRun: dynamoTest("TestSweepTime"), says: "Acquire: 2000-01-01 13:00:01"},
	{id: "M48", what: "an abandoned acquire leaves a fence ahead of the time", suite: store, testRun: dynamoTest("TestAbandonWithAClockAhead"), says: "one request each"},
	{id: "M49", file: "numbers-dynamodb", what: "a short renewal that ends too early", suite: store, testRun: dynamoTest("TestEdgeOfARenewal"), says: "requests of a renewal"},
	{id: "M50", what: "an entry is kept for half an hour after its lease", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^F79_never_used$"}, says: "kept for 31m0.001s after acquire"},
	{id: "M51", file: "retention-redis", what: "an entry is kept for half an hour after its cooldown", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^F79_closed$"}, says: "kept for 1h30m0s after abandon"},
	{id: "M52", file: "retention-redis-2", what: "the mark of an abandoned owner shortens what is kept for another's lease", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^F79_held$"}, says: "kept for 1h0m0s after abandon"},
	{id: "M53", file: "numbers-redis", what: "a clock that is set back by less than half a second makes a lease longer", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^F19_the_clock_is_back_by_1µs$"}, says: "1h0m0.000001s"},
	{id: "M54", file: "numbers-redis", what: "a clock that is set back by less than half a second closes a key for longer", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^F19_the_clock_is_back_by_1µs,_closed$"}, says: "1h0m0.000001s"},
	{id: "M55", file: "numbers-redis", what: "microseconds are rounded to the nearest", suite: store, testRun: redisTest("TestMicrosRoundsUp"), says: "microseconds of"},
	{id: "M56", what: "a request is written after its call has ended", suite: store, testRun: redisTest("TestCallsEndWithTheirContext"), says: "written after the call has ended"},
	{id: "M57", what: "a call waits for its answer after its context", suite: store, testRun: redisTest("TestCallsEndWithTheirContext"), says: "the call goes on after its context"},
	{id: "M58", file: "numbers-redis", what: "fences end at 2^52", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^a_fence_above_2"}, says: "Received unexpected error"},
	{id: "M59", file: "numbers-redis", what: "a lease ends a microsecond late", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^the_end$"}, says: "the answer to"},
	{id: "M61", what: "an unwritten EVAL hides that an earlier attempt may have been applied", suite: store, testRun: redisTest("TestUnwrittenEvalAfterALostReplyIsUnknown"), says: "lock store is unavailable"},
	{id: "M62", file: "numbers-guard", what: "half the margin", suite: unit, testRun: numbers("margin$"), says: "the margin is 250 ms"},
	{id: "M63", file: "numbers-guard", what: "renewed after a sixth of the first lease", suite: unit, testRun: numbers("thirds_of_the_lease$"), says: "a lease is renewed after each third"},
	{id: "M64", file: "numbers-guard", what: "renewed after a sixth of a later lease", suite: unit, testRun: numbers("thirds_of_what"), says: "a lease is renewed after each third"},
	{id: "M65", file: "numbers-guard", what: "half the reserve", suite: unit, testRun: numbers("reserve$"), says: "the reserve is 300 ms"},
	{id: "M66", file: "numbers-guard", what: "half the least work", suite: unit, testRun: numbers("least_work"), says: "the least work is 100 ms"},
	{id: "M67", file: "numbers-guard", what: "half of the shortest time for a call", suite: unit, testRun: numbers("call_time_of_acquire$"), says: "and at least 200 ms"},
	{id: "M68", file: "numbers-guard", what: "half the time for a call", suite: unit, testRun: numbers("call_time_of_a_poll$"), says: "a poll has 2 s"},
	{id: "M69", file: "numbers-guard", what: "half the retry time for a store that fails", suite: unit, testRun: numbers("retry_time"), says: "a store that fails is asked for 5 s"},
	{id: "M70", file: "numbers-guard", what: "half the time for a release", suite: unit, testRun: numbers("release_time$"), says: "a release has 1 s"},
	{id: "M71", file: "numbers-guard", what: "half the time for a release after Shutdown", suite: unit, testRun: numbers("release_after_Shutdown$"), says: "until 300 ms after Shutdown"},
	{id: "M72", what: "Shutdown does not shorten a release that is under way", suite: unit, testRun: numbers("release_after_Shutdown$"), says: "a release that is under way has until 300 ms after Shutdown"},
	{id: "M73", file: "numbers-guard", what: "half the time for the answer", suite: unit, testRun: numbers("answer_time"), says: "100 ms are kept for the answer"},
	{id: "M74", file: "numbers-guard", what: "a lease ends half a second after the run", suite: unit, testRun: numbers("slack$"), says: "a lease ends 1 s after the run"},
	{id: "M75", file: "numbers-guard", what: "half the first pause", suite: unit, testRun: numbers("pauses$"), says: "pauses are random up to 50 ms"},
	{id: "M76", file: "numbers-guard", what: "half the longest pause", suite: unit, testRun: numbers("pauses$"), says: "doubled up to 1 s"},
	{id: "M77", file: "numbers-guard", what: "clocks may differ by half more", suite: unit, testRun: numbers("clock_noise$"), says: "clocks that differ by 10 ms and less"},
	{id: "M78", what: "no renewal when the trust ends with the work's time", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestWhoNeverRenews$"}, says: "the lease outlasts the work's time"},
	{id: "M79", what: "a store that goes down makes a lost reply undone", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestAnUnknownOutcomeStaysUnknown$/^F24_F25_F76_down_after_a_re"}, says: "that would say that nothing was applied"},
	{id: "M80", what: "busy, though the own attempt could not be abandoned", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestWhatCannotBeAbandonedIsUnknown$"}, says: "it may be granted later: unknown"},
	{id: "M81", what: "a takeover 1 ms early", suite: rulebook, testRun: compared, says: "M81 takeover 1 ms early: "},
	{id: "M82", what: "a lease is live at the instant of its end", suite: rulebook, testRun: induced, says: "M82 a lease is live at the instant of its end: "},
	{id: "M83", what: "the end of a lease is cut to whole seconds", suite: rulebook, testRun: compared, says: "M83 end in whole seconds: "},
	{id: "M84", what: "a renewal for less than is left shortens the trust", suite: rulebook, testRun: compared, says: "M84 shorter renew is trusted for its TTL alone: "},
	{id: "M85", what: "a cooldown ends 1 ms early", suite: rulebook, testRun: compared, says: "M85 a cooldown ends 1 ms early: "},
	{id: "M86", file: "numbers-memory", what: "one owner less is remembered", suite: unit, testRun: testRun{pkg: mem, run: "^TestRemembersEndedOwners$"}, says: "memory is bounded"},
	{id: "M87", what: "the end of a call does not reach its connection", suite: store, testRun: redisTest("TestCallsEndWithTheirContext"), says: "the call goes on after its context"},
	{id: "M88", what: "several keys are locked in the caller's order", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestDoAllInOppositeOrders$/^F61_two_callers"}, says: "is busy: held by"},
	{id: "M89", what: "with several leases, only the last is checked", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestDoAllLosesOneLease$/^F08_a_freeze_that_is_too_long"}, says: "An error is expected but got nil"},
	{id: "M90", what: "a run that waits takes a new owner for each request", suite: unit, testRun: queueTest("Queue", "a_run_asks"), says: "a new owner would be the last in the queue"},
	{id: "M91", what: "the end of a wait leaves the place in the queue", suite: simulation, testRun: guardSimulation, says: "M91: "},
	{id: "M92", what: "an unknown request for a place is left and not abandoned", suite: simulation, testRun: guardSimulation, says: "a request of a run that left nothing behind took"},
	{id: "M93", what: "trust for the whole TTL, though a late duplicate was granted earlier", suite: unit, testRun: queueTest("TrustAfterAWaitInAQueue", "F26_F29"), says: "the trust ends before the lease does"},
	{id: "M94", what: "no pause between two turns that come at once", suite: unit, testRun: queueTest("QueueThatMisbehaves", "each_turn_comes_at_once"), says: "no request without a pause"},
	{id: "M95", what: "a turn of one second", suite: rulebook, testRun: compared, says: "M95 M97 queue: turns of a second: "},
	{id: "M96", what: "a queue of dead owners closes a key for three turns", suite: rulebook, testRun: compared, says: "M96 M98 a queue of dead owners closes a key for three turns: "},
	{id: "M97", what: "a turn of one second on the server", suite: rulebook, testRun: compared, says: "M95 M97 queue: turns of a second: "},
	{id: "M98", what: "on the server, a queue of dead owners closes a key for three turns", suite: rulebook, testRun: compared, says: "M96 M98 a queue of dead owners closes a key for three turns: "},
	{id: "M99", what: "who leaves after its turn gives half a turn back", suite: rulebook, testRun: compared, says: "M99 who leaves gives half a turn back: "},
	{id: "M100", file: "numbers-redis", what: "half the places on the server", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^one_place_is_left$"}, says: "the answer to"},
	{id: "M101", file: "numbers-redis", what: "half the time for which a wake-up waits", suite: store, testRun: redisTest("TestOneWakeUpForARelease"), says: "how long a wake-up waits"},
	{id: "M102", file: "numbers-dynamodb", what: "the trust in a hand-over counts from the reply to the read", suite: store, testRun: dynamoTest("TestSlowReadOfAHandOver"), says: "the end of the trust"},
	{id: "M103", file: "numbers-dynamodb", what: "half the places in a row", suite: store, testRun: dynamoTest("TestPlaces"), says: "expected: 33"},
	{id: "M104", file: "numbers-memory", what: "half the places in memory", suite: unit, testRun: testRun{pkg: mem, run: "^TestPlaces$"}, says: "expected: 65"},
	{id: "M105", what: "a renewal begins when a joiner says that the lease began", suite: store, testRun: testRun{pkg: cas, run: "^TestRuleBook$"}, says: "want {State:held"},
	{id: "M106", what: "a joiner makes a lease longer", suite: simulation, testRun: casSimulation, says: "M106: the lease begins again"},
	{id: "M107", what: "\"not applied\" after a conflict", suite: simulation, testRun: casSimulation, says: "M107: at"},
	{id: "M108", what: "lost, by a read that may be old", suite: simulation, testRun: casSimulation, says: "told that a live lease is lost"},
	{id: "M109", what: "who leaves trusts a read that may be old", suite: simulation, testRun: casSimulation, says: "M109: at"},
	{id: "M110", what: "a takeover by a hint", suite: rulebook, testRun: induced, says: "M110 a takeover by a guess: "},
	{id: "M111", what: "lost, by a hint", suite: rulebook, testRun: induced, says: "M111 lost, by a guess: "},
	{id: "M112", what: "a reply with the old version counts as a write", suite: store, testRun: testRun{pkg: cas, run: "^TestWrongReplies$/^the_old_version"}, says: "want an unknown outcome"},
	{id: "M113", what: "an abandon ends another's lease", suite: rulebook, testRun: compared, says: "M113 abandon frees everybody's: "},
	{id: "M114", what: "writes are not counted, and the service drops a write that changes nothing", suite: store, testRun: testRun{pkg: cas, run: "^TestStore$/^a_service_that_drops_writes$/^renew$"}, says: "the old version or no time; want the lease to last", sims: "M114: a write was not counted"},
	{id: "M115", what: "a read of an old entry sets the clock back", suite: store, testRun: testRun{pkg: cas, run: "^TestRuleBook$"}, says: `the store says "refused, for the key is held"; want "granted"`},
	{id: "M116", what: "a lease begins in the future", suite: store, testRun: testRun{pkg: cas, run: "^TestClockThatIsSetBack$"}, says: "59m59"},
	{id: "M117", what: "the owner whose lease was taken over is forgotten", suite: rulebook, testRun: compared, says: "M18 M117 a store that forgets the owners that have ended: "},
	{id: "M118", what: "a takeover before the end of a Step", suite: rulebook, testRun: induced, says: "M118 others' leases end by the latest time: "},
	{id: "M119", what: "a release wakes the owner that was the first at the grant, whoever is the first now", suite: store, testRun: redisTest("TestRequestsOfAWakeUp"), says: "F59_the_first_has_left"},
	{id: "M120", what: "a revocation shortens the lease", suite: rulebook, testRun: compared, says: "M120 revoke: end shortened: "},
	{id: "M121", what: "a revocation leaves no mark of the owner", suite: rulebook, testRun: compared, says: "M121 M155 revoke: released not set: "},
	{id: "M122", what: "a revocation ends a cooldown", suite: rulebook, testRun: compared, says: "M122 revoke: ends a cooldown: "},
	{id: "M123", what: "an expired lease under which the work has started is taken over", suite: rulebook, testRun: compared, says: "M123 started: ignored by a takeover: "},
	{id: "M124", what: "a result is stored without a look at the owner", suite: rulebook, testRun: compared, says: "M124 complete: without the owner: "},
	{id: "M125", what: "a result is stored on a free key", suite: rulebook, testRun: compared, says: "M125 complete: on a free key: "},
	{id: "M126", what: "a released lease counts as completed", suite: rulebook, testRun: compared, says: "M126 a released lease counts as completed: "},
	{id: "M127", what: "a result is stored after another's grant", suite: rulebook, testRun: compared, says: "M127 complete: after another's grant: "},
	{id: "M128", what: "a result stays in the entry after the next grant", suite: rulebook, testRun: compared, says: "M128 complete: the result stays in the entry: "},
	{id: "M129", file: "retention-redis", what: "a release after a start leaves the entry for a month", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^F79_started$"}, says: "kept for 720h30m0s after release"},
	{id: "M130", what: "a result that looks like a queue is read as none", suite: store, testRun: redisCase("complete", "the_result_comes_back"), says: "the key is cooldown; want it [completed]"},
	{id: "M131", file: "retention-redis-2", what: "a renewal forgets for how long a start is remembered", suite: store, testRun: testRun{pkg: redis, run: "^TestEdges$/^F79_started$"}, says: "kept for 1h0m0s after renew"},
	{id: "M132", file: "clock-dynamodb-2", what: "a wrong clock says for how long a result is stored", suite: store, testRun: dynamoTest("TestCompleteWithAWrongClock"), says: "requests"},
	{id: "M133", what: "a renewal lets DynamoDB delete a row whose work has started", suite: store, testRun: dynamoTest("TestSweepTime"), says: "Renew after MarkStarted"},
	{id: "M134", what: "a revocation forgets that the work has started", suite: rulebook, testRun: compared, says: "M134 revoke: started is dropped: "},
	{id: "M135", what: "a revocation frees the key of started work at once", suite: rulebook, testRun: compared, says: "M135 revoke: at once frees a started key: "},
	{id: "M136", what: "a release after a Complete that failed", suite: unit, testRun: onceTest("./guard", "DoOnce", "a_time_out_of_its_bounds"), says: "Should be zero"},
	{id: "M137", what: "other input gets the stored result", suite: unit, testRun: onceTest(once, "Repeat", "other_input"), says: "<nil> <nil>"},
	{id: "M138", what: "an error or a panic frees a key whose work has started", suite: unit, testRun: onceTest(once, "RunsWithoutAResult", "F05_an_error:_refuse"), says: "the work ran"},
	{id: "M139", what: "an answer 500 is stored by default", suite: unit, testRun: onceTest("./guard/httpapi", "OnceStatuses", ""), says: "expected: false"},
	{id: "M140", what: "the work runs although the store did not confirm that it starts", suite: unit, testRun: onceTest("./guard", "MarkStarted", "a_mark_that_F23"), says: "the work ran"},
	{id: "M141", what: "a result that cannot be stored frees the key", suite: unit, testRun: onceTest(once, "Results", "F52_too_large"), says: "the work ran twice"},
	{id: "M142", what: "a Complete has the time of a release", suite: unit, testRun: onceTest("./guard", "DoOnce", "after_a_Complete_that_failed"), says: "until the answer"},
	{id: "M143", what: "the result of another version is read", suite: unit, testRun: onceTest(once, "Programs", "F52_the_result_of_another_version"), says: "Object expected to be of type *idempotency.RepeatNoAnswer"},
	{id: "M144", what: "two callers share the keys of the header", suite: unit, testRun: onceTest("./guard/httpapi", "OnceCallers", ""), says: "each caller has keys of its own"},
	{id: "M145", what: "work whose lease has ended stores no result, though nobody was granted the key", suite: unit, testRun: onceTest("./guard", "DoOnce", "F07"), says: "the lease can no longer be trusted"},
	{id: "M146", what: "a repeat gets the cookies of the first caller", suite: unit, testRun: onceTest("./guard/httpapi", "OnceReplays", ""), says: "Set-Cookie"},
	{id: "M147", what: "the error of a message is stored as done", suite: unit, testRun: onceTest("./guard/sqsbatch", "Once", ""), says: "m2"},
	{id: "M148", what: "a lost lease frees a key whose work has started", suite: simulation, testRun: repeatSimulation, says: "has effect number"},
	{id: "M149", what: "a Complete that was refused as lost counts as completed", suite: simulation, testRun: repeatSimulation, says: "returned its result as stored, and the store was not told"},
	{id: "M150", what: "a result in a transaction has no hash of its input", suite: simulation, testRun: repeatSimulation, says: "got {said:replays"},
	{id: "M151", what: "an error after the end of the context frees a key whose work has started", suite: simulation, testRun: repeatSimulation, says: "has effect number"},
	{id: "M152", what: "who waits for a completed key gets it when the result ends", suite: simulation, testRun: repeatSimulation, says: "met no fault, and was refused"},
	{id: "M153", what: "a release after the end of its lease begins the turns again", suite: rulebook, testRun: compared, says: "M153 a release after the end of its lease hands over from that end on: "},
	{id: "M154", what: "a revocation ends the lease at once", suite: rulebook, testRun: compared, says: "M154 a revocation opens the key at once: "},
	{id: "M155", what: "a revocation does not end the acquisition of the holder, whose late duplicate is granted the key again", suite: rulebook, testRun: compared, says: "M121 M155 revoke: released not set: "},
	{id: "M156", what: "the owner of a resolved lease is told that it has stored its result", suite: rulebook, testRun: compared, says: "M156 resolve: the owner itself has completed it: "},
	{id: "M157", what: "started work that had no effect has the time of a plain release", suite: unit, testRun: onceTest("./guard", "MarkStarted", "F22_started_work"), says: "lock store is unavailable"},
	{id: "M158", what: "a replica answers what it has read", suite: store, testRun: redisTest("TestAReplicaAnswersNothing"), says: "lock store is unavailable"},
	{id: "M158", what: "a replica answers what it has read", suite: histories, testRun: testRun{dir: "verify", pkg: "./histories", run: "^TestHistories$/^valkey$/^planned_failover$", env: "VERIFY_SEEDS=20"}, says: ": violations:"},
	{id: "M159", what: "a MarkStarted that was written after the end of its lease counts", suite: store, testRun: testRun{pkg: cas, run: "^TestStartThatComesTooLate$"}, says: "somebody has to resolve the key"},
	{id: "M160", what: "after a conflict, which may be the echo of one's own write, a read that may be old", suite: store, testRun: testRun{pkg: cas, run: "^TestOldReadAfterARepeatedWrite$"}, says: "its first write has taken it"},
}

// Suites.
const (
	rulebook   = "rule book" // mistakes in a rule, in process; the name of the mistake stands in says
	unit       = "unit tests"
	store      = "store tests" // of one store, or those that every store passes
	simulation = verifyrecord.Simulation
	histories  = verifyrecord.Histories
	processes  = verifyrecord.Processes
	fuzz       = verifyrecord.Fuzz
)

const (
	mem    = "./lockstore/memstore"
	dynamo = "./lockstore/dynamostore"
	redis  = "./lockstore/redisstore"
	cas    = "./lockstore/casstore"
	once   = "./guard/idempotency"
)

var (
	// The rarest of its bugs shows in one seed of thirty.
	guardSimulation  = testRun{pkg: "./guard", run: "^TestSimulation$", env: "VERIFY_SEEDS=1000"}
	repeatSimulation = testRun{pkg: "./guard", run: "^TestRepeats$", env: "VERIFY_SEEDS=200"}
	dynamoSimulation = testRun{pkg: dynamo, run: "^TestTrustNeverOverlaps$", env: "VERIFY_SEEDS=30"}
	casSimulation    = testRun{pkg: cas, run: "^TestSimulation$", env: "VERIFY_SEEDS=300"}
	compared         = testRun{pkg: "./lockstore/storetest", run: "^(TestSuiteCatchesPlantedBugs|TestTheComparisonFindsMistakes)$"}
	induced          = testRun{pkg: "./internal/rules", run: "^TestInductionFindsMistakes$"}
)

// numbers is a case of the test of the guard's numbers.
func numbers(name string) testRun {
	return testRun{pkg: "./guard", run: "^TestNumbers$/^" + name}
}

// queueTest is a case of one of the guard's tests of waiting in a queue.
func queueTest(test, name string) testRun {
	return testRun{pkg: "./guard", run: "^Test" + test + "$/^" + name}
}

// onceTest is a case of a test of idempotency, or the whole test.
func onceTest(pkg, test, name string) testRun {
	run := "^Test" + test + "$"
	if name != "" {
		run += "/^" + name
	}
	return testRun{pkg: pkg, run: run}
}

func dynamoTest(name string) testRun { return testRun{pkg: dynamo, run: "^" + name + "$"} }

// redisCase is one case of the suite that every store passes, by the beginning of its name.
func redisCase(part, name string) testRun {
	return testRun{pkg: redis, run: "^TestConformanceVirtualTime$/^" + part + "$/^" + name}
}

func redisTest(name string) testRun { return testRun{pkg: redis, run: "^" + name + "$"} }
