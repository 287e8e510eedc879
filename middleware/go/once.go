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
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

const (
	beginFor = time.Second       // how long a begin is repeated
	waitFor  = 620 * time.Second // how long an answer may take: in_flight has 600 s
	idleMax  = 64                // connections that wait for work; no bound on busy ones
	bodyMax  = 1 << 20           // of a request that is guarded
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
	client http.Client
	url    string
	token  string
	log    *log.Logger
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
	s := &server{url: "http://once", log: o.Log}
	if s.log == nil {
		s.log = log.Default()
	}
	where := first(o.Serve, os.Getenv("ONCE_SERVE"), "unix:/run/once/serve.sock")
	if file := first(o.TokenFile, os.Getenv("ONCE_SERVE_TOKEN_FILE")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		line, _, _ := strings.Cut(string(text), "\n")
		s.token = strings.TrimSpace(line)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: idleMax, DisableCompression: true}
	if path := strings.TrimPrefix(where, "unix:"); path != where {
		transport.DialContext = func(c context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(c, "unix", path)
		}
	} else {
		s.url = where
	}
	s.client = http.Client{Transport: transport, Timeout: waitFor}
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

func (s *server) ask(path string, what map[string]any, body []byte) (*told, error) {
	line, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	data := append(append(line, '\n'), body...)
	r, err := http.NewRequest("POST", s.url+"/v1/"+path, bytes.NewReader(data))
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
	return out, json.Unmarshal(first, &out.head)
}

// Every call may be repeated. nil: the server is away, for so long since that was seen.
func (s *server) repeat(path string, what map[string]any, body []byte,
	long time.Duration) *told {
	var until time.Time
	for pause := 50 * time.Millisecond; ; {
		t, err := s.ask(path, what, body)
		if err == nil && t.code != http.StatusServiceUnavailable {
			return t
		}
		if err != nil {
			s.log.Printf("once: %s: %v", path, err)
			s.client.CloseIdleConnections()
		}
		if until.IsZero() {
			until = time.Now().Add(long)
		}
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

// It was not run, and will not be. Who is away finds that out himself.
func (s *server) abandon(id string) {
	_, _ = s.ask("abandon", map[string]any{"id": id}, nil)
}

// nil: the server is away, and what it might have begun is abandoned.
func (s *server) begin(path string, what map[string]any, body []byte) *told {
	t := s.repeat(path, what, body, beginFor)
	if t == nil {
		s.abandon(what["id"].(string))
	}
	return t
}

// What became of what was begun. nil: the server is away.
func (s *server) tell(path string, what map[string]any, body []byte,
	lease time.Duration) *told {
	t := s.repeat(path, what, body, lease)
	if t != nil && t.code != http.StatusOK {
		s.log.Printf("once: %s: %s", path, t.head.Text)
	}
	return t
}

// ---- One request ----------------------------------------------------------------

type guard struct {
	Options
	*server
	next http.Handler
	most int64 // 0: not known yet; atomic
}

// How much of a body is read: the server knows its routes.
func (g *guard) limit() int64 {
	if most := atomic.LoadInt64(&g.most); most > 0 {
		return most
	}
	t, err := g.ask("route", map[string]any{"route": g.Route}, nil)
	if err != nil || t.code != http.StatusOK {
		return bodyMax
	}
	atomic.StoreInt64(&g.most, t.head.MaxRequest)
	return t.head.MaxRequest
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
	header   http.Header
	status   int
	body     bytes.Buffer
	told     bool // the server has answered
	stream   bool // what follows is sent as it comes
	unwanted bool // another answer was sent in place of a stream
	cancel   context.CancelFunc
}

// A client that leaves does not end what may have had its effect.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }

func (h *writer) Header() http.Header { return h.header }

func (h *writer) WriteHeader(status int) {
	if h.status == 0 && status >= 200 {
		h.status = status
	}
}

func (h *writer) Write(data []byte) (int, error) {
	if h.unwanted {
		return 0, errors.New("once: another answer was sent")
	}
	if h.stream {
		return h.w.Write(data)
	}
	h.WriteHeader(http.StatusOK)
	h.body.Write(data)
	if h.body.Len() > h.x.run.MaxResponse || h.isStream() {
		h.begin()
	}
	return len(data), nil
}

// Flush makes a stream of an answer, as net/http itself does.
func (h *writer) Flush() {
	if !h.stream && !h.unwanted {
		h.WriteHeader(http.StatusOK)
		h.begin()
	}
	if f, ok := h.w.(http.Flusher); ok && h.stream {
		f.Flush()
	}
}

// By a name that may be written in any way.
func (h *writer) find(wanted string) (string, bool) {
	for name, values := range h.header {
		if strings.EqualFold(name, wanted) && len(values) > 0 {
			return values[0], true
		}
	}
	_, given := h.header[wanted] // nil: the handler wants none
	return "", given
}

func (h *writer) isStream() bool {
	kind, _ := h.find("Content-Type")
	kind, _, _ = strings.Cut(kind, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "text/event-stream" || kind == "application/x-ndjson"
}

// As net/http would: the recorded answer has what the first client sees.
func (h *writer) lines() [][2]string {
	_, given := h.find("Content-Type")
	encoding, _ := h.find("Content-Encoding")
	if !given && h.body.Len() > 0 && encoding == "" {
		h.header.Set("Content-Type", http.DetectContentType(h.body.Bytes()))
	}
	out := [][2]string{}
	for name, values := range h.header {
		for _, value := range values {
			out = append(out, [2]string{characters(name), characters(value)})
		}
	}
	return out
}

func (h *writer) begin() {
	h.told = true
	a := h.x.end(h.status, h.lines(), nil, true)
	if !a.own {
		h.unwanted = true
		send(h.w, a)
		if f, ok := h.w.(http.Flusher); ok {
			f.Flush()
		}
		h.cancel()
		return
	}
	h.stream = true
	start(h.w, a)
	_, _ = h.w.Write(h.body.Bytes())
}

func (h *writer) finish() {
	if h.told {
		return
	}
	h.told = true
	h.WriteHeader(http.StatusOK)
	send(h.w, h.x.end(h.status, h.lines(), h.body.Bytes(), false))
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
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		length := strconv.Itoa(len(a.body))
		a.lines = append(append([][2]string{}, a.lines...),
			[2]string{"Content-Length", length})
	}
	start(w, a)
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		_, _ = w.Write(a.body)
	}
}

// ---- The handler ------------------------------------------------------------------

// Handler guards next.
func Handler(next http.Handler, o Options) (http.Handler, error) {
	g := &guard{Options: o, next: next}
	if g.Route == nil {
		g.Route = map[string]any{}
	}
	if route, ok := g.Route.(map[string]any); ok {
		if o.Bypass && (route["lost"] != "takeover" || route["store_failure"] != "bypass") {
			return nil, errors.New("bypass needs lost=takeover and store_failure=bypass")
		}
		if o.Scope == nil && route["scope"] != "off" {
			return nil, errors.New(`scope: who is the caller? Or "scope": "off"`)
		}
	}
	var err error
	g.server, err = reach(o)
	return g, err
}

func (g *guard) begin(r *http.Request, body []byte) (*told, string) {
	id := newID()
	lines := [][2]string{{"Host", characters(r.Host)}}
	for name, values := range r.Header {
		for _, value := range values {
			lines = append(lines, [2]string{characters(name), characters(value)})
		}
	}
	what := map[string]any{"id": id, "method": r.Method,
		"target": characters(r.RequestURI), "headers": lines, "route": g.Route}
	for name, compute := range map[string]func(*http.Request) string{"scope": g.Scope,
		"key": g.Key, "fingerprint": g.Fingerprint, "label": g.Label} {
		if compute != nil {
			value := compute(r)
			// JSON would make one text of all that is not UTF-8: two callers would
			// be one, and get each other's answers.
			if !utf8.ValidString(value) {
				text := fmt.Sprintf("%q is not UTF-8.", name)
				return &told{code: http.StatusUnprocessableEntity,
					head: head{Text: text}}, ""
			}
			if value != "" {
				what[name] = value
			}
		}
	}
	return g.server.begin("begin", what, body), id
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// One byte more than is allowed is a 413.
	most := g.limit()
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	t, id := g.begin(r, body)
	for _, name := range internal {
		r.Header.Del(name)
	}
	// What is not guarded may be longer: the rest is still to be read.
	r.Body = rest{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	switch {
	case t == nil && g.Bypass:
		g.next.ServeHTTP(w, r)
	case t == nil:
		send(w, unavailable)
	case t.code == http.StatusUnauthorized:
		send(w, unavailable)
	case t.code != http.StatusOK:
		g.log.Printf("once: begin: %s", t.head.Text)
		send(w, answer{status: http.StatusInternalServerError})
	case t.head.Do == "send":
		send(w, sent(t))
	case t.head.Do == "pass":
		for _, line := range t.head.Headers {
			w.Header().Add(octets(line[0]), octets(line[1]))
		}
		g.next.ServeHTTP(w, r)
	case t.head.Do != "run":
		g.log.Print("once: begin: the server says what is not known here")
		send(w, answer{status: http.StatusInternalServerError})
	case int64(len(body)) > most:
		// The server has seen a part of the body only, and its route takes more
		// since it was restarted: no handler runs with a part.
		g.abandon(id)
		g.log.Print("once: begin: the body is longer than the middleware takes")
		send(w, answer{status: http.StatusInternalServerError})
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

func (g *guard) runs(w http.ResponseWriter, r *http.Request, x *exchange) {
	r.Header.Set("Idempotency-Attempt", strconv.Itoa(x.run.Attempt))
	r.Header.Set("Idempotency-Record", x.run.Record)
	if x.run.Key != nil {
		r.Header.Set("Idempotency-Key", *x.run.Key)
	}
	ctx, cancel := context.WithCancel(detached{r.Context()})
	h := &writer{x: x, w: w, header: http.Header{}, cancel: cancel}
	returned := false
	defer func() {
		cancel()
		if !returned {
			h.broke(recover()) // nil: panic(nil), or runtime.Goexit()
		}
	}()
	g.next.ServeHTTP(h, r.WithContext(ctx))
	returned = true
	h.finish()
}

// The handler has not returned.
func (h *writer) broke(wrong any) {
	if h.told { // the client has a head already
		panic(http.ErrAbortHandler)
	}
	h.told = true
	h.x.log.Printf("once: the handler broke: %v", wrong)
	status := http.StatusBadGateway
	var late interface{ Timeout() bool } // of net, os and context
	if err, ok := wrong.(error); ok && errors.As(err, &late) && late.Timeout() {
		status = http.StatusGatewayTimeout
	}
	a, guarded := h.x.broken(status)
	if !guarded {
		panic(http.ErrAbortHandler)
	}
	send(h.w, a)
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
	answer := c.begin("call/begin", what, nil)
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
