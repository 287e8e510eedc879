// SPDX-License-Identifier: Apache-2.0

// Package once keeps the contract of Idempotency-Key for Go services, by `once
// serve`.
//
//	handler, err := once.Handler(mux, once.Options{
//		Scope: func(r *http.Request) string { return user(r) },
//	})
//
//	client, err := once.NewClient(once.Options{})
//	receipt, err := once.Call(client, once.Task{Group: "charge", Key: order.ID},
//		func() (Receipt, error) { ... })
//
// A request goes to the server before the handler runs, and the handler's answer
// before the client gets it. The server decides; this file carries. It refuses to
// send a byte of an answer before the server has said that it is durable. The same
// holds for a function and its result.
package once

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

const (
	beginFor  = time.Second     // how long a begin is repeated after its first failure
	answerFor = 5 * time.Second // how long an answer may take, beside what it waits for
	idleMax   = 64              // connections that wait for work; no bound on busy ones
	// What was begun and not answered is abandoned for so long, and so many at a time.
	abandonFor  = time.Minute
	abandonsMax = 64
)

var internal = []string{"Idempotency-Attempt", "Idempotency-Outcome",
	"Idempotency-Probe", "Idempotency-Record", "Idempotency-Recorded-Status",
	"Idempotency-Status", "Idempotent-Replayed"}

// Options of a handler. Scope tells who has authenticated, or "": 401. The callers
// of one scope can get each other's answers.
type Options struct {
	Scope func(*http.Request) string
	// The options, named as the directives, as map[string]any; or a name that the
	// server knows. {"scope": "off"} in place of Scope.
	Route any
	// In place of the header, of what is compared, of what operators see; "": none.
	Key, Fingerprint, Label func(*http.Request) string
	// Requests pass while the server is away; only with lost takeover and
	// store_failure bypass.
	Bypass bool
	// Where the server is; or ONCE_SERVE and ONCE_SERVE_TOKEN_FILE.
	Serve, TokenFile string
	Log              *log.Logger // nil: the standard one
}

type answer struct {
	status int
	lines  [][2]string
	body   []byte
	own    bool
}

func problem(code string, status int, title, detail, state, marker string) answer {
	body := fmt.Sprintf(`{"type":"urn:problem-type:once:%s","title":"%s","status":%d,`+
		`"detail":"%s","code":"%s","retryable":true,"safe_new_key":false,`+
		`"state":"%s","error":{"type":"api_error","code":"%s","message":"%s"}}`,
		code, title, status, detail, code, state, code, detail)
	lines := [][2]string{{"Content-Type", "application/problem+json"},
		{"Cache-Control", "no-store"}, {"Idempotency-Status", marker}}
	if status == http.StatusServiceUnavailable {
		lines = append(lines, [2]string{"Retry-After", "1"})
	}
	return answer{status: status, lines: lines, body: []byte(body)}
}

var unavailable = problem("store-unavailable", 503,
	"The idempotency store is unavailable", "Nothing was done now. Send the same "+
		"key again after the time in Retry-After.", "any", "unavailable")
var unknown = problem("outcome-unknown", 502,
	"The outcome of this request is not known",
	"It may have taken effect. Do not use a new key: find out first.",
	"indeterminate", "indeterminate")

// ---- The server ---------------------------------------------------------------

// Where it is, and how it is asked.
type server struct {
	client   http.Client
	where    string
	url      string
	token    string
	log      *log.Logger
	abandons chan struct{} // one for each that is under way
}

// What an answer's head may have.
type head struct {
	Do          string      `json:"do"`
	Token       string      `json:"token"`
	Attempt     int         `json:"attempt"`
	Record      string      `json:"record"`
	Key         *string     `json:"key"`
	LeaseMS     int64       `json:"lease_ms"`
	MaxResponse int         `json:"max_response"`
	RunMS       int64       `json:"run_ms"`
	WaitMS      int64       `json:"wait_ms"`
	MaxRequest  int64       `json:"max_request"`
	Status      int         `json:"status"`
	Headers     [][2]string `json:"headers"`
	Text        string      `json:"text"`
	// Of calls.
	Kind         string `json:"kind"`
	Code         int    `json:"code"`
	Type         string `json:"type"`
	RetryAfterMS int64  `json:"retry_after_ms"`
}

type told struct {
	code int
	head head
	body []byte
}

// A character of the protocol is a byte.
func characters(s string) string {
	out := make([]rune, len(s))
	for i := 0; i < len(s); i++ {
		out[i] = rune(s[i])
	}
	return string(out)
}

func octets(s string) string {
	var out strings.Builder
	for _, r := range s {
		out.WriteByte(byte(r))
	}
	return out.String()
}

