package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

const folder = "../../build/play"

// openPage builds the page, and opens a situation in a browser, in which time goes 20 times as fast.
func openPage(t *testing.T, name string) *testservers.Tab {
	t.Helper()
	out, err := exec.Command("make", "-C", "../..", "build/play").CombinedOutput()
	require.NoError(t, err, "%s", out)
	server := httptest.NewServer(http.FileServer(http.Dir(folder)))
	t.Cleanup(server.Close)
	tab := testservers.Chromium(t, server.URL+"/#"+name)
	tab.Eval(`document.getElementById("speed").value = "20"`)
	return tab
}

// ended waits for the end of a situation, and returns the story, the first line first.
func ended(tab *testservers.Tab) (story []string) {
	tab.Until(`document.body.dataset.state === "ended"`)
	for line := range strings.Lines(tab.Eval(`[...document.querySelectorAll("#story li")].map((e) => e.innerText.replaceAll("\n", " ")).reverse().join("\n")`).(string)) {
		story = append(story, strings.TrimSpace(line))
	}
	return story
}

// From a link with a freeze the page shows that the context is cancelled before the next run begins.
func TestFreezeInABrowser(t *testing.T) {
	tab := openPage(t, "freeze")
	story := ended(tab)
	t.Log(strings.Join(story, "\n"))
	line := func(text string) int {
		for i, l := range story {
			if strings.Contains(l, text) {
				return i
			}
		}
		t.Fatalf("%q is not in the story: %v", text, story)
		return 0
	}
	require.Less(t, line("env 1 event 1: its work begins"), line("env 1 event 1: its context is cancelled"))
	require.Less(t, line("env 1 event 1: its context is cancelled"), line("env 2 event 2: its work begins"))
	require.Less(t, line("env 2 event 2: its work begins"), line("env 1 it goes on"))
	require.Less(t, line("env 1 it goes on"), line("is refused: the resource has seen fence"))
	require.Equal(t, true, tab.Eval(`(() => {
		const x = (c) => [...document.querySelectorAll("#timeline rect." + c)].map((e) => Number(e.getAttribute("x"))).sort((a, b) => a - b);
		return x("lost").length === 1 && x("held").length === 3 && x("held")[0] < x("lost")[0] && x("lost")[0] < x("held")[1];
	})()`), "the bar of the first run ends before the next one begins")
	require.Equal(t, "0 of 3 runs overlap; invoices stored: 2 of 2", tab.Eval(`document.getElementById("verdict").innerText`))

	tab.Eval(`document.body.dataset.state = "another"; document.getElementById("again").click()`)
	require.Equal(t, story, ended(tab), "each run of a situation is the same")
	require.Empty(t, tab.Faults())
}

// The other situations in the browser end as TestSituations says; and what a visitor clicks has its effect.
func TestPage(t *testing.T) {
	tab := openPage(t, "without")
	info, err := os.Stat(folder + "/play.wasm")
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(6<<20))
	verdict := func() string {
		ended(tab)
		return tab.Eval(`document.getElementById("verdict").innerText`).(string)
	}
	require.Equal(t, "40 of 40 runs overlap; invoices stored: 5 of 40", verdict())
	require.NotEqual(t, 0.0, tab.Eval(`document.querySelectorAll("#timeline rect.overlap").length`))
	for width, scheme := range map[int]string{1200: "light", 400: "dark"} {
		tab.Window(width, 900, scheme)
		require.LessOrEqual(t, tab.Eval(`document.documentElement.scrollWidth - innerWidth`), 0.0, "nothing is wider than the window")
		tab.Until(`document.querySelector("#timeline svg").viewBox.baseVal.width === document.getElementById("timeline").clientWidth`)
		if folder := os.Getenv("SCREENSHOTS"); folder != "" {
			require.NoError(t, os.WriteFile(fmt.Sprintf("%s/play-%d.png", folder, width), tab.Screenshot(), 0o600))
		}
	}
	tab.Window(1200, 900, "light")
	require.Equal(t, "rgb(209, 36, 47)", tab.Eval(`getComputedStyle(document.querySelector("#timeline rect.overlap")).fill`), "red")
	tab.Eval(`document.getElementById("speed").add(new Option("100"))`)
	for _, s := range situations[1:] {
		tab.Eval(`document.body.dataset.state = "another"; location.hash = "` + s.name + `"`)
		assert.True(t, strings.HasPrefix(verdict(), "0 of "), s.name)
		assert.Equal(t, "#"+s.name, tab.Eval(`document.querySelector("#situations [aria-current=page]").hash`), "the page has a text for it")
		assert.Equal(t, 0.0, tab.Eval(`document.querySelectorAll("#timeline rect.overlap").length`), s.name)
		story := ended(tab)
		tab.Eval(`document.getElementById("speed").value = "100"; document.body.dataset.state = "another"; document.getElementById("again").click()`)
		assert.Equal(t, story, ended(tab), "%s at another speed", s.name)
		tab.Eval(`document.getElementById("speed").value = "20"`)
	}
	choose := func(what, value string) {
		tab.Eval(`document.getElementById("set-` + what + `").value = "` + value + `"; document.getElementById("set-` + what + `").dispatchEvent(new Event("change"))`)
	}
	send := func(n string) {
		tab.Eval(`document.body.dataset.state = "another"; document.querySelector("[data-send='` + n + `']").click()`)
	}
	choose("lock", "coalesce")
	send("200")
	require.Contains(t, verdict(), "invoices stored: 212 of 212")
	send("1")
	require.Contains(t, verdict(), "invoices stored: 213 of 213")
	choose("keys", "4")
	send("200")
	require.Contains(t, verdict(), "invoices stored: 413 of 413")
	require.Equal(t, true, tab.Eval(`["acme", "birch", "cobalt", "delta"].every((key) => document.getElementById("timeline").textContent.includes("invoices/" + key))`))

	pressed := func(env, nth string) any {
		button := `document.querySelector("#environments div:nth-child(` + env + `) button:nth-of-type(` + nth + `)")`
		return tab.Eval(button + `.click(), ` + button + `.getAttribute("aria-pressed")`)
	}
	require.Equal(t, "true", pressed("2", "1"))
	require.Equal(t, nil, pressed("1", "2"))
	require.Equal(t, "true", pressed("3", "3"))
	require.Equal(t, "false", pressed("2", "1"))
	story := ended(tab)
	for i, line := range []string{"env 2 it stands still", "env 1 it is killed", "env 3 it is slow", "env 2 it goes on"} {
		require.True(t, strings.HasSuffix(story[len(story)-4+i], line), "%v", story[len(story)-4:])
	}

	tab.Eval(`document.getElementById("speed").value = "0.25"; location.hash = "nonsense"`)
	tab.Until(`document.getElementById("error").innerText.includes("no situation \"nonsense\"")`)
	tab.Until(`document.body.dataset.state === "playing"`)
	tab.Eval(`document.getElementById("play").click()`)
	require.Equal(t, "paused", tab.Eval(`document.body.dataset.state`))
	before := tab.Eval(`document.querySelectorAll("#story li").length`)
	tab.Eval(`document.getElementById("step").click()`)
	require.Greater(t, tab.Eval(`document.querySelectorAll("#story li").length`), before, "a step ends with the next line")
	require.Equal(t, "paused", tab.Eval(`document.body.dataset.state`))
	require.Empty(t, tab.Faults())
}

