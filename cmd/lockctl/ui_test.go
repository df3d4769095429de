package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// view is lockctl ui in a browser.
type view struct {
	*testservers.Tab
	t       *testing.T
	address string
}

// ui starts lockctl ui, and opens the address that it prints.
func (p site) ui(t *testing.T, args ...string) view {
	t.Helper()
	c := lockctl(p.url, append([]string{"ui", "--every", "1s"}, args...)...)
	c.Stdout = nil
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.start(t)
	address, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Regexp(t, `^http://127\.0\.0\.1:\d+/[A-Z2-7]{26}/\n$`, address)
	address = strings.TrimSpace(address)
	return view{testservers.Chromium(t, address), t, address}
}

// row is an expression for a part of a key's row.
func row(key, part string) string {
	return fmt.Sprintf(`document.querySelector("[data-key=" + CSS.escape(%q) + "] %s")`, key, part)
}

// says waits until a part of a key's row has a text.
func (v view) says(key, part, text string) {
	v.t.Helper()
	v.Until(fmt.Sprintf(`Boolean(%s?.textContent.includes(%q))`, row(key, part), text))
}

func (v view) number(name string, value string) {
	v.t.Helper()
	v.Until(fmt.Sprintf(`[...document.querySelectorAll(".numbers div")].some((e) => e.textContent === %q)`, name+value))
}

// button presses a button by its name.
func (v view) button(name string) {
	v.t.Helper()
	const found = `[...document.querySelectorAll("button")].find((b) => b.textContent === %q && !b.disabled)`
	v.Until(fmt.Sprintf(`Boolean(`+found+`)`, name))
	v.Eval(fmt.Sprintf(found+`.click()`, name))
}

// confirms types the key into the question, and answers it.
func (v view) confirms(key, verb string) {
	v.t.Helper()
	v.Eval(`document.querySelector("#typed").focus()`)
	v.Type(key[:1])
	v.Until(`document.querySelector("dialog button.danger").disabled`)
	v.Type(key[1:])
	v.button(verb)
}

func (v view) notice(text string) {
	v.t.Helper()
	v.Until(fmt.Sprintf(`document.getElementById("said").textContent.includes(%q)`, text))
}

