package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/serve"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

var held = lockstore.Status{
	Key: "account/7", State: lockstore.Held, Fence: 1795295118105467, Remaining: 41 * time.Second, Waiting: 2, OldestWait: time.Hour,
	Holder:  lockstore.HolderInfo{Name: "withdraw", ID: "4f1c"},
	Holders: []lockstore.LiveLease{{State: lockstore.Held, HolderInfo: lockstore.HolderInfo{Name: "withdraw", ID: "4f1c"}, Fence: 1795295118105467, MaxHolders: 1, Remaining: 41 * time.Second}},
	Queue:   []lockstore.Place{{Waited: time.Hour, Parked: true}, {Waited: time.Second}},
}

// reads is a Read that always finds the same, and counts.
func reads(n *atomic.Int32, all ...lockstore.Status) func(context.Context) (Reading, error) {
	return func(context.Context) (Reading, error) {
		n.Add(1)
		return Reading{Keys: all, Requests: 3, ReadUnits: 1.5}, nil
	}
}

const token = "the-token"

// start serves a page as Serve does, and returns the address that it would print, without the token.
func start(t *testing.T, p Page) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- serve.Until(ctx, listener, newServer(p, token).handler())
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-served)
		_ = listener.Close()
	})
	return "http://" + listener.Addr().String()
}

// open opens a page in a browser, and waits until it shows so many keys.
func open(t *testing.T, p Page, keys int) *testservers.Tab {
	t.Helper()
	p.Store, p.Every = "memory://", cmp.Or(p.Every, time.Second)
	tab := testservers.Chromium(t, start(t, p)+"/"+token+"/")
	tab.Until(fmt.Sprintf(`document.querySelectorAll("#keys > li").length === %d`, keys))
	return tab
}

