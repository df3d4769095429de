package clienttest

import (
	"os"
	"time"

	"github.com/stretchr/testify/require"
)

// situations are what the programs get into. only names those that it is for.
var situations = []struct {
	name, only string
	run        func(*harness)
}{
	{"renews while the job runs, then releases", "", func(h *harness) {
		p, fence := h.begin(short)
		granted := time.Now()
		state := h.state()
		require.True(h, state.State == "held" && state.Fence == fence, "the key is another one: %s", state.text)
		host, err := os.Hostname()
		require.NoError(h, err)
		require.Contains(h, state.text, " on "+host, "the holder says where it is")
		h.until("three renewals, and the end of the first lease", func() bool {
			return len(h.proxy.seen("PATCH", 200)) >= 3 && time.Since(granted) > ttl
		})
		all := h.proxy.seen("PATCH", 200)
		require.Greater(h, all[2].at.Sub(all[0].at), ttl/2, "it renews too often")
		require.Equal(h, 409, h.put().status, "the lock is held")
		h.ends(p, 0, fence)
		for _, e := range h.proxy.seen("", 0) {
			require.Equal(h, h.program.authorization, e.request.Get("Authorization"), e.method)
		}
	}},
	{"F64 two at once do not overlap", "", func(h *harness) {
		first, fence := h.begin()
		h.exits(h.start(), 75)
		second := h.start("LOCKS_WAIT=900")
		h.until("refusals", func() bool { return len(h.proxy.seen("PUT", 409)) >= 4 })
		refusals := h.proxy.seen("PUT", 409)[1:] // the first is of the program that did not wait
		for i, e := range refusals[1:] {
			pause, err := time.ParseDuration(refusals[i].header.Get("Retry-After") + "s")
			require.NoError(h, err)
			require.GreaterOrEqual(h, e.at.Sub(refusals[i].at), pause, "it asked again too soon")
		}
		require.Zero(h, second.said("fence"), "it did not wait")
		h.openGate()
		h.exits(first, 0)
		next := h.begun(second)
		h.exits(second, 0)
		require.Greater(h, next, fence)
		require.NotContains(h, first.text.String()+second.text.String(), "overlap")
		h.free(next)
	}},
	{"waits no longer than it was told to", "", func(h *harness) {
		h.proxy.plan("PUT", cooldown, cooldown, cooldown)
		h.exits(h.start("LOCKS_WAIT=3"), 75) // long before the hour is over, or it would be killed
	}},
	{"F23 the reply of acquire is lost", "", func(h *harness) {
		h.proxy.plan("PUT", unavailable, lost)
		p, fence := h.begin()
		h.until("tries", func() bool { return len(h.proxy.seen("PUT", 200)) >= 2 })
		tries := h.proxy.seen("PUT", 0)
		for i, e := range tries {
			require.NotEmpty(h, e.again())
			require.Equal(h, tries[0].again(), e.again(), "the Idempotency-Keys")
			require.True(h, i == 0 || e.Fence == fence, "the job has the fence %d, not %d", fence, e.Fence)
		}
		h.ends(p, 0, fence)
	}},
	{"F11 the lease ends before its grant arrives", "", func(h *harness) {
		h.proxy.plan("PUT", lostAndEnded)
		p, fence := h.begin()
		tries := h.proxy.seen("PUT", 0)
		require.Len(h, tries, 3)
		require.True(h, tries[1].status == 422 && tries[1].again() == tries[0].again(), "the second answer is %d", tries[1].status)
		require.True(h, tries[2].again() != tries[0].again() && tries[2].Fence == fence, "the lease of the third try has the fence %d", tries[2].Fence)
		h.ends(p, 0, fence)
	}},
	{"F01 killed", "", func(h *harness) {
		p, fence := h.begin(short)
		require.Equal(h, 409, h.put().status, "the lock is held")
		require.NoError(h, p.Cancel())
		h.takeOver(time.Now(), fence)
	}},
	{"F05 the job fails", "", func(h *harness) {
		p, fence := h.begin("JOB_STATUS=3")
		h.ends(p, 3, fence)
	}},
	{"F69 ended by a signal", "cron.sh lock.py", func(h *harness) {
		p, fence := h.begin()
		require.NoError(h, p.Process.Signal(h.program.signal))
		h.exits(p, 128+int(h.program.signal))
		h.free(fence)
	}},
	{"F07 stopped for longer than the lease", "", func(h *harness) {
		p, fence := h.begin(short)
		p.signalAll(h, "STOP")
		next := h.takeOver(time.Now(), fence)
		taken := time.Now()
		p.signalAll(h, "CONT")
		h.exits(p, 79)
		if h.program.checks {
			require.True(h, p.lastTick().Before(taken), "it went on")
		}
		state := h.state()
		require.True(h, state.State == "held" && state.Fence == next.Fence, "the next holder's lease is gone: %s", state.text)
		h.release(next)
	}},
	{"F32 cut off", "", func(h *harness) {
		p, fence := h.begin(short)
		h.proxy.plan("", cut)
		since := time.Now()
		h.takeOver(since, fence)
		taken := time.Now()
		h.exits(p, 79)
		require.True(h, p.lastTick().Before(taken), "the job ran on after %v", p.lastTick().Sub(since))
	}},
	{"F35 the lease is gone", "", func(h *harness) {
		h.proxy.plan("PATCH", ended)
		p, fence := h.begin(short)
		h.exits(p, 79)
		require.Len(h, h.proxy.seen("PATCH", 0), 1, "requests for a lease that was lost")
		h.free(fence)
	}},
	{"F35 the lease is gone, told by the signal", "lock.mjs", func(h *harness) {
		h.proxy.plan("PATCH", ended)
		p, _ := h.begin(short, "JOB_WAITS=1")
		h.exits(p, 79)
		require.Contains(h, p.text.String(), "aborted")
	}},
	{"signs when it has credentials", "cron.sh", func(h *harness) {
		p, fence := h.begin("AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=a/secret+of=no_one", "AWS_SESSION_TOKEN=a/session+token==", "AWS_REGION=eu-central-1")
		h.ends(p, 0, fence)
		day := time.Now().UTC().Format("20060102")
		for _, e := range h.proxy.seen("", 0) {
			require.Contains(h, e.request.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"+day+"/eu-central-1/execute-api/aws4_request")
			require.Equal(h, "a/session+token==", e.request.Get("X-Amz-Security-Token"))
		}
	}},
	{"refuses settings that it cannot use", "cron.sh", func(h *harness) {
		for _, c := range []struct{ setting, text string }{
			{"LOCKS_TTL=9", "LOCKS_TTL is 9; want 10 to 900"},
			{"LOCKS_TTL=901", "LOCKS_TTL is 901; want 10 to 900"},
			{"LOCKS_TTL=060", "LOCKS_TTL is 060; want 10 to 900"},
			{"LOCKS_WAIT=08", "LOCKS_WAIT is 08; want whole seconds"},
			{"LOCKS_URL=" + h.proxy.URL + "/locks", "want it without a path"},
			{"LOCKS_URL=http://127.0.0.1:port", "KEY: spell it as in a URL"},
			{"AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_REGION is not set"},
		} {
			p := h.start(c.setting)
			h.exits(p, 64)
			require.Contains(h, p.text.String(), c.text, c.setting)
		}
		require.Empty(h, h.proxy.seen("", 0), "it asked all the same")
	}},
}