// A key is held, waited for, handed over and revoked; another one is in doubt, and resolved.
func TestPage(t *testing.T) {
	t.Parallel()
	p := at(t, "redis://"+testservers.Redis(t))
	const key = "account/7"
	lease := p.take(key, "withdraw")
	v := p.ui(t, "--write", "account/", "charge/")
	v.says(key, ".state", "held")
	v.says(key, ".who", "withdraw (4f1c)")
	v.number("held", "1")
	v.number("oldest wait", "none")

	next := p.waits(key, lockstore.MaxParkedTurn)
	v.says(key, ".queued", "1 parked, ")
	v.number("waiting", "1")
	v.Eval(row(key, ".head") + ".focus()")
	v.Press("Enter")
	v.says(key, ".body", "1. parked for ")
	v.says(key, ".body", fence(lease))

	require.NoError(t, p.store.Release(t.Context(), lease))
	v.says(key, ".state", "reserved")
	v.says(key, ".body", "not known before it asks for its full lease")
	_, err := p.store.Acquire(t.Context(), next)
	require.NoError(t, err)
	v.says(key, ".state", "held")
	v.says(key, ".who", "next")
	v.Until(row(key, "svg[role] .held") + " !== null && " + row(key, "svg[role] .reserved") + " !== null && " + row(key, "svg[role] .wait") + " !== null")

	v.button("Revoke…")
	v.Until(`document.querySelector("dialog").textContent.includes("The holder can renew no more, and is told so at its next renewal.")`)
	v.confirms(key, "Revoke")
	v.notice("is revoked: next can renew it no more")
	v.says(key, ".state", "revoked")
	assert.Equal(t, "revoked", p.state(key).State)
	v.Until(`[...document.querySelectorAll("button")].every((b) => b.textContent !== "Revoke…")`)

	// Of two who revoke at the same moment the second one learns who was first, as with the command.
	second := p.take("account/8", "hangs")
	other := view{testservers.Chromium(t, v.address), t, v.address}
	for _, tab := range []view{v, other} {
		tab.says("account/8", ".state", "held")
		tab.Eval(row("account/8", ".head") + ".click()")
		tab.button("Revoke…")
	}
	other.confirms("account/8", "Revoke")
	other.notice("is revoked: hangs (4f1c) can renew it no more")
	v.confirms("account/8", "Revoke")
	v.Until(`document.querySelector("dialog .error").textContent.includes("was revoked already: ")`)
	command := p.lockctl("revoke", "--fence", fence(second), "account/8")
	same, _, _ := strings.Cut(v.Eval(`document.querySelector("dialog .error").textContent`).(string), " within ")
	assert.Contains(t, command.err, same)
	v.button("Cancel")

	p.starts("charge/7")
	p.awaitDoubt("charge/7")
	v.says("charge/7", ".state", "in doubt")
	v.number("in doubt", "1")
	v.Eval(row("charge/7", ".head") + ".click()")
	v.button("Resolve…")
	v.Eval(`document.querySelector("dialog input[value=effect]").click()`)
	v.confirms("charge/7", "Resolve")
	v.notice("its work had its effect, and does not run again for 24h0m0s")
	assert.Equal(t, "completed", p.state("charge/7").State)
	v.Until(row("charge/7", "") + " === null") // a listing shows no completed keys
	v.number("in doubt", "0")
	require.Len(t, v.Faults(), 1, "the refusal of the second person, and no other error")
	assert.Contains(t, v.Faults()[0], "409")
	assert.Empty(t, other.Faults())
}

// What a key and a holder say is text, and what nobody can see is shown. Spaces are shown as they are: who revokes types them.
func TestPageOfHostileTexts(t *testing.T) {
	t.Parallel()
	p := at(t, "redis://"+testservers.Redis(t))
	const key = `</script><script>document.title="hacked"</script>` + "\u202e7/tnuocca"
	p.take(key, `<img src=x onerror="document.title='hacked'">`+"\u2066\u0007")
	const spaces = "a  b "
	p.take(spaces, "withdraw")
	v := p.ui(t, "--write", "--keys", key, "k", spaces)
	v.says(key, ".key", `</script><script>document.title="hacked"</script>\u202e7/tnuocca`)
	v.says(key, ".who", `\u2066`)
	assert.Contains(t, v.Eval(`document.getElementById("about").innerText`), ", a  b , k. ")
	v.Eval(row(key, ".head") + ".click()")
	v.button("Revoke…")
	v.confirms(`</script><script>document.title="hacked"</script>\u202e7/tnuocca`, "Revoke")
	v.notice("is revoked")
	assert.Equal(t, float64(0), v.Eval(`document.querySelectorAll("main script, main img, dialog script, dialog img").length`))
	assert.NotContains(t, v.Eval("document.title"), "hacked")
	v.Eval(row(spaces, ".head") + ".click()")
	v.button("Revoke…")
	for _, shown := range []string{row(spaces, ".key"), row(spaces, ".body b"), `document.querySelector("dialog b")`} {
		assert.Equal(t, spaces, v.Eval(shown+".innerText"), shown)
	}
	v.confirms(spaces, "Revoke")
	v.notice("is revoked: withdraw")
	assert.Contains(t, v.Eval(`document.getElementById("said").innerText`), `"a  b "`)
	v.says("k", ".state", "free") // keys that are named are shown in every state
	assert.Empty(t, v.Faults())
}

