package testservers

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const installChromium = "run internal/testservers/install-packages.sh chromium"

// Tab is a page in a Chromium of its own, without a window. It is told what to do by the DevTools protocol over a pipe, see
// https://chromedevtools.github.io/devtools-protocol. Package chromedp would save a part of this file, and cost three modules, one of which has no
// version, and 28,000 generated lines in all tests that start a server. A Tab is for one goroutine.
type Tab struct {
	t        testing.TB
	to, from *os.File
	answers  *bufio.Reader // of from
	session  string        // of the page
	sent     int           // commands
	faults   []string      // what the browser says is wrong in the page
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
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // an error means that it has ended
		_ = cmd.Wait()
		_, _ = from.Close(), to.Close()
	})
	tab := &Tab{t: t, to: to, from: from, answers: bufio.NewReader(from)}
	var target struct{ TargetID string }
	tab.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	tab.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	tab.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		tab.call(domain+".enable", nil, nil)
	}
	tab.Go(address)
	return tab
}

// call sends a command to the page, and waits for its result.
func (tab *Tab) call(method string, params map[string]any, result any) {
	tab.t.Helper()
	if err := tab.try(method, params, result); err != nil {
		tab.t.Fatalf("chromium, %s: %v", method, err)
	}
}

func (tab *Tab) try(method string, params map[string]any, result any) error {
	tab.sent++
	text, err := json.Marshal(struct {
		ID        int            `json:"id"`
		Method    string         `json:"method"`
		Params    map[string]any `json:"params,omitempty"`
		SessionID string         `json:"sessionId,omitempty"`
	}{tab.sent, method, params, tab.session})
	if err == nil {
		_, err = tab.to.Write(append(text, 0))
	}
	if err == nil {
		err = tab.from.SetReadDeadline(time.Now().Add(startTime))
	}
	for err == nil {
		var m struct {
			ID             int
			Method         string
			Params, Result json.RawMessage
			Error          *struct{ Message string }
		}
		if text, err = tab.answers.ReadBytes(0); err != nil {
			break
		}
		if err = json.Unmarshal(text[:len(text)-1], &m); err != nil {
			break
		}
		switch {
		case m.ID != tab.sent: // the browser says something by itself
			if m.Method == "Runtime.exceptionThrown" || m.Method == "Log.entryAdded" && strings.Contains(string(m.Params), `"level":"error"`) {
				tab.faults = append(tab.faults, string(m.Params))
			}
		case m.Error != nil:
			return errors.New(m.Error.Message)
		case result == nil:
			return nil
		default:
			return json.Unmarshal(m.Result, result)
		}
	}
	return err
}

// Faults are the errors of the page so far: of scripts, of its Content-Security-Policy, and of requests.
func (tab *Tab) Faults() []string {
	tab.t.Helper()
	tab.Eval("0") // what the browser has said before this answer is read
	return tab.faults
}

// Go opens an address, and waits until it is loaded or refused.
func (tab *Tab) Go(address string) {
	tab.t.Helper()
	tab.call("Page.navigate", map[string]any{"url": address}, nil)
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
	err := tab.try("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &got)
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
	tab.call("Input.insertText", map[string]any{"text": text}, nil)
}

// Press presses a key, such as Enter or ArrowDown.
func (tab *Tab) Press(key string) {
	tab.t.Helper()
	code := map[string]int{"Enter": 13, "Tab": 9, "Escape": 27, "Backspace": 8, " ": 32, "ArrowUp": 38, "ArrowDown": 40}[key]
	text := map[string]string{"Enter": "\r", " ": " "}[key]
	tab.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code}, nil)
	tab.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
}

// Point moves the pointer to a place in the window.
func (tab *Tab) Point(x, y float64) {
	tab.t.Helper()
	tab.call("Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": x, "y": y}, nil)
}

// Window sets the size of the window, and whether the page is light or dark.
func (tab *Tab) Window(width, height int, scheme string) {
	tab.t.Helper()
	tab.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	tab.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Screenshot is the window as a PNG.
func (tab *Tab) Screenshot() []byte {
	tab.t.Helper()
	var got struct{ Data []byte } // base64 in JSON
	tab.call("Page.captureScreenshot", map[string]any{"format": "png"}, &got)
	return got.Data
}