// Whoever has no token, or is another page, gets nothing and changes nothing.
func TestWhoGetsIn(t *testing.T) {
	var acted atomic.Int32
	act := func(_ context.Context, a Action) (string, error) {
		acted.Add(1)
		if a.Do == "maybe" {
			return "", errors.New("want effect or no-effect \u202e")
		}
		return fmt.Sprintf("%s of %q, fence %d, at once: %t\n", a.Do, a.Key, a.Fence, a.AtOnce), nil
	}
	p := Page{Every: time.Second, Read: reads(new(atomic.Int32), held)}
	plain := start(t, p)
	p.Texts, p.Act = map[string]string{"revoke": "ends it"}, act
	writes := start(t, p)
	const body = `{"key":"account/7","do":"revoke","fence":"1795295118105467"}`
	for name, c := range map[string]struct {
		at, method, path, whole, body string // path is behind the token, and whole is not
		header                        map[string]string
		status                        int
		text                          string
	}{
		"the page":                       {at: plain, path: "/", status: 200, text: `<title>Locks</title>`},
		"its script":                     {at: plain, path: "/page.js", status: 200, text: "setAttribute"},
		"a state":                        {at: plain, path: "/state", status: 200, text: `"fence":"1795295118105467"`},
		"another path":                   {at: plain, path: "/etc/passwd", status: 404},
		"no token":                       {at: plain, whole: "/", status: 403, text: "needs the token"},
		"no token for data":              {at: plain, whole: "/state", status: 403, text: "needs the token"},
		"a token and more":               {at: plain, whole: "/" + token + "0/state", status: 403, text: "needs the token"},
		"a part of the token":            {at: plain, whole: "/" + token[:len(token)-1] + "/state", status: 403, text: "needs the token"},
		"the token alone":                {at: plain, whole: "/" + token, status: 403, text: "needs the token"},
		"a way around":                   {at: plain, whole: "/x/../" + token + "/../state", status: 403, text: "needs the token"},
		"a token as a query":             {at: plain, whole: "/state?token=" + token, status: 403, text: "needs the token"},
		"a token as a cookie":            {at: plain, whole: "/state", header: map[string]string{"Cookie": "lockctl-ui=" + token}, status: 403, text: "needs the token"},
		"another origin":                 {at: plain, path: "/state", header: map[string]string{"Origin": "http://evil.example"}, status: 403, text: "Origin is"},
		"an origin that is hidden":       {at: plain, path: "/state", header: map[string]string{"Origin": "null"}, status: 403, text: "Origin is"},
		"another host":                   {at: plain, path: "/state", header: map[string]string{"Host": "evil.example"}, status: 403, text: "the header Host is"},
		"another port":                   {at: plain, path: "/state", header: map[string]string{"Origin": "http://127.0.0.1:1"}, status: 403, text: "Origin is"},
		"a link to the page":             {at: plain, path: "/", header: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: 200},
		"a revocation without --write":   {at: plain, method: "POST", path: "/act", body: body, status: 405},
		"a deletion":                     {at: writes, method: "DELETE", path: "/state", status: 405},
		"a revocation":                   {at: writes, method: "POST", path: "/act", body: body, status: 200, text: `revoke of \"account/7\", fence 1795295118105467, at once: false"`},
		"a revocation at once":           {at: writes, method: "POST", path: "/act", body: strings.Replace(body, `{`, `{"atOnce":"true",`, 1), status: 200, text: `at once: true`},
		"a revocation without an origin": {at: writes, method: "POST", path: "/act", body: body, header: map[string]string{"Origin": ""}, status: 403, text: "Origin is"},
		"a revocation by another origin": {at: writes, method: "POST", path: "/act", body: body, header: map[string]string{"Origin": "http://evil.example"}, status: 403},
		"a revocation without a token":   {at: writes, method: "POST", whole: "/act", body: body, status: 403, text: "needs the token"},
		"a revocation by GET":            {at: writes, path: "/act", status: 404},
		"no JSON":                        {at: writes, method: "POST", path: "/act", body: "{", status: 400, text: "cannot be read"},
		"a fence that is none":           {at: writes, method: "POST", path: "/act", body: `{"key":"k","fence":"x"}`, status: 400},
		"a body without an end":          {at: writes, method: "POST", path: "/act", body: `{"key":"` + strings.Repeat("k", maxBody), status: 400},
		"what the command refuses":       {at: writes, method: "POST", path: "/act", body: `{"key":"k","fence":"7","do":"maybe"}`, status: 409, text: `want effect or no-effect \\u202e`},
	} {
		t.Run(name, func(t *testing.T) {
			before, method := acted.Load(), cmp.Or(c.method, "GET")
			r, err := http.NewRequestWithContext(t.Context(), method, c.at+cmp.Or(c.whole, "/"+token+c.path), strings.NewReader(c.body))
			require.NoError(t, err)
			if method != "GET" {
				r.Header.Set("Origin", c.at)
			}
			r.Host = c.header["Host"] // "" is that of the address
			for name, value := range c.header {
				if r.Header.Del(name); value != "" {
					r.Header.Set(name, value)
				}
			}
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			assert.Equal(t, c.status, answer.StatusCode, string(text))
			assert.Contains(t, string(text), c.text)
			assert.Empty(t, answer.Header.Get("Access-Control-Allow-Origin"))
			if c.status == 403 {
				assert.NotContains(t, string(text), "account/7")
				assert.NotContains(t, string(text), token)
			} else if c.status != 404 && c.status != 405 {
				assert.Contains(t, answer.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self';")
			}
			assert.Equal(t, c.status == 200 && method == "POST" || strings.Contains(c.body, "maybe"), acted.Load() > before)
			assert.Empty(t, answer.Header.Get("Set-Cookie"))
		})
	}
}

// Pages that are open at the same time read once, and what is shown is what a minute costs.
func TestReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		s := newServer(Page{Every: 2 * time.Second, Read: reads(&n, held)}, token)
		type shown struct {
			Requests, ReadUnits                  float64
			Held, Waiting, OldestWaitMs, InDoubt int
			AgeMs                                int
		}
		get := func() (got shown, status int) {
			w := httptest.NewRecorder()
			s.state(w, httptest.NewRequest("GET", "/state", nil))
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
			return got, w.Code
		}
		got, status := get()
		assert.Equal(t, 200, status)
		assert.InDelta(t, 90, got.Requests, 0.1)
		assert.InDelta(t, 45, got.ReadUnits, 0.1)
		assert.Equal(t, []int{1, 2, 3600_000, 0}, []int{got.Held, got.Waiting, got.OldestWaitMs, got.InDoubt})
		<-time.After(time.Second)
		for range 5 {
			go get()
		}
		synctest.Wait()
		got, _ = get()
		assert.Equal(t, 1000, got.AgeMs)
		assert.EqualValues(t, 1, n.Load())
		<-time.After(2 * time.Second)
		got, _ = get()
		assert.Zero(t, got.AgeMs)
		assert.EqualValues(t, 2, n.Load())

		// After an action what was read is old, also if the command refused it, and until a reading succeeds.
		post := httptest.NewRequest("POST", "/act", strings.NewReader(`{"key":"k","fence":"7"}`))
		w := httptest.NewRecorder()
		s.Act = func(context.Context, Action) (string, error) { return "", errors.New("another has the key") }
		s.act(w, post)
		assert.Equal(t, 409, w.Code)
		read := s.Read
		s.Read = func(context.Context) (Reading, error) { return Reading{}, errors.New("the store is gone") }
		_, status = get()
		assert.Equal(t, 503, status)
		s.Read = read
		get()
		assert.EqualValues(t, 3, n.Load())

		<-time.After(2 * time.Second)
		s.Read = func(context.Context) (Reading, error) {
			<-time.After(10 * time.Second)
			return Reading{Requests: 3}, nil
		}
		got, _ = get()
		assert.InDelta(t, 18, got.Requests, 0.1, "a reading takes as long as it takes")

		// Who has waited for a reading, however long it was, takes what it has found.
		n.Store(0)
		slow := s.Read
		s.Read = func(ctx context.Context) (Reading, error) {
			n.Add(1)
			return slow(ctx)
		}
		<-time.After(2 * time.Second)
		var pages sync.WaitGroup
		for range 5 {
			pages.Go(func() { get() })
			<-time.After(time.Second)
		}
		gone, leave := context.WithCancel(t.Context())
		pages.Go(func() {
			_, err := s.read(gone)
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		leave()
		pages.Wait()
		assert.EqualValues(t, 1, n.Load())
		get()
		assert.EqualValues(t, 2, n.Load(), "who asks after a long reading")
	})
}