func reach(o Options) (*server, error) {
	s := &server{url: "http://once", log: o.Log,
		abandons: make(chan struct{}, abandonsMax)}
	if s.log == nil {
		s.log = log.Default()
	}
	s.where = first(o.Serve, os.Getenv("ONCE_SERVE"), "unix:/run/once/serve.sock")
	if file := first(o.TokenFile, os.Getenv("ONCE_SERVE_TOKEN_FILE")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("once: the token file: %w", err)
		}
		line, _, _ := strings.Cut(string(text), "\n")
		s.token = strings.TrimSpace(line)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: idleMax, DisableCompression: true}
	if path := strings.TrimPrefix(s.where, "unix:"); path != s.where {
		transport.DialContext = func(c context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(c, "unix", path)
		}
	} else {
		address := strings.TrimSuffix(strings.TrimPrefix(s.where, "http://"), "/")
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("once: Serve is %q: it has to be unix:PATH or "+
				"http://HOST:PORT", s.where)
		}
		s.url = "http://" + address
	}
	s.client = http.Client{Transport: transport}
	return s, nil
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// One for each attempt, of the system's random source.
func newID() string {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err)
	}
	return hex.EncodeToString(id)
}

func (s *server) ask(ctx context.Context, path string, what map[string]any,
	body []byte) (*told, error) {
	line, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	data := append(append(line, '\n'), body...)
	r, err := http.NewRequestWithContext(ctx, "POST", s.url+"/v1/"+path,
		bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/vnd.once")
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	data, err = io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	first, rest, _ := bytes.Cut(data, []byte("\n"))
	out := &told{code: answer.StatusCode, body: rest}
	if err = json.Unmarshal(first, &out.head); err != nil {
		return nil, fmt.Errorf("status %d without a line of JSON: this is no once serve",
			answer.StatusCode)
	}
	return out, nil
}

// Every call may be repeated. nil: there is no answer within the time, which counts from
// the call: a server that is stopped accepts connections, and never answers. After the
// first failure no new attempt begins when `more` is over.
func (s *server) repeat(path string, what map[string]any, body []byte,
	within, more time.Duration) *told {
	until := time.Now().Add(within)
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	isFirst := true
	for pause := 50 * time.Millisecond; ; {
		t, err := s.ask(ctx, path, what, body)
		if err == nil && t.code != http.StatusServiceUnavailable {
			return t
		}
		if err != nil {
			s.log.Printf("once: %s: no answer from once serve at %s: %v. Check that it "+
				"runs there and that this user may connect to it.", path, s.where, err)
			s.client.CloseIdleConnections()
		}
		if end := time.Now().Add(more); isFirst && end.Before(until) {
			until = end
		}
		isFirst = false
		if time.Now().Add(pause).After(until) {
			return nil
		}
		time.Sleep(pause)
		if pause *= 2; pause > time.Second {
			pause = time.Second
		}
		if strings.HasSuffix(path, "begin") {
			what["again"] = true
		}
	}
}

// It was not run, and will not be. A server that stood still reads what was begun when it
// goes on, so it is told for a minute; nobody waits for longer than a second.
func (s *server) abandon(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), abandonFor)
	done := make(chan struct{})
	select {
	case s.abandons <- struct{}{}:
	default: // enough of them wait: the record is unknown when `run` is over
		cancel()
		return
	}
	go func() {
		defer func() { <-s.abandons }()
		defer cancel()
		defer close(done)
		for ctx.Err() == nil {
			_, err := s.ask(ctx, "abandon", map[string]any{"id": id}, nil)
			if err == nil {
				return
			}
			time.Sleep(beginFor / 2)
		}
	}()
	select {
	case <-done:
	case <-time.After(beginFor):
	}
}

// nil: the server is away, and what it might have begun is abandoned.
func (s *server) begin(path string, what map[string]any, body []byte,
	wait time.Duration) *told {
	t := s.repeat(path, what, body, wait+answerFor, beginFor)
	if t == nil {
		s.abandon(what["id"].(string))
	}
	return t
}

// What became of what was begun. nil: the server is away.
func (s *server) tell(path string, what map[string]any, body []byte,
	lease time.Duration) *told {
	t := s.repeat(path, what, body, lease, lease)
	if t != nil && t.code != http.StatusOK {
		s.log.Printf("once: %s: once serve refuses it: %s", path, t.head.Text)
	}
	return t
}

// ---- One request ----------------------------------------------------------------

type guard struct {
	Options
	*server
	next  http.Handler
	known atomic.Pointer[limits]
}

// What the server says of a route.
type limits struct {
	most int64         // bytes of a body that are read
	wait time.Duration // how long a begin waits for another one
}

// The second value says what is wrong with the route. nil and "": the server is away.
func (g *guard) limits() (*limits, string) {
	if l := g.known.Load(); l != nil {
		return l, ""
	}
	t := g.repeat("route", map[string]any{"route": g.Route}, nil, answerFor, beginFor)
	switch {
	case t == nil || t.code == http.StatusUnauthorized:
		return nil, ""
	case t.code != http.StatusOK:
		return nil, t.head.Text
	case t.head.MaxRequest <= 0:
		return nil, "the answer has no max_request"
	}
	l := &limits{t.head.MaxRequest, time.Duration(t.head.WaitMS) * time.Millisecond}
	g.known.Store(l)
	return l, ""
}

type exchange struct {
	*guard
	run head
}

func (x *exchange) tell(path string, what map[string]any, body []byte) *told {
	what["token"], what["route"] = x.run.Token, x.Route
	return x.server.tell(path, what, body, time.Duration(x.run.LeaseMS)*time.Millisecond)
}