// Only what differs is changed, so a button keeps the focus, and a key works, while the situation is played; and the page stands still with it.
func TestKeyboardInABrowser(t *testing.T) {
	tab := openPage(t, "with")
	tab.Eval(`document.getElementById("speed").value = "1"; document.getElementById("again").click()`)
	tab.Until(`document.body.dataset.state === "playing" && parseFloat(document.getElementById("clock").innerText) < 1`)
	const first = `document.querySelector("#environments button")`
	tab.Eval(`(() => {
		const freeze = ` + first + `;
		freeze.focus();
		globalThis.focused = () => document.activeElement === freeze;
		globalThis.gone = 0;
		globalThis.changes = 0;
		for (const id of ["situations", "facts", "environments", "numbers", "story"]) {
			new MutationObserver((all) => { for (const m of all) gone += m.removedNodes.length; }).observe(document.getElementById(id), {childList: true, subtree: true});
		}
		new MutationObserver((all) => { changes += all.length; }).observe(document.body, {childList: true, subtree: true, attributes: true, characterData: true});
	})()`)
	tab.Press("Enter")
	tab.Until(first + `.getAttribute("aria-pressed") === "true" && parseFloat(document.getElementById("clock").innerText) > 1.5`)
	require.Equal(t, true, tab.Eval(`focused()`))
	tab.Press("Enter")
	tab.Until(first + `.getAttribute("aria-pressed") === "false"`)
	require.Equal(t, true, tab.Eval(`focused() && changes > 0`))
	require.Equal(t, 0.0, tab.Eval(`gone`), "nothing was made anew")
	tab.Press("Tab")
	require.Equal(t, "Kill", tab.Eval(`document.activeElement.innerText`))
	tab.Press(" ")
	tab.Until(`[...document.querySelectorAll("#story li")].some((e) => e.innerText.includes("it is killed"))`)

	tab.Eval(`document.getElementById("play").click()`)
	const frames = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(changes))))))`
	require.Equal(t, tab.Eval(frames), tab.Eval(frames), "a page that is paused changes nothing")
	require.Empty(t, tab.Faults())
}

// The pages of docs link to each situation, and to no other; so does the page itself.
func TestSituationsOfThePages(t *testing.T) {
	named := func(link string, files ...string) map[string]bool {
		names := map[string]bool{}
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(link).FindAllStringSubmatch(string(text), -1) {
				names[m[1]] = true
			}
		}
		return names
	}
	here := map[string]bool{}
	for _, s := range situations {
		here[s.name] = true
	}
	require.Equal(t, here, named(`\(http://`+regexp.QuoteMeta(address)+`/#([a-z]+)\)`, "../../docs/waiting.md", "../../docs/fencing.md"))
	require.Equal(t, here, named(`<a href="#([a-z]+)" data-text="[^"]`, "page/index.html"))
}
