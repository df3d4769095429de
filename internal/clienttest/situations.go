package clienttest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// situations are what the programs get into. only names those that it is for.
var situations = []struct {
	name, only string
	run        func(*scene)
}{
	{"renews while the job runs, then releases", "", renews},
	{"F64 two at once do not overlap", "", twoAtOnce},
	{"F23 the answer to acquire is lost", "", answerLost},
	{"F11 the lease ends before its answer is had", "", endedUnseen},
	{"F01 killed", "", killed},
	{"F05 the job fails", "", jobFails},
	{"F69 ended by a signal", "cron.sh lock.py", signalled},
	{"F07 stopped for longer than the lease", "", stopped},
	{"F32 cut off", "", cutOff},
	{"F35 the lease is gone", "", gone},
	{"F35 the lease is gone, told by the signal", "lock.mjs", signalTells},
	{"signs when it has credentials", "cron.sh", signs},
	{"refuses settings that it cannot use", "cron.sh", refuses},
}

// those are the requests of the method that had this answer; 0 is any.
func those(all []exchange, method string, status int) []exchange {
	return slices.DeleteFunc(slices.Clone(all), func(e exchange) bool {
		return e.method != method || status != 0 && e.status != status
	})
}

// atLeast is true when there are so many of those.
func atLeast(n int, method string, status int) func([]exchange) bool {
	return func(all []exchange) bool { return len(those(all, method, status)) >= n }
}

func renews(s *scene) {
	p := s.start()
	fence := s.begun(p)
	state := s.state()
	s.want(state.Held && state.Fence == fence, "the key is another one: %s", state.text)
	host, err := os.Hostname()
	s.must(err)
	s.want(strings.Contains(string(state.text), " on "+host), "the holder does not say where it is: %s", state.text)
	// The fourth comes after the first lease's end.
	all := those(s.until("renewals", atLeast(4, "PATCH", 200)), "PATCH", 200)
	s.want(all[3].at.Sub(all[0].at) > s.service.TTL*2/3, "it renews after %v", all[1].at.Sub(all[0].at))
	s.busy()
	s.openGate()
	s.exits(p, 0)
	s.free(fence)
	for _, e := range s.wire.seen.list() {
		s.want(e.authorization == s.program.authorization, "%s has the Authorization %q", e.method, e.authorization)
	}
}

func twoAtOnce(s *scene) {
	first := s.start()
	fence := s.begun(first)
	s.exits(s.start(), 75)
	second := s.start("LOCKS_WAIT=60")
	// The first is of the program that did not wait.
	refusals := those(s.until("refusals", atLeast(4, "PUT", 409)), "PUT", 409)[1:]
	for i, e := range refusals[1:] {
		pause := e.at.Sub(refusals[i].at)
		s.want(pause >= refusals[i].retryAfter, "it asked again after %v; want %v", pause, refusals[i].retryAfter)
	}
	s.want(last(second.out.list(), "begin ") == "", "it did not wait")
	s.openGate()
	s.exits(first, 0)
	next := s.begun(second)
	s.exits(second, 0)
	s.want(next > fence, "the fence %d follows %d", next, fence)
	for _, p := range []*process{first, second} {
		s.want(!strings.Contains(p.tail(), "overlap"), "they overlap")
	}
	s.free(next)
}

func answerLost(s *scene) {
	s.wire.plan("PUT", unavailable, lost)
	p := s.start()
	fence := s.begun(p)
	tries := those(s.until("tries", atLeast(2, "PUT", 200)), "PUT", 0)
	for i, e := range tries {
		s.want(e.again != "" && e.again == tries[0].again, "the Idempotency-Keys are %q and %q", tries[0].again, e.again)
		s.want(i == 0 || e.Fence == fence, "the job has the fence %d, not %d", fence, e.Fence)
	}
	s.openGate()
	s.exits(p, 0)
	s.free(fence)
}