func sent(t *told) answer {
	return answer{status: t.head.Status, lines: t.head.Headers, body: t.body}
}

// What the client gets. A stream is recorded as not kept.
func (x *exchange) end(status int, lines [][2]string, body []byte,
	stream bool) answer {
	what := map[string]any{"status": status, "headers": lines}
	if stream {
		what["stream"] = true
		body = nil
	}
	t := x.tell("end", what, body)
	if t != nil && t.code == http.StatusUnprocessableEntity {
		a, _ := x.broken(http.StatusBadGateway) // it cannot be carried
		return a
	}
	if t == nil || t.code != http.StatusOK {
		return unknown
	}
	out := sent(t)
	if t.head.Do == "own" {
		out.own, out.body = true, body
	}
	return out
}

// The handler ended without an answer: what it did is not known. false: nobody
// guards it (a dry run), so it breaks as it would without Once.
func (x *exchange) broken(status int) (answer, bool) {
	t := x.tell("broken", map[string]any{"status": status}, nil)
	if t == nil || t.code != http.StatusOK {
		return unknown, true
	}
	if t.head.Do != "send" {
		return unknown, false
	}
	return sent(t), true
}

// ---- The response, held ---------------------------------------------------------

type writer struct {
	x        *exchange
	w        http.ResponseWriter
	ctx      *handling
	header   http.Header // the handler's, which it may change at any time
	head     http.Header // what it was when the status was set
	status   int
	body     bytes.Buffer
	size     int64           // of what a stream has had
	isHead   bool            // of a HEAD: its Content-Length tells of no body
	told     bool            // the server has answered
	stream   bool            // what follows is sent as it comes
	unwanted bool            // another answer was sent in place of a stream
	client   context.Context // ends when the client leaves
	broken   atomic.Pointer[error]
}

// What a handler's context is: the values of the request's, which the server ends when
// the client leaves. That ends nothing that may have had its effect. It ends with the
// deadline that the program has set, or when `run` is over.
type handling struct {
	context.Context // for values; of its own, for it ends with the handler
	end             func()
	held            *writer
	done            chan struct{}
	mutex           sync.Mutex // of what follows
	until           time.Time
	timer           *time.Timer
	err             error
}

type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }

type heldKey struct{}

func handle(h *writer, of context.Context, run time.Duration) *handling {
	c := &handling{held: h, done: make(chan struct{}), until: time.Now().Add(run)}
	c.Context, c.end = context.WithCancel(detached{of})
	if until, given := of.Deadline(); given && until.Before(c.until) {
		c.until = until
	}
	c.mutex.Lock() // a deadline that is over fires at once
	defer c.mutex.Unlock()
	c.timer = time.AfterFunc(time.Until(c.until),
		func() { c.cancel(context.DeadlineExceeded) })
	return c
}

func (c *handling) Done() <-chan struct{} { return c.done }

func (c *handling) Deadline() (time.Time, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.until, !c.until.IsZero()
}

func (c *handling) Err() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.err
}

func (c *handling) Value(key any) any {
	if key == (heldKey{}) {
		return c.held
	}
	return c.Context.Value(key)
}

func (c *handling) cancel(why error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.err == nil {
		c.err = why
		c.timer.Stop()
		close(c.done)
		c.end()
	}
}

// A stream is recorded, and has no time. It ends with its client.
func (c *handling) follow(client context.Context) {
	c.mutex.Lock()
	c.timer.Stop()
	c.until = time.Time{}
	c.mutex.Unlock()
	go func() {
		select {
		case <-client.Done():
			c.cancel(client.Err())
		case <-c.done:
		}
	}()
}

var errPanic = errors.New("it panicked, and what recovered that has answered")

// Broken says that the handler of the request with this context broke off: what it did
// is not known, whatever the answer is. It is for what recovers a panic inside of
// Handler. Where a cause is an error whose Timeout() is true the client gets a 504.
// After the handler has returned, or outside of Handler, it does nothing.
func Broken(ctx context.Context, cause any) {
	if h, isHeld := ctx.Value(heldKey{}).(*writer); isHeld {
		h.breakOff(cause)
	}
}

func (h *writer) breakOff(cause any) {
	err, isError := cause.(error)
	if !isError {
		err = fmt.Errorf("%v", cause)
	}
	h.broken.CompareAndSwap(nil, &err)
}

// An answer that is written while a panic unwinds is not the handler's, nor is that of
// http.TimeoutHandler when the time is over: the handler still runs. What the handler
// has said by Idempotency-Outcome does not count, since it said so before.
func (h *writer) look() {
	var pcs [128]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for callee, more := "", true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		switch {
		case strings.HasSuffix(f.Function, ".(*guard).runs"):
			return
		case f.Function == "runtime.gopanic":
			h.breakOff(errPanic)
			return
		case callee == "io.WriteString" &&
			f.Function == "net/http.(*timeoutHandler).ServeHTTP":
			h.breakOff(context.DeadlineExceeded)
			return
		}
		callee = f.Function
	}
}

func (h *writer) Header() http.Header { return h.header }

