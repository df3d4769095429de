package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
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
	tab.Eval(`document.getElementById("speed").add(new Option("100"))`)
	for _, s := range situations[1:] {
		tab.Eval(`document.body.dataset.state = "another"; location.hash = "` + s.Name + `"`)
		assert.True(t, strings.HasPrefix(verdict(), "0 of "), s.Name)
		assert.Equal(t, 0.0, tab.Eval(`document.querySelectorAll("#timeline rect.overlap").length`), s.Name)
		story := ended(tab)
		tab.Eval(`document.getElementById("speed").value = "100"; document.body.dataset.state = "another"; document.getElementById("again").click()`)
		assert.Equal(t, story, ended(tab), "%s at another speed", s.Name)
		tab.Eval(`document.getElementById("speed").value = "20"`)
	}
	tab.Eval(`document.getElementById("set-lock").value = "coalesce"; document.getElementById("set-lock").dispatchEvent(new Event("change"))`)
	tab.Eval(`document.body.dataset.state = "another"; document.querySelector("[data-send='200']").click()`)
	require.Contains(t, verdict(), "invoices stored: 212 of 212")
	tab.Eval(`document.querySelector("#environments div:nth-child(2) button").click()`)
	require.Equal(t, "true", tab.Eval(`document.querySelector("#environments div:nth-child(2) button").getAttribute("aria-pressed")`))
	tab.Eval(`location.hash = "nonsense"`)
	tab.Until(`document.getElementById("error").innerText.includes("no situation \"nonsense\"")`)
	tab.Eval(`document.getElementById("step").click()`)
	require.NotEqual(t, "playing", tab.Eval(`document.body.dataset.state`))
	require.Empty(t, tab.Faults())
}