func endedUnseen(s *scene) {
	s.wire.plan("PUT", lostAndEnded)
	p := s.start()
	fence := s.begun(p)
	tries := those(s.wire.seen.list(), "PUT", 0)
	s.want(len(tries) == 3, "it asked %d times", len(tries))
	s.want(tries[1].status == 422 && tries[1].again == tries[0].again, "the second answer is %d", tries[1].status)
	s.want(tries[2].again != tries[0].again && tries[2].Fence == fence, "the lease of the third try has the fence %d", tries[2].Fence)
	s.openGate()
	s.exits(p, 0)
	s.free(fence)
}

func killed(s *scene) {
	p := s.start()
	fence := s.begun(p)
	s.busy()
	p.kill()
	s.takeOver(time.Now(), fence)
}

func jobFails(s *scene) {
	p := s.start("JOB_STATUS=3")
	fence := s.begun(p)
	s.openGate()
	s.exits(p, 3)
	s.free(fence)
}

func signalled(s *scene) {
	p := s.start()
	fence := s.begun(p)
	s.must(p.cmd.Process.Signal(s.program.signal))
	s.exits(p, 128+int(s.program.signal))
	s.free(fence)
}

func stopped(s *scene) {
	p := s.start()
	fence := s.begun(p)
	s.must(p.signalAll(syscall.SIGSTOP))
	next := s.takeOver(time.Now(), fence)
	taken := time.Now()
	s.must(p.signalAll(syscall.SIGCONT))
	s.exits(p, 70)
	if s.program.checks {
		s.want(s.lastTick(p).Before(taken), "it went on")
	}
	state := s.state()
	s.want(state.Held && state.Fence == next.Fence, "the next holder's lease is gone: %s", state.text)
	s.giveBack(next)
}

func cutOff(s *scene) {
	p := s.start()
	fence := s.begun(p)
	s.wire.cut()
	since := time.Now()
	s.takeOver(since, fence)
	taken := time.Now()
	s.exits(p, 70)
	s.want(s.lastTick(p).Before(taken), "the job ran on after %v", s.lastTick(p).Sub(since))
}

func gone(s *scene) {
	s.wire.plan("PATCH", ended)
	p := s.start()
	fence := s.begun(p)
	s.exits(p, 70)
	n := len(those(s.wire.seen.list(), "PATCH", 0))
	s.want(n == 1, "it asked %d times for a lease that was lost", n)
	s.free(fence)
}

func signalTells(s *scene) {
	s.wire.plan("PATCH", ended)
	p := s.start("JOB_WAITS=1")
	s.begun(p)
	s.exits(p, 70)
	s.want(strings.Contains(p.tail(), "aborted"), "the job heard nothing")
}

func signs(s *scene) {
	p := s.start("AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=a/secret+of=no_one", "AWS_SESSION_TOKEN=a/session+token==", "AWS_REGION=eu-central-1")
	fence := s.begun(p)
	s.openGate()
	s.exits(p, 0)
	s.free(fence)
	day := time.Now().UTC().Format("20060102")
	for _, e := range s.wire.seen.list() {
		s.want(strings.HasPrefix(e.authorization, fmt.Sprintf("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/%s/eu-central-1/execute-api/aws4_request", day)) && e.session == "a/session+token==",
			"%s is signed by %q", e.method, e.authorization)
	}
}

func refuses(s *scene) {
	for _, c := range []struct{ setting, text string }{
		{"LOCKS_TTL=9", "LOCKS_TTL is 9; want 10 to 900"},
		{"LOCKS_TTL=901", "LOCKS_TTL is 901; want 10 to 900"},
		{"LOCKS_TTL=060", "LOCKS_TTL is 060; want 10 to 900"},
		{"LOCKS_WAIT=08", "LOCKS_WAIT is 08; want whole seconds"},
		{"LOCKS_URL=" + s.wire.url + "/locks", "want it without a path"},
		{"LOCKS_URL=http://127.0.0.1:port", "KEY: spell it as in a URL"},
		{"AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_REGION is not set"},
	} {
		p := s.start(c.setting)
		s.exits(p, 64)
		s.want(strings.Contains(p.tail(), c.text), "%s: it says %q", c.setting, p.tail())
	}
	s.want(len(s.wire.seen.list()) == 0, "it asked all the same")
}