// Interim answers (1xx) are not sent: nothing leaves before the record.
func (h *writer) WriteHeader(status int) {
	if status < 100 || status > 999 || status == http.StatusSwitchingProtocols {
		panic(fmt.Sprintf("once: WriteHeader(%d): a status is 100 to 999, and a guarded "+
			"request is never upgraded", status))
	}
	h.look()
	if status >= 200 {
		h.settle(status)
	}
}

func (h *writer) settle(status int) {
	if h.status == 0 {
		h.status, h.head = status, h.header.Clone()
		if h.head == nil {
			h.head = http.Header{}
		}
	}
}

func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

func (h *writer) Write(data []byte) (int, error) {
	if h.stream {
		n, err := h.w.Write(data)
		h.size += int64(n)
		return n, err
	}
	if h.told {
		return 0, errors.New("once: another answer was sent, or the handler has returned")
	}
	h.look()
	h.settle(http.StatusOK)
	if !hasBody(h.status) {
		return 0, http.ErrBodyNotAllowed
	}
	h.body.Write(data)
	if h.body.Len() > h.x.run.MaxResponse || h.isStream() {
		h.begin()
	}
	return len(data), nil
}

// Flush makes a stream of an answer, as net/http itself does.
func (h *writer) Flush() {
	if !h.told {
		h.look()
		h.settle(http.StatusOK)
		h.begin()
	}
	if f, ok := outer[http.Flusher](h.w); ok && h.stream {
		f.Flush()
	}
}

// CloseNotify tells of a client that leaves a stream.
func (h *writer) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	go func() {
		<-h.ctx.Done()
		if h.ctx.Err() == context.Canceled {
			gone <- true
		}
	}()
	return gone
}

// What can do so of the writers around this one, as http.ResponseController looks for it.
func outer[T any](w http.ResponseWriter) (T, bool) {
	for {
		if found, ok := w.(T); ok {
			return found, true
		}
		next, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			var none T
			return none, false
		}
		w = next.Unwrap()
	}
}

// SetReadDeadline is the connection's.
func (h *writer) SetReadDeadline(t time.Time) error {
	if c, ok := outer[interface{ SetReadDeadline(time.Time) error }](h.w); ok {
		return c.SetReadDeadline(t)
	}
	return http.ErrNotSupported
}

// SetWriteDeadline is the connection's.
func (h *writer) SetWriteDeadline(t time.Time) error {
	if c, ok := outer[interface{ SetWriteDeadline(time.Time) error }](h.w); ok {
		return c.SetWriteDeadline(t)
	}
	return http.ErrNotSupported
}

// EnableFullDuplex has nothing to do: the body was read.
func (h *writer) EnableFullDuplex() error { return nil }

// By a name that may be written in any way.
func (h *writer) find(wanted string) (string, bool) {
	header := h.head
	if header == nil {
		header = h.header
	}
	for name, values := range header {
		if strings.EqualFold(name, wanted) && len(values) > 0 {
			return values[0], true
		}
	}
	_, given := header[wanted] // nil: the handler wants none
	return "", given
}