// A page that nobody looks at reads nothing, and goes on when somebody looks.
func TestBackground(t *testing.T) {
	var n atomic.Int32
	tab := open(t, Page{Read: reads(&n, held)}, 1)
	tab.Eval(`(document.addEventListener = function (name, ...more) { globalThis.waitsFor = name; EventTarget.prototype.addEventListener.call(document, name, ...more) }, 0)`)
	tab.Eval(`(Object.defineProperty(document, "hidden", {value: true, configurable: true}), 0)`)
	tab.Until(`globalThis.waitsFor === "visibilitychange"`) // what reads waits for this, and for nothing else
	before := n.Load()
	tab.Eval(`Object.defineProperty(document, "hidden", {value: false}), document.dispatchEvent(new Event("visibilitychange"))`)
	require.Eventually(t, func() bool { return n.Load() > before }, time.Minute, 10*time.Millisecond)
	assert.Empty(t, tab.Faults())
}

// A page without its token says what is wrong, and shows nothing. Programs that serve other ports of this machine learn no token from a
// browser that has the page, and their pages get nothing, also if they know the token.
func TestOtherPrograms(t *testing.T) {
	var n atomic.Int32
	at := start(t, Page{Every: time.Second, Read: reads(&n, held)})
	tab := testservers.Chromium(t, at+"/")
	assert.Contains(t, tab.Eval("document.body.innerText"), "this address needs the token with which lockctl ui has printed it")
	assert.Zero(t, n.Load())
	tab.Go(at + "/" + token + "/")
	tab.Until(`document.querySelectorAll("#keys > li").length === 1`)
	assert.Equal(t, "", tab.Eval("document.cookie"))
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Empty(t, r.Header["Cookie"])
		assert.Empty(t, r.Header["Referer"])
		_, _ = io.WriteString(w, "evil")
	}))
	defer evil.Close()
	for _, address := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)} {
		tab.Eval(`(location.href = "` + address + `", 0)`) // as if the person follows a link
		tab.Until(`document.body.innerText === "evil" && location.href.startsWith("` + address + `")`)
		tab.Go(at + "/" + token + "/")
		tab.Until(`document.querySelectorAll("#keys > li").length === 1`)
	}
	u, err := url.Parse(at)
	require.NoError(t, err)
	tab.Go(evil.URL)
	for _, other := range []string{at, "http://localhost:" + u.Port()} {
		assert.Equal(t, "refused", tab.Eval(`fetch("`+other+"/"+token+`/state", {credentials: "include"}).then((r) => r.text(), () => "refused")`))
		assert.Equal(t, "refused", tab.Eval(`new Promise((done) => { const s = document.createElement("script"); s.src = "`+other+"/"+token+`/page.js"; s.onload = () => done("loaded"); s.onerror = () => done("refused"); document.head.append(s); })`))
	}
}