// The page fits windows of any width, light and dark. SCREENSHOTS=FOLDER keeps what it looks like.
func TestPageFits(t *testing.T) {
	t.Parallel()
	p := at(t, "redis://"+testservers.Redis(t))
	takes := func(key, name, id string, ago time.Duration, r lockstore.Request) lockstore.Lease {
		r.Key, r.Owner, r.HolderInfo = key, lockstore.NewOwner(), lockstore.HolderInfo{Name: name, ID: id, Since: time.Now().Add(-ago)}
		lease, err := p.store.Acquire(t.Context(), r)
		require.NoError(t, err)
		return lease
	}
	minute := lockstore.Request{TTL: time.Minute}
	p.starts("charge/31")
	takes("account/7", "withdraw", "0e5f4f1c-93f6-4d5b-8d3a-1f1b8f1d7f60", 3*time.Hour+12*time.Minute, minute)
	for _, parked := range []time.Duration{0, 0, lockstore.MaxParkedTurn} {
		p.waits("account/7", parked)
	}
	for i := range 3 {
		takes("export", "report", fmt.Sprintf("run-%d", i), time.Duration(i*i)*40*time.Second, lockstore.Request{TTL: 5 * time.Minute, MaxHolders: 3})
	}
	takes("account/1204", "withdraw", "77aa10d2-52a1-4f6c-a0dd-2a8b2d3c4e5f", 2*time.Second, minute)
	takes("nightly/report", "nightly-report", "run-2026-11-29", 9*time.Minute, lockstore.Request{TTL: 15 * time.Minute})
	p.awaitDoubt("charge/31")
	revoked := takes("payout/88", "sfnlock", "arn:aws:states:eu-central-1:123456789012:execution:payout:88", 40*time.Minute, minute)
	require.Zero(t, p.lockctl("revoke", "--fence", fence(revoked), "payout/88").status)
	takes(strings.Repeat("a-long-key/", 40), strings.Repeat("long", 50), "", time.Second, minute)

	v := p.ui(t, "--write")
	v.Until(`document.querySelectorAll("#keys > li").length === 7`)
	first := p.take("account/9", "withdraw")
	p.waits("account/9", lockstore.MaxParkedTurn)
	v.says("account/9", ".queued", "1 parked")
	require.NoError(t, p.store.Release(t.Context(), first))
	v.says("account/9", ".state", "reserved")
	v.Eval(row("account/7", ".head") + ".click()")
	v.Until(row("account/7", "svg[role] .wait") + " !== null")
	for _, w := range []struct {
		name, scheme  string
		width, height int
	}{{"light", "light", 1200, 800}, {"dark", "dark", 1200, 800}, {"narrow", "light", 400, 860}, {"narrow-dark", "dark", 400, 860}} {
		v.Window(w.width, w.height, w.scheme)
		v.fits(w.name)
	}
	v.Window(1000, 640, "light")
	v.button("Revoke…")
	v.fits("revoke")
	v.Press("Escape")
	v.Eval(row("account/7", ".head") + ".click()")
	v.Eval(row("charge/31", ".head") + ".click()")
	v.Window(400, 800, "dark")
	v.button("Resolve…")
	v.Eval(`document.querySelector("dialog input[value=effect]").click()`)
	v.fits("resolve")
	assert.Empty(t, v.Faults())
}

// fits says that nothing is wider than the window.
func (v view) fits(name string) {
	v.t.Helper()
	v.Until(`[...document.querySelectorAll("li svg[role]")].every((e) => !e.clientWidth || Math.abs(e.viewBox.baseVal.width - e.clientWidth) < 2)`)
	wide := `[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && getComputedStyle(e.closest("li, dialog, body")).contentVisibility !== "hidden").map((e) => e.className + " " + e.textContent.slice(0, 40)).join("; ")`
	assert.Empty(v.t, v.Eval(wide), "%s: what is too wide", name)
	assert.LessOrEqual(v.t, v.Eval(`document.documentElement.scrollWidth - innerWidth`), float64(0), name)
	if folder := os.Getenv("SCREENSHOTS"); folder != "" {
		require.NoError(v.t, os.WriteFile(filepath.Join(folder, name+".png"), v.Screenshot(), 0o600))
	}
}