func (h *writer) isStream() bool {
	kind, _ := h.find("Content-Type")
	kind, _, _ = strings.Cut(kind, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	buffering, _ := h.find("X-Accel-Buffering")
	return kind == "text/event-stream" || kind == "application/x-ndjson" ||
		strings.EqualFold(buffering, "no")
}

// As net/http would: the recorded answer has what the first client sees. Trailers are
// neither sent nor recorded.
func (h *writer) lines() [][2]string {
	_, given := h.find("Content-Type")
	encoding, _ := h.find("Content-Encoding")
	if !given && h.body.Len() > 0 && encoding == "" {
		h.head.Set("Content-Type", http.DetectContentType(h.body.Bytes()))
	}
	out := [][2]string{}
	for name, values := range h.head {
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		for _, value := range values {
			out = append(out, [2]string{characters(name), characters(value)})
		}
	}
	return out
}

// It tells the server, and the client gets what that answers.
func (h *writer) begin() {
	h.told = true
	var a answer
	if h.broken.Load() != nil {
		a = h.ended()
	} else {
		a = h.x.end(h.status, h.lines(), nil, true)
	}
	if !a.own { // another one
		h.unwanted = true
		send(h.w, a)
		if f, ok := outer[http.Flusher](h.w); ok {
			f.Flush()
		}
		h.ctx.cancel(context.Canceled)
		return
	}
	h.stream = true
	h.ctx.follow(h.client)
	start(h.w, a)
	n, _ := h.w.Write(h.body.Bytes())
	h.size = int64(n)
}

// What the client gets for an answer of a handler that broke off. In a dry run it is
// that answer.
func (h *writer) ended() answer {
	if a, guarded := h.fail(*h.broken.Load()); guarded {
		return a
	}
	return answer{status: h.status, lines: h.lines(), body: h.body.Bytes(), own: true}
}

func (h *writer) finish() {
	if h.stream {
		h.finishStream()
	}
	if h.told {
		return
	}
	h.told = true
	h.settle(http.StatusOK)
	outcome, _ := h.find("Idempotency-Outcome")
	if h.ctx.Err() == context.DeadlineExceeded && h.status >= 500 && outcome == "" {
		h.breakOff(context.DeadlineExceeded) // it was told to end, and how is not known
	}
	if h.broken.Load() != nil {
		send(h.w, h.ended())
		return
	}
	send(h.w, h.x.end(h.status, h.lines(), h.body.Bytes(), false))
}

// One that breaks off later, or is not as long as it says, breaks off for the client.
func (h *writer) finishStream() {
	length, given := h.find("Content-Length")
	declared, err := strconv.ParseInt(length, 10, 64)
	isShort := given && !h.isHead && (err != nil || declared != h.size)
	if cause := h.broken.Load(); cause != nil {
		h.x.log.Printf("once: the handler broke: %v", *cause)
	} else if isShort {
		h.x.log.Printf("once: the handler sent %d bytes after Content-Length: %s", h.size,
			length)
	} else {
		return
	}
	panic(http.ErrAbortHandler)
}

// Lines that a handler around this one has set stay, unless the answer has its own.
func start(w http.ResponseWriter, a answer) {
	header := w.Header()
	header["Content-Type"] = nil // none is guessed
	for _, line := range a.lines {
		header.Del(octets(line[0]))
	}
	for _, line := range a.lines {
		name := octets(line[0])
		header[name] = append(header[name], octets(line[1]))
	}
	w.WriteHeader(a.status)
}

func send(w http.ResponseWriter, a answer) {
	if hasBody(a.status) {
		length := strconv.Itoa(len(a.body))
		a.lines = append(append([][2]string{}, a.lines...),
			[2]string{"Content-Length", length})
	}
	start(w, a)
	if hasBody(a.status) {
		_, _ = w.Write(a.body)
	}
}

// ---- The handler ------------------------------------------------------------------

// Handler guards next. A route that cannot be is an error, if the server is there.
func Handler(next http.Handler, o Options) (http.Handler, error) {
	g := &guard{Options: o, next: next}
	if g.Route == nil {
		g.Route = map[string]any{}
	}
	if route, ok := g.Route.(map[string]any); ok {
		if o.Bypass && (route["lost"] != "takeover" || route["store_failure"] != "bypass") {
			return nil, errors.New("once: Bypass needs the route to have " +
				`"lost": "takeover" and "store_failure": "bypass"`)
		}
		if o.Scope == nil && route["scope"] != "off" {
			return nil, errors.New("once: Scope is missing: set a function that tells " +
				`who has authenticated, or the route to {"scope": "off"}`)
		}
	}
	var err error
	if g.server, err = reach(o); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerFor)
	defer cancel()
	t, err := g.ask(ctx, "route", map[string]any{"route": g.Route}, nil)
	if err == nil && t.code == http.StatusUnprocessableEntity {
		return nil, fmt.Errorf("once: once serve refuses the route: %s", t.head.Text)
	}
	return g, nil
}

// What functions compute of a request. They may read its body.
func (g *guard) compute(r *http.Request, body []byte) (map[string]any, error) {
	what := map[string]any{}
	for name, compute := range map[string]func(*http.Request) string{"scope": g.Scope,
		"key": g.Key, "fingerprint": g.Fingerprint, "label": g.Label} {
		if compute == nil {
			continue
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		value := compute(r)
		// JSON would make one text of all that is not UTF-8: two callers would be one,
		// and get each other's answers.
		if !utf8.ValidString(value) {
			return nil, fmt.Errorf("what the function for %q returns is not UTF-8", name)
		}
		if value != "" {
			what[name] = value
		}
	}
	return what, nil
}

func (g *guard) begin(r *http.Request, what map[string]any, body []byte,
	wait time.Duration) *told {
	lines := [][2]string{{"Host", characters(r.Host)}}
	for name, values := range r.Header {
		for _, value := range values {
			lines = append(lines, [2]string{characters(name), characters(value)})
		}
	}
	what["id"], what["method"], what["route"] = newID(), r.Method, g.Route
	what["target"], what["headers"] = characters(r.RequestURI), lines
	t := g.server.begin("begin", what, body, wait)
	if t == nil {
		g.known.Store(nil) // the next server may have another route of this name
	}
	return t
}

// It runs nothing, and says why.
func (g *guard) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	g.log.Printf("once: %s %s: %s", r.Method, r.URL.Path, why)
	send(w, answer{status: status})
}

func (g *guard) away(w http.ResponseWriter, r *http.Request) {
	if !g.Bypass {
		send(w, unavailable)
		return
	}
	g.next.ServeHTTP(w, r)
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l, wrong := g.limits()
	if wrong != "" {
		g.refuse(w, r, http.StatusInternalServerError, "the route: "+wrong)
		return
	}
	if l == nil {
		hide(r)
		g.away(w, r)
		return
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	state := stateOf(r)
	// One byte more than is allowed is a 413.
	body, err := io.ReadAll(io.LimitReader(r.Body, l.most+1))
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, http.ErrBodyReadAfterClose):
		state = bodyTaken
	case errors.As(err, &over): // a limit of a handler around this one
		g.refuse(w, r, http.StatusRequestEntityTooLarge, err.Error())
		return
	case err != nil:
		panic(http.ErrAbortHandler)
	}
	wrong = missing(r, state, int64(len(body)), l.most)
	original := r.Body
	what, err := g.compute(r, body)
	if err != nil {
		g.refuse(w, r, http.StatusInternalServerError, err.Error())
		return
	}
	if wrong != "" && what["fingerprint"] == nil {
		g.refuse(w, r, http.StatusInternalServerError, wrong)
		return
	}
	t := g.begin(r, what, body, l.wait)
	hide(r)
	// What is not guarded may be longer: the rest is still to be read.
	r.Body = rest{io.MultiReader(bytes.NewReader(body), original), original}
	g.obey(w, r, t, body, l.most, what["id"].(string))
}

