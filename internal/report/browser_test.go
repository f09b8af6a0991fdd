//go:build browser

package report

// The page in a real browser: headless Chromium, driven through a pipe. Run by
// `make browser`; REMAT_CHROMIUM names the program where it is not "chromium".

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// browser speaks Chromium's DevTools protocol: JSON messages that end in a
// zero byte, written to descriptor 3 and read from descriptor 4.
type browser struct {
	cmd     *exec.Cmd
	out     *os.File
	in      *bufio.Reader
	next    int
	session string
	// events are the messages that answer no command.
	events []message
}

type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	program := os.Getenv("REMAT_CHROMIUM")
	if program == "" {
		program = "chromium"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v: install Debian's chromium or set REMAT_CHROMIUM", err)
	}
	read, childWrite := pipe(t)
	childRead, write := pipe(t)
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{childRead, childWrite}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	childRead.Close()
	childWrite.Close()
	b := &browser{cmd: cmd, out: write, in: bufio.NewReader(read)}
	// A browser that hangs must not hang the test.
	stop := time.AfterFunc(10*time.Minute, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		b.send("Browser.close", nil)
		cmd.Wait()
		stop.Stop()
	})
	return b
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

func (b *browser) send(method string, params any) error {
	b.next++
	m := map[string]any{"id": b.next, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" && !strings.HasPrefix(method, "Browser.") && !strings.HasPrefix(method, "Target.") {
		m["sessionId"] = b.session
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = b.out.Write(append(data, 0))
	return err
}

func (b *browser) receive() (message, error) {
	data, err := b.in.ReadBytes(0)
	if err != nil {
		return message{}, fmt.Errorf("chromium went away: %w", err)
	}
	var m message
	return m, json.Unmarshal(data[:len(data)-1], &m)
}

// call sends a command and waits for its answer.
func (b *browser) call(t *testing.T, method string, params any, result any) {
	t.Helper()
	if err := b.send(method, params); err != nil {
		t.Fatal(err)
	}
	for id := b.next; ; {
		m, err := b.receive()
		switch {
		case err != nil:
			t.Fatal(err)
		case m.ID != id:
			b.events = append(b.events, m)
			continue
		case m.Error != nil:
			t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
}

// eval runs a script in the page and decodes its JSON value.
func (b *browser) eval(t *testing.T, script string, value any) {
	t.Helper()
	var r struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	b.call(t, "Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true}, &r)
	if r.Exception != nil {
		t.Fatalf("script failed: %s\n%s", r.Exception.Text, script)
	}
	if value != nil {
		if err := json.Unmarshal(r.Result.Value, value); err != nil {
			t.Fatalf("%v: %s", err, r.Result.Value)
		}
	}
}

type view struct {
	width  int
	scheme string
}

// open loads the file at a width and a colour scheme and waits for the charts.
func (b *browser) open(t *testing.T, file string, v view) {
	t.Helper()
	if b.session == "" {
		var target struct{ TargetID string }
		b.call(t, "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
		var attached struct{ SessionID string }
		b.call(t, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
		b.session = attached.SessionID
		for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
			b.call(t, domain+".enable", nil, nil)
		}
	}
	b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": v.width, "height": 900, "deviceScaleFactor": 1, "mobile": v.width < 600}, nil)
	b.call(t, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": v.scheme}}}, nil)
	b.events = nil
	b.call(t, "Page.navigate", map[string]any{"url": "file://" + file}, nil)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var done bool
		b.eval(t, `location.protocol === "file:" && document.readyState === "complete" && document.querySelectorAll(".chart").length > 0 && document.querySelectorAll(".chart").length === document.querySelectorAll(".chart[data-drawn]").length`, &done)
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the charts were not drawn in time; events: %s", b.complaints())
		}
	}
}

// complaints are console errors, exceptions, log entries, and every request
// other than the page itself.
func (b *browser) complaints() string {
	var found []string
	for _, m := range b.events {
		switch m.Method {
		case "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded":
			found = append(found, m.Method+" "+string(m.Params))
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			if json.Unmarshal(m.Params, &p) != nil || !strings.HasPrefix(p.Request.URL, "file://") || !strings.HasSuffix(p.Request.URL, ".html") {
				found = append(found, "request "+p.Request.URL)
			}
		}
	}
	return strings.Join(found, "\n")
}

// chartState is what the page looks like around one chart.
type chartState struct {
	ID                  string
	Ink                 int     // pixels drawn
	Colors              int     // different ones
	Left, Right, Height float64 // in CSS pixels
}

const inspectCharts = `Array.from(document.querySelectorAll(".chart")).map(function (box) {
	var c = box.querySelector("canvas"), r = box.getBoundingClientRect(), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
	var ink = 0, colors = new Set();
	for (var i = 0; i < d.length; i += 4) {
		if (d[i + 3] > 0) { ink++; colors.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); }
	}
	return { ID: box.dataset.chart, Ink: ink, Colors: colors.size, Left: r.left, Right: r.right, Height: r.height };
})`

// overlaps lists boxes of text and charts that lie on each other.
const overlaps = `(function () {
	document.querySelectorAll("details").forEach(function (d) { d.open = true; });
	var boxes = Array.from(document.querySelectorAll("h1, h2, h3, .lead, .legend, .chart, figcaption, .scroll, .card, summary, footer")).filter(function (e) { return e.offsetParent !== null && e.getBoundingClientRect().height > 0; });
	var found = [];
	boxes.forEach(function (a, i) {
		boxes.slice(i + 1).forEach(function (b) {
			if (a.contains(b) || b.contains(a)) { return; }
			var p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
			if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1) { found.push(a.tagName + "." + a.className + " on " + b.tagName + "." + b.className + " " + b.textContent.slice(0, 40)); }
		});
	});
	return found;
})()`

// A tested page: how many charts it has, which one is pointed at, and words that
// its tooltip has then.
type tested struct {
	html  func(io.Writer) error
	drawn int
	hover string
	words []string
}

func TestBrowser(t *testing.T) {
	pages := map[string]tested{}
	for name, p := range map[string]*Page{"report": fixturePage(), "hostile": {Title: hostile, Command: hostile, Compare: fixtureHostile()},
		"single": {Title: "one run, predicted", Compare: &Compare{Models: []*Run{untimed(fixtureRun("alone", 4, 0, 1))}}},
		"six":    {Title: "six variants", Compare: fixtureSix()}} {
		pages[name] = tested{p.HTML, len(p.Compare.charts()), "timeline-0", []string{"activations", "total", "MiB", "largest live buffers", "←"}}
	}
	for name, p := range map[string]*Training{"training": fixtureTraining(300), "training-long": fixtureTraining(100_000), "training-begun": fixtureTraining(1)} {
		words := []string{"training", "step"}
		if name == "training-long" {
			words = append(words, "mean", "smallest to largest")
		}
		pages[name] = tested{p.HTML, len(p.charts()), "loss", words}
	}
	b := startBrowser(t)
	for name, p := range pages {
		file := filepath.Join(t.TempDir(), name+".html")
		f, err := os.Create(file)
		if err := errors.Join(err, p.html(f), f.Close()); err != nil {
			t.Fatal(err)
		}
		for _, v := range []view{{1280, "light"}, {1280, "dark"}, {400, "light"}, {400, "dark"}} {
			t.Run(fmt.Sprintf("%s-%d-%s", name, v.width, v.scheme), func(t *testing.T) {
				b.open(t, file, v)
				b.checkCharts(t, p, v)
				b.checkHover(t, p)
				b.screenshot(t, name, v)
				if s := b.complaints(); s != "" {
					t.Errorf("the browser complains:\n%s", s)
				}
			})
		}
	}
}

func (b *browser) checkCharts(t *testing.T, p tested, v view) {
	t.Helper()
	var states []chartState
	b.eval(t, inspectCharts, &states)
	if len(states) != p.drawn {
		t.Errorf("%d charts on the page, %d in the report", len(states), p.drawn)
	}
	for _, s := range states {
		if s.Ink < 500 || s.Colors < 3 {
			t.Errorf("chart %s has not drawn: %d pixels of %d colours", s.ID, s.Ink, s.Colors)
		}
		if s.Left < 0 || s.Right > float64(v.width) {
			t.Errorf("chart %s reaches from %.0f to %.0f of %d pixels", s.ID, s.Left, s.Right, v.width)
		}
	}
	var wide float64
	b.eval(t, "document.documentElement.scrollWidth", &wide)
	if wide > float64(v.width) {
		t.Errorf("the page is %.0f pixels wide, the window %d", wide, v.width)
	}
	var on []string
	b.eval(t, overlaps, &on)
	if len(on) > 0 {
		t.Errorf("overlaps: %q", on)
	}
	var alerts int
	b.eval(t, `document.querySelectorAll("img, iframe, object, embed, link").length`, &alerts)
	if alerts != 0 {
		t.Errorf("%d foreign elements on the page: a name became markup", alerts)
	}
}

// checkHover points at the middle of a chart and reads the tooltip.
func (b *browser) checkHover(t *testing.T, p tested) {
	t.Helper()
	var at struct{ X, Y float64 }
	middle := fmt.Sprintf(`(function () { var e = document.getElementById("chart-%s"); e.scrollIntoView({ block: "center" }); var r = e.getBoundingClientRect(); return { X: r.left + r.width * .4, Y: r.top + r.height * .6 }; })()`, p.hover)
	read := fmt.Sprintf(`(document.querySelector("#chart-%s .tip") || { textContent: "" }).textContent`, p.hover)
	var tip string
	for i := range 40 { // the page may still settle, and a pointer that stays says nothing new
		b.eval(t, middle, &at)
		b.call(t, "Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": at.X + float64(i%3), "y": at.Y}, nil)
		b.eval(t, read, &tip)
		if tip != "" {
			break
		}
		time.Sleep(25 * time.Millisecond)
	}
	for _, want := range p.words {
		if !strings.Contains(tip, want) {
			t.Errorf("tooltip lacks %q: %q", want, tip)
		}
	}
}

// screenshot keeps a picture of the whole page under REMAT_SCREENSHOTS.
func (b *browser) screenshot(t *testing.T, name string, v view) {
	t.Helper()
	dir := os.Getenv("REMAT_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call(t, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true, "clip": b.pageRect(t, v)}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	file := filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, v.width, v.scheme))
	if err := errors.Join(err, os.WriteFile(file, data, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func (b *browser) pageRect(t *testing.T, v view) map[string]any {
	t.Helper()
	var height float64
	b.eval(t, "document.documentElement.scrollHeight", &height)
	return map[string]any{"x": 0, "y": 0, "width": v.width, "height": height, "scale": 1}
}

// untimed takes the times off a run, as a prediction has none.
func untimed(r *Run) *Run {
	for i := range r.Timeline.Events {
		r.Timeline.Events[i].Seconds = 0
	}
	r.Steps, r.StepSeconds, r.TopTime = nil, nil, nil
	r.SetTimeline(r.Timeline)
	return r
}

// fixtureSix is the six standard variants, one of them out of memory.
func fixtureSix() *Compare {
	c := &Compare{Models: []*Run{
		fixtureRun("baseline", 12, 0, 1), fixtureRun("half precision", 12, 0, 1.31), fixtureRun("checkpointing", 12, 1, 1.08),
		fixtureRun("accumulation ×4", 12, 4, 1.17), fixtureRun("half precision + checkpointing", 12, 2, 1.4),
		{Model: "out/all.onnx", Label: "all", Provider: "cpu", Error: "out of memory: 96.0 MiB asked, 12.5 MiB left"},
	}}
	for i, m := range c.Models[1:] {
		for j := range m.Steps {
			m.Steps[j].Outputs["loss"] += Float(0.02 * float64(i))
		}
		c.Pairs = append(c.Pairs, NewPair(c.Models[0], m, Difference{Loss: new(Float(0.02 * float64(i))), RelativeGradient: new(Float(1e-3 * float64(i)))}))
	}
	return c
}
