package testservers

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const installChromium = "run internal/testservers/install-packages.sh chromium"

// browser is a Chromium without a window, which is told what to do by the DevTools protocol over a pipe. See
// https://chromedevtools.github.io/devtools-protocol.
type browser struct {
	t       testing.TB
	to      *os.File
	ended   chan struct{}
	mu      sync.Mutex
	next    int
	answers map[int]chan answer
	news    map[string]func(method string, params json.RawMessage) // by session
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Tab is a page in a Chromium of its own.
type Tab struct {
	*browser
	session string
	faults  []string // what the browser says is wrong in the page
}

// Chromium starts a Chromium for the test and opens an address in it.
func Chromium(t testing.TB, address string) *Tab {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if path, err := exec.LookPath(name); err == nil && program == "" {
			program = path
		}
	}
	if program == "" {
		program = find(t, "chromium-headless-shell", installChromium)
	}
	if testing.Short() {
		t.Skip("-short starts no chromium")
	}
	toRead, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, toWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
		"--disable-background-networking", "--disable-component-update", "--disable-extensions", "--force-color-profile=srgb", "--hide-scrollbars")
	if os.Getuid() == 0 {
		cmd.Args = append(cmd.Args, "--no-sandbox") // it refuses root with one
	}
	cmd.ExtraFiles = []*os.File{toRead, toWrite}
	cmd.SysProcAttr = dieWithParent()
	cmd.SysProcAttr.Setpgid = true // the processes that it starts end with it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toRead.Close(), toWrite.Close()
	b := &browser{t: t, to: to, ended: make(chan struct{}), answers: map[int]chan answer{}, news: map[string]func(string, json.RawMessage){}}
	go b.read(from)
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // an error means that it has ended
		_ = cmd.Wait()
		_, _ = from.Close(), to.Close()
		<-b.ended
	})
	return b.open(address)
}

func (b *browser) open(address string) *Tab {
	b.t.Helper()
	var target struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	tab := &Tab{browser: b, session: attached.SessionID}
	b.mu.Lock()
	b.news[tab.session] = tab.note
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		tab.Call(domain+".enable", nil, nil)
	}
	tab.Go(address)
	return tab
}

// read reads answers, and what the browser says by itself, until it ends.
func (b *browser) read(from *os.File) {
	defer close(b.ended)
	for r := bufio.NewReader(from); ; {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID                int
			Method, SessionID string
			Params            json.RawMessage
			answer
		}
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			return
		}
		b.mu.Lock()
		wants, news := b.answers[m.ID], b.news[m.SessionID]
		delete(b.answers, m.ID)
		if wants == nil && news != nil {
			news(m.Method, m.Params)
		}
		b.mu.Unlock()
		if wants != nil {
			wants <- m.answer
		}
	}
}

// call sends a command to the browser, or to a session, and waits for its result.
func (b *browser) call(session, method string, params map[string]any, result any) {
	b.t.Helper()
	if err := b.try(session, method, params, result); err != nil {
		b.t.Fatalf("chromium, %s: %v", method, err)
	}
}

func (b *browser) try(session, method string, params map[string]any, result any) error {
	got := make(chan answer, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.answers[id] = got
	b.mu.Unlock()
	command := map[string]any{"id": id, "method": method}
	if session != "" {
		command["sessionId"] = session
	}
	if params != nil {
		command["params"] = params
	}
	text, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case a := <-got:
		if a.Error != nil {
			return errors.New(a.Error.Message)
		}
		if result != nil {
			return json.Unmarshal(a.Result, result)
		}
		return nil
	case <-b.ended:
		return errEnded
	case <-time.After(startTime):
		return errors.New("no answer")
	}
}

// note keeps what the browser says is wrong.
func (tab *Tab) note(method string, params json.RawMessage) {
	if method == "Runtime.exceptionThrown" || method == "Log.entryAdded" && strings.Contains(string(params), `"level":"error"`) {
		tab.faults = append(tab.faults, string(params))
	}
}

// Faults are the errors of the page so far: of scripts, of its Content-Security-Policy, and of requests.
func (tab *Tab) Faults() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	return append([]string(nil), tab.faults...)
}

// Call sends a command of the DevTools protocol to the page.
func (tab *Tab) Call(method string, params map[string]any, result any) {
	tab.t.Helper()
	tab.call(tab.session, method, params, result)
}

// Go opens an address, and waits until it is loaded or refused.
func (tab *Tab) Go(address string) {
	tab.t.Helper()
	tab.Call("Page.navigate", map[string]any{"url": address}, nil)
	tab.Until(`document.readyState === "complete" && location.href !== "about:blank"`)
}

// Eval is the value of an expression of JavaScript in the page.
func (tab *Tab) Eval(expression string) any {
	tab.t.Helper()
	value, err := tab.eval(expression)
	if err != nil {
		tab.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

func (tab *Tab) eval(expression string) (any, error) {
	var got struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	err := tab.try(tab.session, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &got)
	if err == nil && got.ExceptionDetails != nil {
		err = fmt.Errorf("%.500s", got.ExceptionDetails)
	}
	return got.Result.Value, err
}

// Until waits until an expression is true.
func (tab *Tab) Until(expression string) {
	tab.t.Helper()
	var value any
	err := within(func() (err error) {
		if value, err = tab.eval(expression); err == nil && value != true {
			err = fmt.Errorf("it is %v", value)
		}
		return err
	})
	if err != nil {
		text, _ := tab.eval("document.body.innerText")
		tab.t.Fatalf("waiting for %s: %v; the page is %.2000v", expression, err, text)
	}
}

// Type writes a text where the focus is.
func (tab *Tab) Type(text string) {
	tab.t.Helper()
	tab.Call("Input.insertText", map[string]any{"text": text}, nil)
}

// Press presses a key, such as Enter or ArrowDown.
func (tab *Tab) Press(key string) {
	tab.t.Helper()
	code := map[string]int{"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "ArrowUp": 38, "ArrowDown": 40}[key]
	text := map[string]string{"Enter": "\r", " ": " "}[key]
	tab.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code}, nil)
	tab.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
}

// Window sets the size of the window, and whether the page is light or dark.
func (tab *Tab) Window(width, height int, scheme string) {
	tab.t.Helper()
	tab.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	tab.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Screenshot is the window as a PNG.
func (tab *Tab) Screenshot() []byte {
	tab.t.Helper()
	var got struct{ Data string }
	tab.Call("Page.captureScreenshot", map[string]any{"format": "png"}, &got)
	png, err := base64.StdEncoding.DecodeString(got.Data)
	if err != nil {
		tab.t.Fatal(err)
	}
	return png
}