// Does what the server says.
func (g *guard) obey(w http.ResponseWriter, r *http.Request, t *told, body []byte,
	most int64, id string) {
	switch {
	case t == nil:
		g.away(w, r)
	case t.code == http.StatusUnauthorized:
		g.log.Print("once: begin: once serve refuses the token: see TokenFile")
		send(w, unavailable)
	case t.code != http.StatusOK:
		g.refuse(w, r, http.StatusInternalServerError, "begin: "+t.head.Text)
	case t.head.Do == "send":
		send(w, sent(t))
	case t.head.Do == "pass":
		for _, line := range t.head.Headers {
			w.Header().Add(octets(line[0]), octets(line[1]))
		}
		g.next.ServeHTTP(w, r)
	case t.head.Do != "run":
		g.refuse(w, r, http.StatusInternalServerError,
			fmt.Sprintf("begin: the server says %q, which is not known here", t.head.Do))
	case int64(len(body)) > most:
		// The server has seen a part of the body only, and its route takes more
		// since it was restarted: no handler runs with a part.
		g.known.Store(nil)
		g.abandon(id)
		g.refuse(w, r, http.StatusInternalServerError,
			"begin: the body is longer than the middleware takes")
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		g.runs(w, r, &exchange{g, t.head})
	}
}

// What was read and what was not.
type rest struct {
	io.Reader
	io.Closer
}

// Lines of a client that only the server may set.
func hide(r *http.Request) {
	for _, name := range internal {
		r.Header.Del(name)
	}
}

func (g *guard) runs(w http.ResponseWriter, r *http.Request, x *exchange) {
	r.Header.Set("Idempotency-Attempt", strconv.Itoa(x.run.Attempt))
	r.Header.Set("Idempotency-Record", x.run.Record)
	if x.run.Key != nil {
		r.Header.Set("Idempotency-Key", *x.run.Key)
	}
	h := &writer{x: x, w: w, header: http.Header{}, client: r.Context(),
		isHead: r.Method == http.MethodHead}
	h.ctx = handle(h, r.Context(), time.Duration(x.run.RunMS)*time.Millisecond)
	returned := false
	defer func() {
		h.ctx.cancel(context.Canceled)
		if !returned {
			h.broke(recover()) // nil: panic(nil), or runtime.Goexit()
		}
	}()
	g.next.ServeHTTP(h, r.WithContext(h.ctx))
	returned = true
	h.finish()
}

// The handler has not returned.
func (h *writer) broke(wrong any) {
	if h.told { // the client has a head already
		panic(http.ErrAbortHandler)
	}
	h.told = true
	a, guarded := h.fail(wrong)
	if !guarded {
		panic(http.ErrAbortHandler)
	}
	send(h.w, a)
}

// false: nobody guards it.
func (h *writer) fail(wrong any) (answer, bool) {
	h.x.log.Printf("once: the handler broke: %v", wrong)
	status := http.StatusBadGateway
	var late interface{ Timeout() bool } // of net, os and context
	if err, ok := wrong.(error); ok && errors.As(err, &late) && late.Timeout() {
		status = http.StatusGatewayTimeout
	}
	return h.x.broken(status)
}

// ---- A body that was read before ------------------------------------------------------

// Without its body a request would be the same as others of its key. With a
// Content-Length what is missing is seen by counting, and without one in the reader of
// net/http, which has no better way to ask it.
type bodyState int

const (
	bodyWhole   bodyState = iota // nothing was read, or it was put back
	bodyTaken                    // it was read, in part or whole
	bodyUnclear                  // it is of a type that says nothing of that
)

// Before the body is read.
func stateOf(r *http.Request) bodyState {
	if r.ContentLength >= 0 || r.Body == http.NoBody {
		return bodyWhole
	}
	body, state := bodyOf(reflect.ValueOf(r.Body), 8)
	if !body.IsValid() {
		return state
	}
	if src := follow(body.FieldByName("src")); src.Kind() == reflect.Struct {
		return chunkedState(body, src)
	}
	return flag(body, "sawEOF") // HTTP/2
}

// After `size` bytes of it were read: what is wrong, or "".
func missing(r *http.Request, state bodyState, size, most int64) string {
	of := ""
	isTaken := state == bodyTaken
	if wanted := r.ContentLength; wanted >= 0 {
		of = fmt.Sprintf(" of %d", wanted)
		isTaken = isTaken || size < wanted && size < most
	} else if size <= most {
		came, known := received(r)
		isTaken = isTaken || state == bodyUnclear && size == 0 || known && size < came
	}
	if !isTaken {
		return ""
	}
	return fmt.Sprintf("the body was read before: %d%s bytes are left. Put once.Handler "+
		"around what reads it, restore r.Body there, or set Fingerprint", size, of)
}

