package clienttest

import (
	"crypto/rand"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
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
			require.Equal(h, bearer, e.request.Get("Authorization"), e.method)
			require.Equal(h, []string{"application/json"}, e.request["Content-Type"], e.method)
			if e.method != "DELETE" {
				require.Regexp(h, `"ttl": ?30[,}]`, e.body, "ttl is the whole number that the program has")
			}
		}
	}},
	{"one Lock for one with at a time", "lock.py", func(h *harness) {
		h.proxy.plan("PUT", busy("1")) // of the first of three
		p, fence := h.begin("JOB_TWICE=1")
		require.Len(h, h.proxy.seen("PUT", 0), 3)
		h.ends(p, 0, fence)
		require.Contains(h, p.text.String(), "a Lock is for one with at a time")
	}},
	{"without ttl and wait", "", func(h *harness) { // 60 s and 0, as the programs say
		p, fence := h.begin("LOCKS_TTL=", "LOCKS_WAIT=")
		for _, e := range h.proxy.seen("PUT", 0) {
			require.Regexp(h, `"ttl": ?60[,}]`, e.body)
		}
		h.exits(h.start("LOCKS_TTL=", "LOCKS_WAIT="), 75)
		require.Len(h, h.proxy.seen("PUT", 409), 1, "it asked once")
		h.ends(p, 0, fence)
	}},
	{"F08 frozen, and the monotonic clock stood still", "", func(h *harness) {
		h.openGate()
		h.exits(h.start("JOB_FROZEN=begin"), 79)
	}},
	{"F08 frozen after the last check", "", func(h *harness) {
		h.openGate()
		h.exits(h.start("JOB_FROZEN=end"), 79)
	}},
	{"F08 frozen while a renewal is waited for, after the job", "", func(h *harness) {
		p, fence := h.begin(short, "JOB_FROZEN=renewal")
		h.until("a renewal", func() bool { return p.said("renewing") > 0 })
		h.ends(p, 0, fence)
	}},
	{"headers that are none", "", func(h *harness) {
		h.openGate()
		h.exits(h.start("JOB_BARE=1"), 0)
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
	{"gets the lock in the order of arrival", "", func(h *harness) {
		held := h.put()
		var asked atomic.Int32
		h.proxy.plan("PUT", slices.Repeat([]act{func(p *passing) (answer, bool) {
			asked.Add(1)
			return pass(p)
		}}, 100)...)
		p := h.start("LOCKS_WAIT=900")
		h.until("its place", func() bool { return h.state().Waiting == 1 })
		rival := make(chan answer, 1)
		key := rand.Text()
		go func() {
			for { // it asks again at once
				a, err := do(h.Context(), "PUT", h.url, http.Header{"Idempotency-Key": {key}}, []byte(`{"ttl": 900, "wait": 20}`))
				if err != nil || a.status != 409 {
					rival <- a
					return
				}
			}
		}()
		h.until("the place of the rival", func() bool { return h.state().Waiting == 2 })
		h.until("further requests, which keep the place", func() bool { return asked.Load() >= 3 })
		h.release(held)
		fence := h.begun(p)
		h.openGate()
		h.exits(p, 0)
		next := <-rival
		require.Equal(h, 200, next.status, next.text)
		require.Greater(h, next.Fence, fence, "the rival came first")
		h.release(next)
	}},
	{"one waits for all", "", func(h *harness) {
		first, fence := h.begin()
		index := func(event string) *process {
			return h.start("LOCKS_WAIT=900", "LOCKS_COALESCE=index", "LOCKS_EVENT="+event)
		}
		second := index("1")
		h.until("its place", func() bool { return h.state().Waiting == 1 })
		h.exits(index("2"), 76)
		h.exits(h.start("LOCKS_WAIT=0", "LOCKS_COALESCE=index", "LOCKS_EVENT=2"), 1)
		h.exits(h.start("LOCKS_WAIT=900", "LOCKS_COALESCE=index"), 1)
		h.exits(h.start("LOCKS_WAIT=900", "LOCKS_EVENT=2"), 1)
		again := index("1")
		h.until("the place of its other try", func() bool { return h.state().Waiting == 2 })
		h.openGate()
		h.exits(first, 0)
		last := max(h.begun(second), h.begun(again)) // in any order: who is slow to ask again may come too late for its turn
		require.Greater(h, last, fence)
		h.exits(second, 0)
		h.exits(again, 0)
		h.free(last)
	}},
	{"waits no longer than it was told to", "", func(h *harness) {
		h.proxy.plan("PUT", busy("3600"), busy("3600"), busy("3600"))
		h.exits(h.start("LOCKS_WAIT=3", "LOCKS_TTL=6"), 75) // long before the hour is over, or it would be killed
		require.Regexp(h, `"wait": ?2[,}]`, h.proxy.seen("PUT", 0)[0].body, "a lease counts from the request, so two thirds of it are left")
	}},
	{"asks once for a key in doubt", "", func(h *harness) {
		h.proxy.plan("PUT", body(409, `{"code": "in-doubt", "holder": {"name": "me"}}`))
		p := h.start("LOCKS_WAIT=900")
		h.exits(p, 80)
		require.Len(h, h.proxy.seen("PUT", 0), 1)
		require.Zero(h, p.said("fence"), "the job began")
	}},
	{"F23 the reply of acquire is lost", "", func(h *harness) {
		h.proxy.plan("PUT", unavailable, lose)
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
	{"F23 the reply of acquire is lost, and others hold the lock", "", func(h *harness) {
		held := h.put()
		late := func(*passing) (answer, bool) { return answer{}, true } // the service may get the request later
		for _, c := range []struct {
			plan   []act
			status int
		}{
			{[]act{late}, 1},
			{[]act{body(503, `{"code": "unknown"}`), notReady}, 1},
			{[]act{notReady}, 75}, // nothing was done
			{[]act{late, body(422, `{"code": "ended"}`)}, 75},
			{append([]act{late}, slices.Repeat([]act{body(409, `{"code": "covered"}`)}, 5)...), 1},
		} {
			h.proxy.plan("PUT", c.plan...)
			p := h.start()
			h.exits(p, c.status)
			require.Equal(h, c.status == 1, strings.Contains(p.text.String(), "it is free after 900 s"), "%s", &p.text)
		}
		h.release(held)
	}},
	{"F23 the reply of acquire is lost, and is no doubt for ever", "", func(h *harness) {
		for wait, status := range map[string]int{"20": 1, "40": 75} {
			h.proxy.plan("PUT", append([]act{unavailable}, slices.Repeat([]act{busy("10")}, 10)...)...)
			h.exits(h.start("LOCKS_WAIT="+wait, "JOB_CLOCK=1"), status)
		}
	}},
	{"F11 the lease ends before its grant arrives", "", func(h *harness) {
		h.proxy.plan("PUT", loseAndEnd)
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
		require.NoError(h, p.Process.Kill())
		h.takeOver(time.Now().Add(ttl), fence)
	}},
	{"F05 the job fails", "", func(h *harness) {
		p, fence := h.begin("JOB_STATUS=3")
		h.ends(p, 3, fence)
	}},
	{"F69 ended by a signal", "lock.py", func(h *harness) {
		p, fence := h.begin()
		require.NoError(h, p.Process.Signal(syscall.SIGINT))
		h.exits(p, 130)
		h.free(fence)
	}},
	{"F07 stopped for longer than the lease", "", func(h *harness) {
		p, fence := h.begin(short)
		require.NoError(h, p.Process.Signal(syscall.SIGSTOP))
		next := h.takeOver(time.Now().Add(ttl), fence)
		taken := time.Now()
		require.NoError(h, p.Process.Signal(syscall.SIGCONT))
		h.exits(p, 79)
		require.True(h, p.lastTick().Before(taken), "it went on")
		state := h.state()
		require.True(h, state.State == "held" && state.Fence == next.Fence, "the next holder's lease is gone: %s", state.text)
		h.release(next)
	}},
	{"F32 cut off", "", func(h *harness) {
		p, fence := h.begin(short)
		h.proxy.cut.Store(true)
		since := time.Now()
		h.takeOver(since.Add(ttl), fence)
		taken := time.Now()
		h.exits(p, 79)
		require.True(h, p.lastTick().Before(taken), "the job ran on after %v", p.lastTick().Sub(since))
	}},
	{"F35 the lease is gone", "", func(h *harness) {
		h.proxy.plan("PATCH", endBefore)
		p, fence := h.begin(short)
		h.exits(p, 79)
		require.Len(h, h.proxy.seen("PATCH", 0), 1, "requests for a lease that was lost")
		h.free(fence)
	}},
	{"F35 the lease is gone, told by the signal", "lock.mjs", func(h *harness) {
		h.proxy.plan("PATCH", endBefore)
		p, _ := h.begin(short, "JOB_WAITS=1")
		h.exits(p, 79)
		require.Contains(h, p.text.String(), "aborted")
	}},
	{"F31 no renewal succeeds, and the signal comes when the lease ends", "lock.mjs", func(h *harness) {
		h.proxy.plan("PUT", flawed("expiresIn", "1"))
		h.proxy.plan("PATCH", slices.Repeat([]act{unavailable}, 100)...)
		p, fence := h.begin("JOB_WAITS=1", "JOB_CLOCK=1")
		h.exits(p, 79)
		require.Contains(h, p.text.String(), "aborted at 1000 ms")
		h.free(fence)
	}},
	{"renews a lease of which the wait has left less than a third", "", func(h *harness) {
		h.proxy.plan("PUT", flawed("expiresIn", "25"))
		p, fence := h.begin("LOCKS_TTL=90")
		h.until("a renewal, or the end of the job", func() bool { return len(h.proxy.seen("PATCH", 200))+len(h.proxy.seen("DELETE", 0)) > 0 })
		require.NotEmpty(h, h.proxy.seen("PATCH", 200))
		h.ends(p, 0, fence)
	}},
	{"F28 renews after a request that has no answer", "", func(h *harness) {
		h.proxy.plan("PATCH", func(*passing) (answer, bool) {
			<-h.Context().Done()
			return answer{}, true
		})
		p, fence := h.begin(short)
		granted := time.Now()
		h.until("the end of the first lease", func() bool { return time.Since(granted) > ttl })
		require.NotEmpty(h, h.proxy.seen("PATCH", 200))
		h.ends(p, 0, fence)
	}},
	{"F28 a renewal that has no answer holds up no release", "", func(h *harness) {
		asked := make(chan time.Time, 1)
		h.proxy.plan("PATCH", func(*passing) (answer, bool) {
			asked <- time.Now()
			<-h.Context().Done()
			return answer{}, true
		})
		p, fence := h.begin("LOCKS_TTL=180") // the first renewal is after 60 s, and a third of the rest is 40 s
		var began time.Time
		h.until("a renewal", func() bool {
			select {
			case began = <-asked:
				return true
			default:
				return false
			}
		})
		h.ends(p, 0, fence)
		require.Less(h, time.Since(began), 20*time.Second+late)
		released := h.proxy.seen("DELETE", 0)[0].at
		require.Greater(h, released.Sub(began), 5*time.Second, "the release did not wait until the program gave up the renewal, which takes 10 s")
	}},
	{"answers that are no lease, to acquire", "", func(h *harness) {
		plan := []act{}
		for i, flaw := range noLeases() {
			if plan = append(plan, flaw); i%5 == 4 {
				plan = append(plan, busy("1")) // it gives up after six in a row
			}
		}
		h.proxy.plan("PUT", append(plan, whole)...)
		p, fence := h.begin("LOCKS_WAIT=900")
		tries := h.proxy.seen("PUT", 0)
		require.Len(h, tries, len(plan)+1, "the job began with an answer that is no lease: %s", tries[len(tries)-1].text)
		for _, e := range tries {
			require.Equal(h, tries[0].again(), e.again(), "the Idempotency-Keys")
		}
		require.Equal(h, h.state().Fence, fence)
		h.ends(p, 0, fence)
	}},
	{"answers that are no lease, to renew", "", noRenewal},
	{"renews after headers that cannot be made, and answers that are no lease", "", func(h *harness) {
		h.proxy.plan("PATCH", noLeases()[:3]...)
		p, fence := h.begin(short, "JOB_THROWS=2")
		granted := time.Now()
		h.until("the end of the first lease", func() bool { return time.Since(granted) > ttl })
		require.NotEmpty(h, h.proxy.seen("PATCH", 200))
		h.ends(p, 0, fence)
	}},
	{"answers that are none, to release", "", func(h *harness) {
		h.openGate() // the job ends at once
		for i, flaw := range []act{
			body(200, ""), body(200, "{}"), body(200, "null"), body(404, "null"), body(404, "<html>no</html>"), body(404, `{"code": ["no-lease"]}`), body(503, "[1]"), body(307, ""),
			whole, body(200, strings.Repeat(" ", 1<<20)),
		} {
			h.proxy.plan("DELETE", flaw, flaw)
			p, fence := h.begin()
			h.exits(p, 0)
			h.free(fence)
			require.Len(h, h.proxy.seen("DELETE", 0), 3*(i+1))
		}
	}},
	{"pauses before it releases again", "", func(h *harness) {
		h.proxy.plan("DELETE", unavailable, unavailable)
		p, fence := h.begin()
		h.ends(p, 0, fence)
		tries := h.proxy.seen("DELETE", 0)
		require.Len(h, tries, 3)
		for i, e := range tries[1:] {
			require.GreaterOrEqual(h, e.at.Sub(tries[i].at), time.Second)
		}
	}},
	{"F25 the reply of release is lost", "", func(h *harness) {
		h.openGate() // the job ends at once
		for _, c := range []struct {
			plan   []act
			status int
		}{
			{[]act{lose, noLease}, 0},
			{[]act{body(503, `{"code": "unknown"}`), notReady, noLease}, 0},
			{[]act{notReady, noLease}, 79}, // nothing was done
			{[]act{noLease}, 79},
		} {
			h.proxy.plan("DELETE", c.plan...)
			p, fence := h.begin()
			h.exits(p, c.status)
			h.free(fence)
		}
	}},
	{"refusals that are not the service's, and odd ones of its own", "", func(h *harness) {
		h.proxy.plan("PUT", body(409, ""), body(409, "null"), body(422, "{}"), body(422, `{"code": 7}`), busy("-1"),
			body(503, `{"code": null, "detail": {}}`), body(500, "[]"), busy("1e999"), busy("[]"), busy(`"x"`), busy("null"), busy("0"), busy("4"))
		began := time.Now()
		p, fence := h.begin("LOCKS_WAIT=900")
		tries := h.proxy.seen("PUT", 0)
		require.GreaterOrEqual(h, time.Since(began), time.Duration(len(tries)-1+3)*time.Second, "it asked again too soon")
		for _, e := range tries {
			require.Equal(h, tries[0].again(), e.again(), "the Idempotency-Keys")
		}
		h.ends(p, 0, fence)
		for _, holder := range []string{"null", "7", "[]", `{"name": 7}`, `{"name": "a\u001b[2Jb"}`} {
			h.proxy.plan("PUT", body(409, `{"code": "busy", "holder": `+holder+`}`))
			p := h.start()
			h.exits(p, 75)
			require.NotContains(h, p.text.String(), "\x1b")
		}
	}},
	{"gives up when no answer is a lease", "", func(h *harness) {
		h.proxy.plan("PUT", slices.Repeat([]act{body(200, "{}")}, 100)...)
		p := h.start()
		h.exits(p, 1)
		require.Contains(h, p.text.String(), "the answer is no lease")
		require.Contains(h, p.text.String(), "it is free after 900 s")
		require.Len(h, h.proxy.seen("PUT", 0), 6)
		require.Zero(h, p.said("fence"), "the job began")
	}},
	{"follows no redirect", "", func(h *harness) {
		elsewhere := func(*passing) (answer, bool) {
			return answer{status: 307, header: http.Header{"Location": {h.proxy.URL + "/elsewhere"}}}, false
		}
		h.proxy.plan("DELETE", elsewhere)
		p, fence := h.begin()
		h.ends(p, 0, fence)
		h.proxy.plan("PUT", elsewhere)
		p = h.start()
		h.exits(p, 1)
		require.Contains(h, p.text.String(), "no lock: 307")
		for _, e := range h.proxy.seen("", 0) {
			require.NotContains(h, e.path, "elsewhere")
		}
	}},
	{"refuses a URL that it cannot use", "", func(h *harness) {
		for _, url := range []string{"", "http://192.0.2.1:1", "http://localhost.example.com", "http://127.0.0.1.example.com", "http://user:s3cret@127.0.0.1:1", "http://127.0.0.1:1?s3cret", "http://127.0.0.1:1#s3cret", "ftp://127.0.0.1", "http://127.0.0.1:1\n"} {
			p := h.start("LOCKS_URL=" + url)
			h.exits(p, 1)
			require.Contains(h, p.text.String(), "LOCKS_URL", url)
			require.NotContains(h, p.text.String(), "s3cret")
		}
	}},
}

// body is an answer that is not the service's.
func body(status int, text string) act {
	return func(*passing) (answer, bool) { return answer{status: status, header: jsonHeader, text: text}, false }
}

var unavailable = body(503, `{"message":"Service Unavailable"}`)

// notReady says that nothing was done.
var notReady = body(503, `{"code": "unavailable"}`)

// noLease ends the lease, and says that there is none.
func noLease(p *passing) (answer, bool) { p.ask(); return body(404, `{"code": "no-lease"}`)(p) }

// busy is a refusal with that retryAfter.
func busy(retryAfter string) act {
	return body(409, `{"code": "busy", "retryAfter": `+retryAfter+`}`)
}

var jsonHeader = http.Header{"Content-Type": {"application/json"}}

// whole is the lease as the service gives it.
func whole(p *passing) (answer, bool) { return with("", "", p.grant()), false }

// with is the lease with another value of a field, or without the field.
func with(field, value string, lease answer) answer {
	fields := []string{}
	for _, f := range [][2]string{{"fence", strconv.FormatInt(lease.Fence, 10)}, {"expiresIn", "30"}, {"token", strconv.Quote(lease.Token)}} {
		if f[0] == field {
			f[1] = value
		}
		if f[1] != "" {
			fields = append(fields, strconv.Quote(f[0])+": "+f[1])
		}
	}
	return answer{status: 200, header: jsonHeader.Clone(), text: "{" + strings.Join(fields, ", ") + "}"}
}

// changed is the lease, changed.
func changed(change func(*answer)) act {
	return func(p *passing) (answer, bool) {
		a := with("", "", p.grant())
		change(&a)
		return a, false
	}
}

// flawed is the lease with another value of a field.
func flawed(field, value string) act {
	return func(p *passing) (answer, bool) { return with(field, value, p.grant()), false }
}

// noRenewal answers each renewal of a job with an answer that is no lease, with each second of them: a program looks at all
// answers in one place. The job has to end in time.
func noRenewal(h *harness) {
	plan := []act{flawed("fence", "1")} // of another lease
	for i, flaw := range noLeases() {
		if i%2 == 0 {
			plan = append(plan, flaw)
		}
	}
	h.proxy.plan("PATCH", append(plan, slices.Repeat([]act{unavailable}, 1000)...)...)
	p, fence := h.begin("LOCKS_TTL=60") // 40 s for 25 renewals
	next := h.takeOver(time.Now().Add(time.Minute), fence)
	taken := time.Now()
	h.exits(p, 79)
	require.GreaterOrEqual(h, len(h.proxy.seen("PATCH", 0)), len(plan), "it did not try again after an answer that is no lease")
	require.True(h, p.lastTick().Before(taken), "the job went on for %v", p.lastTick().Sub(taken))
	h.release(next)
}

// noLeases are answers that are no lease.
func noLeases() []act {
	long := `"` + strings.Repeat("a", 2000) + `"`
	all := []act{}
	for _, field := range []struct {
		name   string
		values []string
	}{
		{"token", []string{"", "null", "7", `""`, `"a\nb"`, `"a b"`, `"\u00fc"`, long, `["a"]`, `{"a": "b"}`}},
		{"fence", []string{"", "null", `"7"`, "0", "-1", "1.5", "1e30", "true", "[7]", "NaN"}},
		{"expiresIn", []string{"", "null", `"5"`, `"ttl[$(id)]+59"`, "0", "-1", "900.001", "1e999", "NaN", "Infinity", "true", "[5]", "{}"}},
	} {
		for _, value := range field.values {
			all = append(all, flawed(field.name, value))
		}
	}
	return append(all, body(200, ""), body(200, "null"), body(200, "{}"), body(200, "[]"), body(200, strings.Repeat("[", 60000)), body(204, ""), body(201, "{}"),
		changed(func(a *answer) { a.text = "[" + a.text + "]" }),
		changed(func(a *answer) { a.text = `{"lease": ` + a.text + "}" }),
		changed(func(a *answer) { a.text = a.text[:len(a.text)-1] }),
		changed(func(a *answer) { a.header.Set("Content-Length", "1000"); a.text = a.text[:20] }),
		changed(func(a *answer) { a.text = strings.Repeat(" ", 1<<20) + a.text }),
		changed(func(a *answer) { a.header.Set("Content-Type", "text/html") }),
		changed(func(a *answer) { a.header.Set("Content-Type", "text/html"); a.text = "<html>welcome</html>" }),
	)
}