// A lease is renewed within each pause. No row moves while the pointer is in the list; then the one in focus moves, and the others keep their place and their elements.
func TestRows(t *testing.T) {
	var n atomic.Int32
	key := func(name string, waits time.Duration) lockstore.Status {
		s := held
		s.Key, s.Waiting, s.OldestWait, s.Queue = name, 1, waits, []lockstore.Place{{Waited: waits}}
		return s
	}
	tab := open(t, Page{Every: 100 * time.Millisecond, Read: func(context.Context) (Reading, error) {
		switch n.Load() {
		case 0:
			return Reading{Keys: []lockstore.Status{key("a", 4*time.Hour), key("b", 3*time.Hour), key("c", 2*time.Hour), key("d", time.Hour)}}, nil
		case 1: // a is gone, and b is the last
			return Reading{Keys: []lockstore.Status{key("b", time.Minute), key("c", 2*time.Hour), key("d", time.Hour)}}, nil
		}
		return Reading{}, nil
	}}, 4)
	tab.Eval(`(document.querySelector("[data-key=b] .head").click(), document.querySelector("[data-key=b] .head").focus(), 0)`)
	tab.Until(`document.querySelector("[data-key=b] .holders").textContent.includes(", renewed ")`)
	assert.Equal(t, "b: held, withdraw (4f1c), 1 wait", tab.Eval(`document.querySelector("[data-key=b] .head").getAttribute("aria-label")`))
	tab.Eval(`(globalThis.moved = new Set(), new MutationObserver((all) => { for (const m of all) for (const e of m.addedNodes) moved.add(e.dataset.key); }).observe(document.getElementById("keys"), {childList: true}), 0)`)
	tab.Point(tab.Eval(`document.getElementById("keys").getBoundingClientRect().x + 50`).(float64), tab.Eval(`document.getElementById("keys").getBoundingClientRect().y + 10`).(float64))
	n.Store(1)
	order := func(keys string) {
		tab.Until(`[...document.querySelectorAll("#keys > li")].map((e) => e.dataset.key).join() === "` + keys + `"`)
	}
	order("b,c,d")
	tab.Point(0, 0)
	order("c,d,b")
	assert.Equal(t, true, tab.Eval(`document.activeElement === document.querySelector("[data-key=b] .head")`))
	assert.Equal(t, "b", tab.Eval(`[...moved].join()`), "no other row is moved")
	n.Store(2)
	tab.Until(`document.getElementById("none").textContent === "There is no such key."`)
	assert.Empty(t, tab.Faults())
}

// 2,000 keys: the last one is reached, and keys of the keyboard move between rows.
func TestManyKeys(t *testing.T) {
	all := make([]lockstore.Status, 2000)
	for i := range all {
		all[i] = lockstore.Status{Key: fmt.Sprintf("many/%04d", i), State: lockstore.Held}
	}
	tab := open(t, Page{Read: reads(new(atomic.Int32), all...)}, 2000)
	tab.Window(1280, 800, "light")
	tab.Until(`(document.querySelector("#keys > li:last-child").scrollIntoView(), document.querySelector("#keys > li:last-child").getBoundingClientRect().bottom <= innerHeight)`)
	assert.Regexp(t, `many/\d{4}`, tab.Eval(`document.elementFromPoint(400, innerHeight - 60).closest("li").dataset.key`))
	tab.Eval(`document.querySelector(".head").focus()`)
	for _, key := range []string{"ArrowDown", "ArrowDown", "ArrowUp"} {
		tab.Press(key)
	}
	assert.Equal(t, true, tab.Eval(`document.activeElement === document.querySelector("#keys > li:nth-child(2) .head")`))
	assert.Empty(t, tab.Faults())
}