var readerType = reflect.TypeOf((*io.Reader)(nil)).Elem()

// Where bytes are put back from.
var holders = map[string]bool{"*bytes.Reader": true, "*bytes.Buffer": true,
	"*strings.Reader": true, "*bufio.Reader": true, "*io.multiReader": true}

var bodies = map[string]bool{"*http.body": true, "*http.http2requestBody": true,
	"*http2.requestBody": true}

// The body of net/http in what the program has put around it, if that holds no bytes.
func bodyOf(v reflect.Value, deep int) (reflect.Value, bodyState) {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() || deep == 0 {
		return reflect.Value{}, bodyUnclear
	}
	name := v.Type().String()
	if holders[name] {
		return reflect.Value{}, bodyWhole
	}
	if v = follow(v); v.Kind() != reflect.Struct {
		return reflect.Value{}, bodyUnclear
	}
	if bodies[name] {
		return v, bodyUnclear
	}
	for i := 0; i < v.NumField(); i++ {
		if v.Type().Field(i).Type.Implements(readerType) {
			if body, state := bodyOf(v.Field(i), deep-1); state != bodyUnclear ||
				body.IsValid() {
				return body, state
			}
		}
	}
	return reflect.Value{}, bodyUnclear
}

func follow(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v
}

// A chunked body of HTTP/1.
func chunkedState(body, src reflect.Value) bodyState {
	left, err := src.FieldByName("n"), src.FieldByName("err")
	if left.Kind() != reflect.Uint64 || err.Kind() != reflect.Interface {
		return bodyUnclear
	}
	if left.Uint() != 0 || !err.IsNil() {
		return bodyTaken
	}
	state := flag(src, "checkEnd") // a chunk was read to its end
	for _, name := range []string{"sawEOF", "closed"} {
		if state == bodyWhole {
			state = flag(body, name)
		}
	}
	return state
}

func flag(v reflect.Value, name string) bodyState {
	f := v.FieldByName(name)
	switch {
	case f.Kind() != reflect.Bool:
		return bodyUnclear
	case f.Bool():
		return bodyTaken
	}
	return bodyWhole
}

// How many bytes of a body of HTTP/2 have come, when its end has come.
func received(r *http.Request) (int64, bool) {
	body, _ := bodyOf(reflect.ValueOf(r.Body), 8)
	if !body.IsValid() {
		return 0, false
	}
	stream := follow(body.FieldByName("stream"))
	if stream.Kind() != reflect.Struct {
		return 0, false
	}
	came := stream.FieldByName("bodyBytes")
	if came.Kind() != reflect.Int64 {
		return 0, false
	}
	return came.Int(), true
}

// ---- Calls ------------------------------------------------------------------------

// Task names what runs at most once, for Group and Key. The same key with another
// Fingerprint is a mismatch. Operators see Label. A call waits up to Wait for one
// that runs. Lease, Run and Keep are 30 s, 60 s and 24 h.
type Task struct {
	Group, Key, Fingerprint, Label string
	Wait, Lease, Run, Keep         time.Duration
}

// ErrNotApplied is returned by a function that has done nothing, and will not.
var ErrNotApplied = errors.New("once: not applied")

// Failure is returned by a function that has failed: each repeat is told so.
type Failure struct {
	Code int // from 1
	Type string
	Body []byte
}

func (*Failure) Error() string { return "once: a failure" }

// What a call returns. It is not what a function returns: passed on by a function
// that has called another one, that would say that *this* one has done nothing.
var (
	ErrFree        = errors.New("once: the function has done nothing; the key is free")
	ErrMismatch    = errors.New("once: the key is that of a call with another fingerprint")
	ErrRefused     = errors.New("once: the server refuses the call; nothing was run")
	ErrUnavailable = errors.New("once: the server is away; nothing was done now")
	ErrUnknown     = errors.New("once: it was begun, and its outcome is not known")
	ErrUnstored    = errors.New("once: an operator has resolved it without a result")
)

// InFlight: another call with this key runs.
type InFlight struct{ RetryAfter time.Duration }

func (*InFlight) Error() string { return "once: another call with this key runs" }

// Failed: the function has failed, now or before.
type Failed Failure

func (*Failed) Error() string { return "once: the function has failed" }

// Unknown is ErrUnknown where the function's own error is known. It does not unwrap
// to that: the error of another call in it says nothing about this one.
type Unknown struct{ Cause error }

func (u *Unknown) Error() string { return ErrUnknown.Error() + ": " + u.Cause.Error() }

// Is says that it is ErrUnknown.
func (u *Unknown) Is(target error) bool { return target == ErrUnknown }

// Client calls functions.
type Client struct{ *server }

// NewClient takes Serve, TokenFile and Log of its options.
func NewClient(o Options) (*Client, error) {
	s, err := reach(o)
	return &Client{s}, err
}

const (
	typeJSON  = "application/json"
	typeBytes = "application/octet-stream"
)

