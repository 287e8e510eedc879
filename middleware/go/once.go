// SPDX-License-Identifier: Apache-2.0

// Package once keeps the contract of Idempotency-Key for Go services, by `once
// serve`.
//
//	handler, err := once.Handler(mux, once.Options{
//		Scope: func(r *http.Request) string { return user(r) },
//	})
//
// A request goes to the server before the handler runs, and the handler's answer
// before the client gets it. The server decides; this file carries. It refuses to
// send a byte of an answer before the server has said that it is durable.
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
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	beginFor = time.Second       // how long a begin is repeated
	waitFor  = 620 * time.Second // how long an answer may take: in_flight has 600 s
	idleMax  = 16                // connections that wait for work; no bound on busy ones
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

type guard struct {
	Options
	next   http.Handler
	client http.Client
	url    string
	token  string
	most   int64
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
	Status      int         `json:"status"`
	Headers     [][2]string `json:"headers"`
	Text        string      `json:"text"`
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

func (g *guard) ask(path string, what map[string]any, body []byte) (*told, error) {
	line, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	data := append(append(line, '\n'), body...)
	r, err := http.NewRequest("POST", g.url+"/v1/"+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/vnd.once")
	if g.token != "" {
		r.Header.Set("Authorization", "Bearer "+g.token)
	}
	answer, err := g.client.Do(r)
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

// Every call may be repeated. nil: the server is away.
func (g *guard) repeat(path string, what map[string]any, body []byte,
	long time.Duration) *told {
	until := time.Now().Add(long)
	for pause := 50 * time.Millisecond; ; {
		t, err := g.ask(path, what, body)
		if err == nil && t.code != http.StatusServiceUnavailable {
			return t
		}
		if err != nil {
			g.Log.Printf("once: %s: %v", path, err)
			g.client.CloseIdleConnections()
		}
		if time.Now().Add(pause).After(until) {
			return nil
		}
		time.Sleep(pause)
		if pause *= 2; pause > time.Second {
			pause = time.Second
		}
		if path == "begin" {
			what["again"] = true
		}
	}
}

// ---- One request ----------------------------------------------------------------

type exchange struct {
	*guard
	run head
}

func (x *exchange) tell(path string, what map[string]any, body []byte) *told {
	what["token"], what["route"] = x.run.Token, x.Route
	t := x.repeat(path, what, body, time.Duration(x.run.LeaseMS)*time.Millisecond)
	if t != nil && t.code != http.StatusOK {
		x.Log.Printf("once: %s: %s", path, t.head.Text)
	}
	return t
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

func start(w http.ResponseWriter, a answer) {
	header := w.Header()
	for name := range header {
		delete(header, name)
	}
	header["Content-Type"] = nil // none is guessed
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

// Of the directives: 1048576, "1024k", "1m". A number of JSON is a float64.
func size(v any) (int64, error) {
	if number, ok := v.(float64); ok {
		return int64(number), nil
	}
	text := strings.ToLower(fmt.Sprint(v))
	number := strings.TrimRight(text, "kmg")
	shift := map[string]int{"k": 10, "m": 20, "g": 30}[text[len(number):]]
	n, err := strconv.ParseInt(number, 10, 64)
	return n << shift, err
}

// Handler guards next.
func Handler(next http.Handler, o Options) (http.Handler, error) {
	g := &guard{Options: o, next: next, most: bodyMax, url: "http://once"}
	if g.Log == nil {
		g.Log = log.Default()
	}
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
		if most, ok := route["max_request"]; ok {
			var err error
			if g.most, err = size(most); err != nil {
				return nil, err
			}
		}
	}
	return g, g.reach()
}

func (g *guard) reach() error {
	where, file := g.Serve, g.TokenFile
	if where == "" {
		if where = os.Getenv("ONCE_SERVE"); where == "" {
			where = "unix:/run/once/serve.sock"
		}
	}
	if file == "" {
		file = os.Getenv("ONCE_SERVE_TOKEN_FILE")
	}
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		line, _, _ := strings.Cut(string(text), "\n")
		g.token = strings.TrimSpace(line)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: idleMax, DisableCompression: true}
	if path := strings.TrimPrefix(where, "unix:"); path != where {
		transport.DialContext = func(c context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(c, "unix", path)
		}
	} else {
		g.url = where
	}
	g.client = http.Client{Transport: transport, Timeout: waitFor}
	return nil
}

func (g *guard) begin(r *http.Request, body []byte) (*told, string) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err)
	}
	lines := [][2]string{{"Host", characters(r.Host)}}
	for name, values := range r.Header {
		for _, value := range values {
			lines = append(lines, [2]string{characters(name), characters(value)})
		}
	}
	what := map[string]any{"id": hex.EncodeToString(id), "method": r.Method,
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
	return g.repeat("begin", what, body, beginFor), hex.EncodeToString(id)
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// One byte more than is allowed is a 413.
	body, err := io.ReadAll(io.LimitReader(r.Body, g.most+1))
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
		g.abandon(id)
		g.next.ServeHTTP(w, r)
	case t == nil:
		g.abandon(id)
		send(w, unavailable)
	case t.code == http.StatusUnauthorized:
		send(w, unavailable)
	case t.code != http.StatusOK:
		g.Log.Printf("once: begin: %s", t.head.Text)
		send(w, answer{status: http.StatusInternalServerError})
	case t.head.Do == "send":
		send(w, sent(t))
	case t.head.Do == "pass":
		for _, line := range t.head.Headers {
			w.Header().Add(octets(line[0]), octets(line[1]))
		}
		g.next.ServeHTTP(w, r)
	case t.head.Do != "run":
		g.Log.Print("once: begin: the server says what is not known here")
		send(w, answer{status: http.StatusInternalServerError})
	case int64(len(body)) > g.most:
		// The server has seen a part of the body only, and its route, which has a
		// name, takes more: no handler runs with a part.
		g.abandon(id)
		g.Log.Print("once: begin: the body is longer than the middleware takes")
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

func (g *guard) abandon(id string) {
	_, _ = g.ask("abandon", map[string]any{"id": id}, nil)
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
	h.x.Log.Printf("once: the handler broke: %v", wrong)
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
