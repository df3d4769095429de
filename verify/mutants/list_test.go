package mutants

import "github.com/lambdalock/lambdalock/internal/verifyrecord"

// mutants are the planted bugs, and the tests that have to catch them. Some bugs have
// a patch for each store.
var mutants = []mutant{
	{id: "M01", file: "M01-dynamodb", what: "acquire without a condition (DynamoDB)", suite: store, testRun: dynamoCase("acquire", "a_held_key_is_refused"), says: "want it held by another"},
	{id: "M01", file: "M01-redis", what: "acquire without a condition (Redis)", suite: store, testRun: redisCase("acquire", "a_held_key_is_refused"), says: "want it held by another"},
	{id: "M02", file: "M02-dynamodb", what: "expiry compared the wrong way (DynamoDB)", suite: store, testRun: dynamoCase("takeover", "not_before_the_TTL"), says: "granted 0s after the first acquire"},
	{id: "M02", file: "M02-redis", what: "expiry compared the wrong way (Redis)", suite: store, testRun: redisCase("takeover", "not_before_the_TTL"), says: "granted 0s after the first acquire"},
	{id: "M03", what: "the tolerance of whole seconds with the wrong sign", suite: simulation, testRun: dynamoSimulation, says: "two trust their lease at once"},
	{id: "M04", what: "release without a look at owner and fence", suite: store, testRun: redisCase("release", "another_owner"), says: "Release by another owner with the right fence: no error"},
	{id: "M05", what: "release without a look at the fence", suite: store, testRun: redisCase("release", "another_owner"), says: "Release with another fence: no error"},
	{id: "M06", what: "renew without a look at owner and fence", suite: store, testRun: redisCase("renew", "another_owner"), says: "Renew by another owner with the right fence: no error"},
	{id: "M07", what: "renew makes a lost lease anew", suite: store, testRun: redisCase("renew", "a_released_lease"), says: "Renew after the release: no error"},
	{id: "M08", what: "renew revives an expired lease", suite: simulation, testRun: redisSimulation, says: "M06 M08: the owner did not hold the key"},
	{id: "M09", what: "renew shortens a lease", suite: simulation, testRun: redisSimulation, says: "M09: the lease got shorter"},
	{id: "M10", what: "the fence stays what the first grant made it", suite: store, testRun: redisCase("fence", "grows_with_each_grant"), says: "the fence went from"},
	{id: "M11", what: "release deletes the entry, and the fence with it", suite: store, testRun: redisCase("fence", "grows_with_each_grant"), says: "the fence went from"},
	{id: "M12", what: "the fence moves when the key is busy", suite: store, testRun: redisCase("acquire", "a_refused_acquire"), says: "want the first one"},
	{id: "M13", what: "the fence from a counter in the process", suite: simulation, testRun: dynamoSimulation, says: "the fence did not grow"},
	{id: "M14", what: "the fence in 32 bits", suite: unit, testRun: testRun{pkg: "./lockstore", run: "^TestNextFence$"}, says: "actual  : 1167110144"},
	{id: "M15", what: "an owner's repeated acquire reads as busy", suite: store, testRun: redisCase("acquire", "again_returns_the_same"), says: "want the same lease"},
	{id: "M16", what: "an unknown outcome is taken as held", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M17", what: "an unknown outcome is taken as busy and not abandoned", suite: simulation, testRun: guardSimulation, says: "M17: busy, but the store never said so"},
	{id: "M18", what: "an unknown attempt is not abandoned", suite: simulation, testRun: guardSimulation, says: "M18"},
	{id: "M19", what: "a takeover after a stale read", suite: simulation, testRun: dynamoSimulation, says: "two trust their lease at once"},
	{id: "M20", what: "trust counts from the reply", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M21", what: "trust on the monotonic clock alone", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M22", what: "trust on the wall clock alone", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M23", what: "no margin", suite: simulation, testRun: guardSimulation, says: "found its context open, but the store has"},
	{id: "M24", what: "renewals go on after the handler", suite: simulation, testRun: guardSimulation, says: "M24: a renewal after the end of its work"},
	{id: "M25", what: "a lost lease does not cancel the work", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestRenewal$/^F35_F43"}, says: `in chain: "context deadline exceeded"`},
	{id: "M26", what: "the release uses the ended context", suite: simulation, testRun: guardSimulation, says: "M26: not released, and nothing was in the way"},
	{id: "M27", what: "a panic skips the release", suite: simulation, testRun: guardSimulation, says: "still holds the key after its run"},
	{id: "M28", what: "the owner is the request id", suite: processes, testRun: testRun{dir: "verify", pkg: "./processes", run: "^TestProcesses$/^redis_F01"}, says: "belongs to try"},
	{id: "M29", what: "two keys become one", suite: fuzz, testRun: testRun{pkg: redis, run: "^FuzzKeys$"}, says: `lock "A" is held by unknown`},
	{id: "M30", what: "check before subscribe", why: "there are no wake-ups"},
	{id: "M31", what: "a dead waiter blocks the queue", why: "waiters have no queue"},
	{id: "M32", what: "a new waiter overtakes the queue", why: "waiters have no queue"},
	{id: "M33", what: "a release wakes all waiters", why: "there are no wake-ups"},
	{id: "M35", what: "no EVAL after NOSCRIPT", suite: store, testRun: testRun{pkg: redis, run: "^TestScriptFlush$"}, says: "NOSCRIPT No matching script"},
	{id: "M36", what: "a server error is taken as busy", suite: store, testRun: testRun{pkg: redis, run: "^TestRefusalsAreUnavailable$"}, says: "is held by unknown"},
	{id: "M37", what: "a TTL in the wrong unit", suite: store, testRun: redisCase("takeover", "not_before_the_TTL"), says: "the lease may be trusted for 1ms"},
	{id: "M38", what: "the time to live in milliseconds", suite: store, testRun: testRun{pkg: dynamo, run: "^TestSweepTime$"}, says: "Acquire: 31972-02-06"},
	{id: "M39", what: "a duration that overflows", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestTooLate$/^F48"}, says: "actual  : 1s"},
	{id: "M40", what: "the owner in a log line", suite: unit, testRun: testRun{pkg: "./lockstore", run: "^TestOwnerIsNeverPrintedWhole$"}, says: `should not contain "secret"`},
	{id: "M41", what: "renew judges by the local clock", suite: store, testRun: dynamoTest("TestRenewByANewProcess"), says: "the lease has expired: lock is lost"},
	{id: "M42", what: "half the clock tolerance in the row", suite: store, testRun: dynamoTest("TestEdgeOfTheTakeover"), says: "taken over before its time"},
	{id: "M43", what: "half a second for the whole seconds of Date", suite: store, testRun: dynamoTest("TestEdgeOfTheTakeover"), says: "taken over before its time"},
	{id: "M44", what: "half the store's margin", suite: store, testRun: dynamoTest("TestEdgesOfAGrant"), says: "the trust in a grant"},
	{id: "M45", what: "an end that is too early is accepted for longer", suite: store, testRun: dynamoTest("TestEdgesOfAGrant"), says: "requests of a grant"},
	{id: "M46", what: "an end that is too late is corrected too soon", suite: store, testRun: dynamoTest("TestEdgesOfAGrant"), says: "requests of a grant"},
	{id: "M47", what: "rows are deleted after half a day", suite: store, testRun: dynamoTest("TestSweepTime"), says: "Acquire: 2000-01-01 13:00:02"},
	{id: "M48", what: "an abandoned acquire leaves a fence ahead of the time", suite: store, testRun: dynamoTest("TestAbandonWithAClockAhead"), says: "one request each"},
	{id: "M49", what: "a short renewal that ends too early", suite: store, testRun: dynamoTest("TestEdgeOfARenewal"), says: "requests of a renewal"},
	{id: "M50", what: "an entry is kept for half an hour after its lease", suite: store, testRun: redisTest("TestRetention"), says: "kept for"},
	{id: "M51", what: "an entry is kept for half an hour after its cooldown", suite: store, testRun: redisTest("TestRetention"), says: "kept for"},
	{id: "M52", what: "the mark of an abandoned owner shortens what is kept for another's lease", suite: store, testRun: redisTest("TestRetention"), says: "kept for"},
	{id: "M53", what: "half a second back is a step of the clock, to an acquire", suite: store, testRun: redisTest("TestEdges"), says: "want it held"},
	{id: "M54", what: "half a second back is a step of the clock, to an inspection", suite: store, testRun: redisTest("TestEdges"), says: "Messages:   \tInspect"},
	{id: "M55", what: "microseconds are rounded to the nearest", suite: store, testRun: redisTest("TestMicrosRoundsUp"), says: "microseconds of"},
	{id: "M56", what: "a request is written after its call has ended", suite: store, testRun: redisTest("TestCallsEndWithTheirContext"), says: "written after the call has ended"},
	{id: "M57", what: "a call waits for its answer after its context", suite: store, testRun: redisTest("TestCallsEndWithTheirContext"), says: "the call goes on after its context"},
	{id: "M58", what: "fences end at 2^52", suite: store, testRun: redisTest("TestServerClockJumps"), says: "Received unexpected error"},
	{id: "M59", what: "a lease ends a microsecond late", suite: store, testRun: redisTest("TestEdges"), says: "is held by"},
	{id: "M60", what: "a shorter renewal after a step back shortens what is kept", suite: store, testRun: redisTest("TestRetention"), says: "kept for"},
	{id: "M61", what: "an unwritten EVAL hides that an earlier attempt may have been applied", suite: store, testRun: redisTest("TestUnwrittenEvalAfterALostReplyIsUnknown"), says: "lock store is unavailable"},
	{id: "M62", what: "half the margin", suite: unit, testRun: numbers("margin$"), says: "the margin is 250 ms"},
	{id: "M63", what: "renewed after a sixth of the first lease", suite: unit, testRun: numbers("thirds"), says: "a lease is renewed after each third"},
	{id: "M64", what: "renewed after a sixth of a later lease", suite: unit, testRun: numbers("thirds"), says: "a lease is renewed after each third"},
	{id: "M65", what: "half the reserve", suite: unit, testRun: numbers("reserve$"), says: "the reserve is 300 ms"},
	{id: "M66", what: "half the least work", suite: unit, testRun: numbers("least_work"), says: "the least work is 100 ms"},
	{id: "M67", what: "half of the shortest time for a call", suite: unit, testRun: numbers("call_time_of_acquire$"), says: "and at least 200 ms"},
	{id: "M68", what: "half the time for a call", suite: unit, testRun: numbers("call_time_of_a_poll$"), says: "a poll has 2 s"},
	{id: "M69", what: "half the retry time for a store that fails", suite: unit, testRun: numbers("retry_time"), says: "a store that fails is asked for 5 s"},
	{id: "M70", what: "half the time for a release", suite: unit, testRun: numbers("release_time$"), says: "a release has 1 s"},
	{id: "M71", what: "half the time for a release after Shutdown", suite: unit, testRun: numbers("release_after_Shutdown$"), says: "until 300 ms after Shutdown"},
	{id: "M72", what: "Shutdown does not shorten a release that is under way", suite: unit, testRun: numbers("release_after_Shutdown$"), says: "a release that is under way has until 300 ms after Shutdown"},
	{id: "M73", what: "half the time for the answer", suite: unit, testRun: numbers("answer_time"), says: "100 ms are kept for the answer"},
	{id: "M74", what: "a lease ends half a second after the run", suite: unit, testRun: numbers("slack$"), says: "a lease ends 1 s after the run"},
	{id: "M75", what: "half the first pause", suite: unit, testRun: numbers("pauses$"), says: "pauses are random up to 50 ms"},
	{id: "M76", what: "half the longest pause", suite: unit, testRun: numbers("pauses$"), says: "doubled up to 1 s"},
	{id: "M77", what: "clocks may differ by half more", suite: unit, testRun: numbers("clock_noise$"), says: "clocks that differ by 10 ms and less"},
	{id: "M78", what: "no renewal when the trust ends with the work's time", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestWhoNeverRenews$"}, says: "the lease outlasts the work's time"},
	{id: "M79", what: "a store that goes down makes a lost reply undone", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestAnUnknownOutcomeIsKept$/^F24_F25_F76_down_after_a_re"}, says: "that would say that nothing was applied"},
	{id: "M80", what: "busy, though the own attempt could not be abandoned", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestWhatCannotBeAbandonedIsUnknown$"}, says: "it may be granted later: unknown"},
	{id: "M81", what: "a takeover 1 ms early", suite: store, testRun: memCase("takeover", "not_before_the_lease's_end"), says: "granted to another"},
	{id: "M82", what: "a lease is live at the instant of its end", suite: unit, testRun: testRun{pkg: mem, run: "^TestExactTimes$"}, says: "lost from the instant of its end on"},
	{id: "M83", what: "the end of a lease is cut to whole seconds", suite: store, testRun: memCase("takeover", "not_before_the_lease's_end"), says: "granted to another"},
	{id: "M84", what: "a renewal for less than is left shortens the trust", suite: store, testRun: memCase("renew", "never_shortens_F27"), says: "a renewal for 1m0s may be trusted for 1m0s"},
	{id: "M85", what: "a cooldown ends 1 ms early", suite: store, testRun: memCase("cooldown", "not_shorter"), says: "granted to another"},
	{id: "M86", what: "one owner less is remembered", suite: unit, testRun: testRun{pkg: mem, run: "^TestRemembersEndedOwners$"}, says: "memory is bounded"},
	{id: "M87", what: "the end of a call does not reach its connection", suite: store, testRun: redisTest("TestCallsEndWithTheirContext"), says: "the call goes on after its context"},
	{id: "M88", what: "several keys are locked in the caller's order", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestDoAllInOppositeOrders$/^F61_two_callers"}, says: "is busy: held by"},
	{id: "M89", what: "with several leases, only the last is checked", suite: unit, testRun: testRun{pkg: "./guard", run: "^TestDoAllLosesOneLease$/^F08_a_freeze_that_is_too_long"}, says: "An error is expected but got nil"},
}

// Suites.
const (
	unit       = "unit tests"
	store      = "store tests" // of one store, or those that every store passes
	simulation = verifyrecord.Simulation
	processes  = verifyrecord.Processes
	fuzz       = verifyrecord.Fuzz
)

const (
	mem    = "./lockstore/memstore"
	dynamo = "./lockstore/dynamostore"
	redis  = "./lockstore/redisstore"
)

var (
	// The rarest of its bugs shows in one seed of thirty.
	guardSimulation  = testRun{pkg: "./guard", run: "^TestSimulation$", env: "VERIFY_SEEDS=1000"}
	dynamoSimulation = testRun{pkg: dynamo, run: "^TestTrustNeverOverlaps$"}
	redisSimulation  = testRun{pkg: redis, run: "^TestSimulation$"}
)

// numbers is a case of the test of the guard's numbers.
func numbers(name string) testRun {
	return testRun{pkg: "./guard", run: "^TestNumbers$/^" + name}
}

// memCase, dynamoCase and redisCase are one case of the suite that every store passes, by
// the beginning of its name.

func memCase(part, name string) testRun {
	return testRun{pkg: mem, run: "^TestStore$/^" + part + "$/^" + name}
}

func dynamoCase(part, name string) testRun {
	return testRun{pkg: dynamo, run: "^TestStoreOnTheFake$/^" + part + "$/^" + name}
}

func dynamoTest(name string) testRun { return testRun{pkg: dynamo, run: "^" + name + "$"} }

func redisCase(part, name string) testRun {
	return testRun{pkg: redis, run: "^TestConformanceVirtualTime$/^" + part + "$/^" + name}
}

func redisTest(name string) testRun { return testRun{pkg: redis, run: "^" + name + "$"} }