// Call runs f at most once, and returns its result, the first caller's too, from what
// is recorded. []byte is the result as it is, and all else is JSON.
func Call[T any](c *Client, task Task, f func() (T, error)) (T, error) {
	var out T
	t, x, err := c.beginCall(task)
	if err == nil && x != nil {
		t, err = x.runCall(func() (head, []byte, error) {
			value, err := f()
			if err != nil {
				return head{}, nil, err
			}
			return encode(value)
		})
	}
	if err == nil {
		err = t.read(&out)
	}
	return out, err
}

func encode(value any) (head, []byte, error) {
	if data, ok := value.([]byte); ok {
		return head{Kind: "success", Type: typeBytes}, data, nil
	}
	data, err := json.Marshal(value)
	return head{Kind: "success", Type: typeJSON}, data, err
}

// What a replay says.
func (t *told) read(out any) error {
	if t.head.Kind == "failure" {
		return &Failed{Code: t.head.Code, Type: t.head.Type, Body: t.body}
	}
	if data, ok := out.(*[]byte); ok {
		*data = t.body
		return nil
	}
	if value, ok := out.(*any); ok && t.head.Type != typeJSON {
		*value = t.body
		return nil
	}
	return json.Unmarshal(t.body, out)
}

// A call whose function runs.
type call struct {
	*server
	token string
	times map[string]any
	lease time.Duration
}

func (t Task) times() map[string]any {
	out := map[string]any{}
	for name, long := range map[string]time.Duration{"wait_ms": t.Wait,
		"lease_ms": t.Lease, "run_ms": t.Run, "keep_ms": t.Keep} {
		if long != 0 {
			out[name] = long.Milliseconds()
		}
	}
	return out
}

func (c *Client) beginCall(t Task) (*told, *call, error) {
	what := t.times()
	what["id"] = newID()
	for name, text := range map[string]string{"group": t.Group, "key": t.Key,
		"fingerprint": t.Fingerprint, "label": t.Label} {
		// JSON would make one text of all that is not UTF-8.
		if !utf8.ValidString(text) {
			return nil, nil, fmt.Errorf("%w: %q is not UTF-8", ErrRefused, name)
		}
		what[name] = text
	}
	answer := c.begin("call/begin", what, nil, t.Wait)
	switch {
	case answer == nil:
		return nil, nil, ErrUnavailable
	case answer.code != http.StatusOK:
		return nil, nil, fmt.Errorf("%w: %s", ErrRefused, answer.head.Text)
	case answer.head.Do == "run":
		x := &call{c.server, answer.head.Token, t.times(), t.Lease}
		if x.lease == 0 {
			x.lease = 30 * time.Second
		}
		return nil, x, nil
	}
	return answer, nil, answer.state()
}

var states = map[string]error{"replay": nil, "mismatch": ErrMismatch,
	"indeterminate": ErrUnknown, "unstored": ErrUnstored}

// Why there is no result, or nil: it is a replay.
func (t *told) state() error {
	if t.head.Do == "in-flight" {
		return &InFlight{time.Duration(t.head.RetryAfterMS) * time.Millisecond}
	}
	err, isKnown := states[t.head.Do]
	if !isKnown {
		err = fmt.Errorf("%w: it says what is not known here", ErrRefused)
	}
	return err
}

// nil: the server is away, or refuses it.
func (x *call) tell(path string, h head, body []byte) *told {
	what := map[string]any{"token": x.token}
	for name, value := range x.times {
		what[name] = value
	}
	if path == "call/end" {
		what["kind"], what["code"], what["type"] = h.Kind, h.Code, h.Type
	}
	t := x.server.tell(path, what, body, x.lease)
	switch {
	case t == nil || t.code == http.StatusOK:
		return t
	case path == "call/end": // it cannot be carried
		return x.tell("broken", head{}, nil)
	}
	return nil
}

// Runs the function, and records what it did.
func (x *call) runCall(f func() (head, []byte, error)) (*told, error) {
	returned := false
	defer func() {
		if !returned { // it panics, or ends its goroutine
			x.tell("broken", head{}, nil)
		}
	}()
	h, body, err := f()
	returned = true
	var failure *Failure
	switch {
	case errors.Is(err, ErrNotApplied):
		if x.tell("abandon", head{}, nil) == nil {
			return nil, ErrUnavailable
		}
		return nil, fmt.Errorf("%w: %v", ErrFree, err)
	case errors.As(err, &failure):
		h = head{Kind: "failure", Code: failure.Code, Type: failure.Type}
		if h.Code < 1 || h.Code > math.MaxInt32 {
			h.Code = 1
		}
		body = failure.Body
	case err != nil: // what it did is not known
		return x.ended(x.tell("broken", head{}, nil), &Unknown{err})
	}
	t := x.tell("call/end", h, body)
	if t != nil && t.head.Do == "none" {
		return &told{head: h, body: body}, nil
	}
	return x.ended(t, ErrUnknown)
}

// Another result may stand in the record.
func (x *call) ended(t *told, otherwise error) (*told, error) {
	if t != nil && t.head.Do == "replay" {
		return t, nil
	}
	return nil, otherwise
}