// A question is closed while its command is under way. The answer is shown, and the next question stays. After an error the person may try again.
// Only what the command accepts has a button.
func TestLateAnswer(t *testing.T) {
	reserved := held
	reserved.Key, reserved.State = "reserved", lockstore.Reserved
	reserved.Holders = []lockstore.LiveLease{{State: lockstore.Reserved, Fence: 8, MaxHolders: 1, Remaining: time.Minute}}
	answers := make(chan error)
	act := func(ctx context.Context, a Action) (string, error) {
		select {
		case err := <-answers:
			return map[bool]string{true: "it is done"}[err == nil], err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	tab := open(t, Page{Read: reads(new(atomic.Int32), held, reserved), Texts: map[string]string{"revoke": "ends it"}, Act: act}, 2)
	tab.Eval(`(document.querySelectorAll(".head").forEach((e) => e.click()), 0)`)
	assert.Equal(t, "account/7", tab.Eval(`[...document.querySelectorAll(".holders button")].map((b) => b.closest("[data-key]").dataset.key).join()`))
	ask := func() { tab.Eval(`document.querySelector(".holders button").click()`) }
	sends := func() {
		tab.Eval(`(document.querySelector("#typed").value = "account/7", document.querySelector("dialog form").dispatchEvent(new Event("input")), document.querySelector("dialog .danger").click(), 0)`)
		tab.Until(`document.querySelector("dialog .danger").disabled`)
	}
	ask()
	assert.Equal(t, "Revoke the lease of withdraw (4f1c)", tab.Eval(`document.getElementById(document.querySelector("dialog").getAttribute("aria-labelledby")).textContent`))
	sends()
	tab.Eval(`document.querySelector("dialog form").dispatchEvent(new Event("input"))`)
	assert.Equal(t, true, tab.Eval(`document.querySelector("dialog .danger").disabled`), "one request at a time")
	answers <- errors.New("another has it")
	tab.Until(`document.querySelector("dialog .error").textContent.includes("another has it") && !document.querySelector("dialog .danger").disabled`)
	for _, late := range []error{errors.New("it was late"), nil} {
		sends()
		tab.Press("Escape")
		ask()
		answers <- late
		if late != nil {
			tab.Until(`document.getElementById("said").textContent.includes("account/7: it was late")`)
		} else {
			tab.Until(`document.getElementById("said").textContent.endsWith(": it is done")`)
		}
		assert.Equal(t, true, tab.Eval(`document.querySelector("dialog").open && !document.querySelector("dialog .error").textContent`))
	}
}

// Each state has a word and a shape of its own. The rows, and one that is open, have what is known. All comes from this server, and light and
// dark differ.
func TestLooks(t *testing.T) {
	states := []lockstore.State{lockstore.Free, lockstore.Reserved, lockstore.Held, lockstore.Revoked, lockstore.Completed, lockstore.Cooldown, lockstore.InDoubt}
	var later atomic.Bool
	tab := open(t, Page{Which: "All", Read: func(context.Context) (Reading, error) {
		var all []lockstore.Status
		for _, state := range states {
			all = append(all, lockstore.Status{Key: state.String(), State: state})
		}
		several := held
		several.Key, several.Remaining = "several", 40*time.Second
		if later.Load() {
			several.Remaining = 10 * time.Second
		}
		several.Holders = nil
		for seat := range 2 {
			holder := lockstore.HolderInfo{Name: "export", ID: fmt.Sprint(seat), Since: time.Now().Add(-time.Duration(seat+1) * time.Hour)}
			several.Holders = append(several.Holders, lockstore.LiveLease{State: lockstore.Held, HolderInfo: holder, Fence: lockstore.Fence(7 + seat), Seat: seat, MaxHolders: 3, Remaining: several.Remaining})
		}
		return Reading{Keys: append(all, several), Requests: 3, ReadUnits: 1.5, Damaged: "3 entries are damaged"}, nil
	}}, 8)
	text := func(part string) any { return tab.Eval(`document.querySelector("` + part + `").textContent`) }
	assert.Equal(t, true, tab.Eval(`[...document.querySelectorAll("#keys > li")].every((e) => e.dataset.key === "several" || e.querySelector(".state").textContent === e.dataset.key)`))
	assert.Equal(t, 7.0, tab.Eval(`new Set([...document.querySelectorAll(".head .state")].map((e) => {
		const shape = getComputedStyle(e, "::before");
		return [shape.clipPath, shape.borderRadius, shape.boxShadow !== "none", shape.height].join();
	})).size`), "shapes")
	assert.Equal(t, "several", tab.Eval(`document.querySelector("#keys > li").dataset.key`), "the longest waiting")
	assert.Equal(t, []any{"2 of 3", "2h 0m", "2, 1h 0m", "1795295118105467"}, []any{text(".head .who"), text(".head .age"), text(".head .queued"), text(".head .fence")})
	assert.Equal(t, "Read at , once in 1 s: 180 requests and 90 read units a minute while you look.", tab.Eval(`document.getElementById("cost").textContent.replace(/\d\d:\d\d:\d\d/, "")`))
	assert.Equal(t, []any{"memory://", "All. This page changes nothing; with --write it can revoke and resolve.", "3 entries are damaged"}, []any{text("#title"), text("#about"), text("#none")})
	const bar = `Number(document.querySelector(".head .bar rect").getAttribute("width"))`
	assert.Greater(t, tab.Eval(bar), 40.0)
	later.Store(true)
	tab.Until(bar + ` < 13`)

	tab.Eval(`document.querySelector(".head").click()`)
	body := text(".body")
	for _, part := range []string{"export (0), seat 0 of 3", "has it for 2h 0m, since ", "export (1), seat 1 of 3", "fence 8", "1. parked for 1h 0m", "2. waits for ", "The last two minutes"} {
		assert.Contains(t, body, part)
	}
	assert.Equal(t, true, tab.Eval(`performance.getEntriesByType("resource").length >= 4 && performance.getEntriesByType("resource").every((e) => e.name.startsWith(location.href))`), "nothing comes from another host")
	colour := func(scheme string) any {
		tab.Window(1200, 800, scheme)
		return tab.Eval(`getComputedStyle(document.body).backgroundColor`)
	}
	assert.Equal(t, []any{"rgb(255, 255, 255)", "rgb(18, 22, 31)"}, []any{colour("light"), colour("dark")})
	assert.Empty(t, tab.Faults())
}

// A key is revoked by keyboard alone. The focus comes back to where it was.
func TestKeyboard(t *testing.T) {
	acts := make(chan Action, 1)
	tab := open(t, Page{
		Read: reads(new(atomic.Int32), held), Texts: map[string]string{"revoke": "ends it", "atOnce": "at once"},
		Act: func(_ context.Context, a Action) (string, error) {
			acts <- a
			return "it is revoked", nil
		},
	}, 1)
	focus := func(selector string) {
		tab.Until(`document.activeElement === document.querySelector("` + selector + `")`)
	}
	tab.Press("Tab")
	focus(".head")
	tab.Press("Enter")
	tab.Until(`document.querySelector(".head").getAttribute("aria-expanded") === "true"`)
	tab.Press("Tab")
	focus(".holders button")
	tab.Press(" ")
	focus("#typed")
	tab.Type("account/8")
	tab.Press("Enter")
	assert.Equal(t, true, tab.Eval(`document.querySelector("dialog").open && document.querySelector("dialog .danger").disabled`))
	tab.Press("Backspace")
	tab.Type("7")
	tab.Press("Enter")
	tab.Until(`document.getElementById("said").textContent.endsWith(": it is revoked") && !document.querySelector("dialog").open`)
	assert.Equal(t, Action{Key: "account/7", Do: "revoke", Fence: held.Fence}, <-acts)
	focus(".holders button")
	assert.Empty(t, tab.Faults())
}

// The page says since when the store fails or hangs, keeps what it has shown, and goes on by itself. A store that hangs is asked once.
func TestStoreThatFailsAndHangs(t *testing.T) {
	var fails, hangs atomic.Bool
	var hung atomic.Int32
	goesOn := make(chan struct{})
	tab := open(t, Page{Read: func(ctx context.Context) (Reading, error) {
		if fails.Load() {
			return Reading{}, errors.New("connection refused.")
		}
		if hangs.Load() {
			hung.Add(1)
			select {
			case <-goesOn:
			case <-ctx.Done():
			}
		}
		return Reading{Keys: []lockstore.Status{held}}, ctx.Err()
	}}, 1)
	gone := func(text string) {
		tab.Until(`/^` + text + `$/.test(document.getElementById("gone").textContent) && document.getElementById("main").classList.contains("stale")`)
		assert.Equal(t, 1.0, tab.Eval(`document.querySelectorAll("#keys > li").length`))
	}
	isBack := func() {
		tab.Until(`document.getElementById("gone").hidden && !document.getElementById("main").classList.contains("stale")`)
	}
	fails.Store(true)
	gone(`No news since \d\d:\d\d:\d\d: connection refused\. The page asks again by itself\.`)
	fails.Store(false)
	isBack()
	hangs.Store(true)
	gone(`The store has not answered since \d\d:\d\d:\d\d\. The page waits for it\.`)
	assert.EqualValues(t, 1, hung.Load())
	close(goesOn)
	isBack()
}
