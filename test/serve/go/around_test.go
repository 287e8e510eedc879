// SPDX-License-Identifier: Apache-2.0

// What is around the middleware and inside of it: bodies that were read before, clients
// that leave, what recovers a panic, what a handler sends beside its body, and servers
// that stand still.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"once"
)

// A service of its own, with something around what is guarded.
func around(t *testing.T, outer func(http.Handler) http.Handler, h http.HandlerFunc,
	o once.Options) *httptest.Server {
	t.Helper()
	if o.Serve == "" {
		o.Serve = serve(t)
	}
	if o.Log == nil {
		o.Log = quiet
	}
	guarded, err := once.Handler(h, o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(outer(guarded))
	s.Config.ErrorLog = quiet
	return s
}

func started(t *testing.T, s *httptest.Server) string {
	t.Helper()
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

type onlyReader struct{ io.Reader }

// With a length, or in chunks.
func order(t *testing.T, client *http.Client, url, body, key string, chunked bool) (int,
	string) {
	t.Helper()
	var from io.Reader = strings.NewReader(body)
	if chunked {
		from = onlyReader{from}
	}
	r, err := http.NewRequest("POST", url, from)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	a, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	data, _ := io.ReadAll(a.Body)
	return a.StatusCode, string(data)
}

var fresh = &http.Client{Timeout: patience,
	Transport: &http.Transport{DisableKeepAlives: true}}

type countingBody struct {
	io.ReadCloser
	n int
}

func (c *countingBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n += n
	return n, err
}

// What stands around it may do to a body, and whether the bytes are still there.
var readers = map[string]struct {
	read  func(http.ResponseWriter, *http.Request)
	whole bool
}{
	"reads all":  {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }, false},
	"reads some": {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 3)) }, false},
	"a form":     {func(_ http.ResponseWriter, r *http.Request) { _ = r.FormValue("csrf") }, false},
	"closes":     {func(_ http.ResponseWriter, r *http.Request) { _ = r.Body.Close() }, false},
	"limits, and reads": {func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		_, _ = io.ReadFull(r.Body, make([]byte, 3))
	}, false},
	"counts, and reads": {func(_ http.ResponseWriter, r *http.Request) {
		r.Body = &countingBody{ReadCloser: r.Body}
		_, _ = io.ReadFull(r.Body, make([]byte, 3))
	}, false},
	"limits": {func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	}, true},
	"counts": {func(_ http.ResponseWriter, r *http.Request) {
		r.Body = &countingBody{ReadCloser: r.Body}
	}, true},
	"copies": {func(_ http.ResponseWriter, r *http.Request) {
		r.Body = io.NopCloser(io.TeeReader(r.Body, &bytes.Buffer{}))
	}, true},
	"restores": {func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(data))
	}, true},
	"peeks": {func(_ http.ResponseWriter, r *http.Request) {
		peek := bufio.NewReader(r.Body)
		_, _ = peek.Peek(3)
		r.Body = struct {
			io.Reader
			io.Closer
		}{peek, r.Body}
	}, true},
	"nothing": {func(http.ResponseWriter, *http.Request) {}, true},
}

func TestABodyThatWasReadBeforeIsNoOtherOrder(t *testing.T) {
	where := serve(t)
	for name, outer := range readers {
		outer := outer
		var runs int32
		s := around(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				outer.read(w, r)
				next.ServeHTTP(w, r)
			})
		}, func(w http.ResponseWriter, r *http.Request) {
			atomic.AddInt32(&runs, 1)
			w.WriteHeader(201)
			_, _ = io.Copy(w, r.Body)
		}, once.Options{Scope: me, Serve: where})
		two := s.Config.Handler
		url := started(t, s)
		secure := httptest.NewUnstartedServer(two)
		secure.EnableHTTP2 = true
		secure.Config.ErrorLog = quiet
		secure.StartTLS()
		t.Cleanup(secure.Close)
		for kind, at := range map[string]struct {
			url    string
			client *http.Client
		}{"HTTP/1": {url, fresh}, "HTTP/2": {secure.URL, secure.Client()}} {
			for _, chunked := range []bool{false, true} {
				what := fmt.Sprint(name, " ", kind, " ", chunked)
				atomic.StoreInt32(&runs, 0)
				key := strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(what)
				if name == "closes" && kind == "HTTP/2" {
					continue // net/http resets the stream
				}
				first, got := order(t, at.client, at.url, "csrf=1&amount=5", key, chunked)
				other, _ := order(t, at.client, at.url, "csrf=1&amount=500", key, chunked)
				if outer.whole {
					expect(t, what, first, 201)
					expect(t, what+" body", got, "csrf=1&amount=5")
					expect(t, what+" other", other, 422)
					expect(t, what+" runs", atomic.LoadInt32(&runs), int32(1))
				} else {
					expect(t, what, first, 500)
					expect(t, what+" other", other, 500)
					expect(t, what+" runs", atomic.LoadInt32(&runs), int32(0))
				}
			}
		}
	}
}

func TestAnEmptyBodyInChunksIsABody(t *testing.T) {
	var runs int32
	url := site(t, func(http.ResponseWriter, *http.Request) {
		atomic.AddInt32(&runs, 1)
	}, once.Options{Scope: me})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: an-empty-one\r\n"+
		"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n")
	data, _ := io.ReadAll(conn)
	expect(t, "status", string(data[:12]), "HTTP/1.1 200")
	expect(t, "runs", atomic.LoadInt32(&runs), int32(1))
}

func TestAProgramThatComputesItsFingerprintMayReadTheBody(t *testing.T) {
	var runs int32
	s := around(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			next.ServeHTTP(w, r)
		})
	}, func(w http.ResponseWriter, r *http.Request) {
		atomic.AddInt32(&runs, 1)
		fmt.Fprint(w, r.PostForm.Get("amount"))
	}, once.Options{Scope: me,
		Fingerprint: func(r *http.Request) string { return r.PostForm.Get("amount") }})
	url := started(t, s)
	code, body := order(t, fresh, url, "amount=5", "a-key-of-a-print", false)
	expect(t, "first", fmt.Sprint(code, body), "2005")
	code, _ = order(t, fresh, url, "amount=6", "a-key-of-a-print", false)
	expect(t, "other", code, 422)
	code, _ = order(t, fresh, url, "other=6", "a-key-of-no-print", false)
	expect(t, "none", code, 500)
	expect(t, "runs", atomic.LoadInt32(&runs), int32(1))
}

func TestWhatIsComputedMayReadTheBody(t *testing.T) {
	url := site(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s", data)
	}, once.Options{Scope: me,
		Key: func(r *http.Request) string { return r.FormValue("order") }})
	code, body := order(t, fresh, url, "order=7&n=1", "not-this", false)
	expect(t, "first", fmt.Sprint(code, body), "200order=7&n=1")
	code, _ = order(t, fresh, url, "order=7&n=2", "nor-this", false)
	expect(t, "the same order", code, 422)
}

// ---- Panics -----------------------------------------------------------------------------

// As gorilla/handlers, chi, gin and echo do it: the answer is written while the panic
// unwinds.
func recovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if err := recover(); err != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// As gin's, after which nothing is written to an answer that has begun.
func lateRecovery(says bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var wrong any
			func() {
				defer func() { wrong = recover() }()
				next.ServeHTTP(w, r)
			}()
			if wrong != nil && says {
				once.Broken(r.Context(), wrong)
			}
			if wrong != nil {
				http.Error(w, "failed", http.StatusInternalServerError)
			}
		})
	}
}

func TestAPanicThatIsRecoveredIsUnknown(t *testing.T) {
	where := serve(t)
	panics := map[string]func(http.ResponseWriter, *http.Request){
		"at once": func(http.ResponseWriter, *http.Request) { panic("text") },
		"in its answer": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			fmt.Fprint(w, "a part of")
			panic("text")
		},
		"by a nil pointer": func(_ http.ResponseWriter, r *http.Request) {
			var at *http.Request
			fmt.Fprint(io.Discard, at.Host)
		},
	}
	for name, middleware := range map[string]func(http.Handler) http.Handler{
		"recovery": recovery, "late": lateRecovery(true)} {
		for how, handler := range panics {
			url := site(t, middleware(http.HandlerFunc(handler)).ServeHTTP,
				once.Options{Scope: me, Serve: where})
			key := strings.ReplaceAll(name+"-"+how, " ", "-")
			code, body := post(t, url, nil, key)
			expect(t, name+" "+how, code, 502)
			expect(t, name+" "+how, strings.Contains(body, "outcome-unknown"), true)
			code, _ = post(t, url, nil, key)
			expect(t, name+" "+how+" again", code, 409)
		}
	}
}

func TestAPanicThatIsRecoveredCutsAStreamOff(t *testing.T) {
	url := site(t, recovery(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "a part of")
		w.(http.Flusher).Flush()
		panic("text")
	})).ServeHTTP, once.Options{Scope: me})
	r, _ := http.NewRequest("POST", url, nil)
	r.Header.Set("Idempotency-Key", "a-stream-that-breaks")
	a, err := fresh.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	_, err = io.ReadAll(a.Body)
	expect(t, "is cut off", errors.Is(err, io.ErrUnexpectedEOF), true)
}

func TestWhatWasSaidBeforeAPanicDoesNotCount(t *testing.T) {
	for _, outcome := range []string{"not-applied", "applied"} {
		url := site(t, recovery(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotency-Outcome", outcome)
			panic("text")
		})).ServeHTTP, once.Options{Scope: me})
		code, _ := post(t, url, nil, "a-key-of-a-word")
		expect(t, outcome, code, 502)
		code, _ = post(t, url, nil, "a-key-of-a-word")
		expect(t, outcome+" again", code, 409)
	}
}

func TestAHandlerThatRecoversMayAnswerAfterThat(t *testing.T) {
	url := site(t, func(w http.ResponseWriter, _ *http.Request) {
		func() {
			defer func() { _ = recover() }()
			panic("text")
		}()
		w.WriteHeader(500)
	}, once.Options{Scope: me})
	for i := 0; i < 2; i++ {
		code, _ := post(t, url, nil, "a-key-of-its-own-word")
		expect(t, "status", code, 500)
	}
}

func TestADryRunSendsWhatRecoversAPanic(t *testing.T) {
	url := site(t, recovery(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic("text")
	})).ServeHTTP, once.Options{Scope: me, Route: map[string]any{"dry_run": "on"}})
	code, _ := post(t, url, nil, "a-key-of-a-dry-run")
	expect(t, "status", code, 500)
}

func TestBrokenOutsideDoesNothing(t *testing.T) {
	once.Broken(context.Background(), "text")
}

// ---- Time and clients -------------------------------------------------------------------

func TestATimeoutHandlerIsUnknown(t *testing.T) {
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"directly": func(h http.Handler) http.Handler {
			return http.TimeoutHandler(h, 50*time.Millisecond, "late")
		},
		"in a recovery": func(h http.Handler) http.Handler {
			return recovery(http.TimeoutHandler(h, 50*time.Millisecond, ""))
		}} {
		ended := make(chan bool, 1)
		url := site(t, wrap(http.HandlerFunc(
			func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				ended <- true
			})).ServeHTTP, once.Options{Scope: me})
		code, body := post(t, url, nil, "a-key-that-is-late")
		expect(t, name, code, 504)
		expect(t, name, strings.Contains(body, "outcome-unknown"), true)
		<-ended
		code, _ = post(t, url, nil, "a-key-that-is-late")
		expect(t, name+" again", code, 409)
	}
}

func TestAnAnswerOf503IsAnAnswer(t *testing.T) {
	url := site(t, http.TimeoutHandler(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "its own", 503)
		}), patience, "late").ServeHTTP, once.Options{Scope: me})
	for i := 0; i < 2; i++ {
		code, body := post(t, url, nil, "a-key-of-a-503")
		expect(t, "status", fmt.Sprint(code, body), "503its own\n")
	}
}

func TestAHandlersContextEndsWithRunAndTheProgramsDeadline(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		if errors.Is(r.Context().Err(), context.DeadlineExceeded) {
			w.WriteHeader(500)
		}
	}
	url := site(t, handler, once.Options{Scope: me,
		Route: map[string]any{"run": "1s"}})
	code, _ := post(t, url, nil, "a-key-over-its-run")
	expect(t, "run", code, 504)
	code, _ = post(t, url, nil, "a-key-over-its-run")
	expect(t, "run, again", code, 409)

	for _, long := range []time.Duration{50 * time.Millisecond, -time.Hour} {
		long := long
		s := around(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithTimeout(r.Context(), long)
				defer cancel()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		}, handler, once.Options{Scope: me})
		code, _ = post(t, started(t, s), nil, "a-key-over-a-deadline")
		expect(t, fmt.Sprint("deadline ", long), code, 504)
	}
}

type userKey struct{}

func TestAClientThatLeavesIsNotToldToTheHandler(t *testing.T) {
	begun, left, told := make(chan bool), make(chan bool, 2), make(chan string, 1)
	s := around(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r = r.WithContext(context.WithValue(r.Context(), userKey{}, "ann"))
			go func(client context.Context) {
				<-client.Done()
				left <- true
			}(r.Context())
			next.ServeHTTP(w, r)
		})
	}, func(w http.ResponseWriter, r *http.Request) {
		child, cancel := context.WithCancel(r.Context())
		defer cancel()
		begun <- true
		<-left
		// What is told is told at once.
		select {
		case <-child.Done():
			told <- "left"
		case <-w.(http.CloseNotifier).CloseNotify():
			told <- "left"
		case <-time.After(50 * time.Millisecond):
			told <- fmt.Sprint(r.Context().Err(), r.Context().Value(userKey{}))
		}
		w.WriteHeader(201)
		fmt.Fprint(w, "made")
	}, once.Options{Scope: me, Route: map[string]any{"in_flight": "wait=10s"}})
	url := started(t, s)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: who-leaves\r\n"+
		"Content-Length: 0\r\n\r\n", strings.TrimPrefix(url, "http://"))
	<-begun
	conn.Close()
	expect(t, "told", <-told, "<nil>ann")
	code, body := post(t, url, nil, "who-leaves")
	expect(t, "the retry", fmt.Sprint(code, body), "201made")
}

func TestAStreamEndsWithItsClient(t *testing.T) {
	ended := make(chan error, 1)
	url := site(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		_, timed := r.Context().Deadline()
		if timed {
			ended <- errors.New("a stream has a deadline")
		}
		<-r.Context().Done()
		ended <- r.Context().Err()
	}, once.Options{Scope: me})
	ctx, cancel := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, "POST", url, nil)
	r.Header.Set("Idempotency-Key", "a-stream-of-events")
	a, err := fresh.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	a.Body.Close()
	expect(t, "why", <-ended, context.Canceled)
}

// ---- What is sent beside the body -------------------------------------------------------

func TestInterimAnswersAndTrailersDoNotLeave(t *testing.T) {
	url := site(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(103)
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set(http.TrailerPrefix+"X-Early", "1")
		w.WriteHeader(201)
		_, _ = io.WriteString(w, "made")
		w.Header().Set("X-Sum", "2")
		w.Header().Set(http.TrailerPrefix+"X-Late", "1")
		_, hijack := w.(http.Hijacker)
		_, push := w.(http.Pusher)
		if hijack || push {
			t.Error("what is not carried is offered")
		}
	}, once.Options{Scope: me})
	for i := 0; i < 2; i++ {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: an-interim-one\r\n"+
			"Content-Length: 0\r\nConnection: close\r\n\r\n")
		data, _ := io.ReadAll(conn)
		conn.Close()
		text := string(data)
		expect(t, "status", text[:12], "HTTP/1.1 201")
		expect(t, "body", strings.HasSuffix(text, "\r\n\r\nmade"), true)
		for _, name := range []string{"Trailer", "X-Sum", "X-Early", "X-Late"} {
			expect(t, name, strings.Contains(text, name), false)
		}
	}
}

func TestAStatusThatIsNoneIsUnknown(t *testing.T) {
	for _, status := range []int{0, 99, 101, 1000} {
		url := site(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
		}, once.Options{Scope: me})
		code, _ := post(t, url, nil, "a-status-that-is-none")
		expect(t, fmt.Sprint(status), code, 502)
	}
}

func TestAnAnswerIsAsLongAsItSays(t *testing.T) {
	where := serve(t)
	for _, says := range []string{"3", "5"} {
		url := site(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", says)
			fmt.Fprint(w, "made")
		}, once.Options{Scope: me, Serve: where})
		code, _ := post(t, url, nil, "a-length-of-"+says)
		expect(t, says, code, 502)
		code, _ = post(t, url, nil, "a-length-of-"+says)
		expect(t, says+" again", code, 409)
		url = site(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", says)
			w.(http.Flusher).Flush()
			fmt.Fprint(w, "made")
		}, once.Options{Scope: me, Serve: where})
		r, _ := http.NewRequest("POST", url, nil)
		r.Header.Set("Idempotency-Key", "a-stream-of-"+says)
		a, err := fresh.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = io.ReadAll(a.Body); err == nil {
			t.Errorf("a stream that says %s has an end", says)
		}
		a.Body.Close()
	}
}

func TestA204HasNoBody(t *testing.T) {
	url := site(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(204)
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Errorf("a body of a 204: %v", err)
		}
	}, once.Options{Scope: me})
	for i := 0; i < 2; i++ {
		code, _ := post(t, url, nil, "a-204-with-a-body")
		expect(t, "status", code, 204)
	}
}

type deadlines struct {
	http.ResponseWriter
	set time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.set = t
	return nil
}

type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// As http.ResponseController of Go 1.20 asks.
func TestDeadlinesOfTheConnectionAreCarried(t *testing.T) {
	until := time.Now().Add(patience)
	var got time.Time
	s := around(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d := &deadlines{ResponseWriter: w}
			next.ServeHTTP(wrapped{d}, r)
			got = d.set
		})
	}, func(w http.ResponseWriter, _ *http.Request) {
		err := w.(interface{ SetWriteDeadline(time.Time) error }).SetWriteDeadline(until)
		expect(t, "write", err, nil)
		err = w.(interface{ SetReadDeadline(time.Time) error }).SetReadDeadline(until)
		expect(t, "read", errors.Is(err, http.ErrNotSupported), true)
	}, once.Options{Scope: me})
	code, _ := post(t, started(t, s), nil, "a-key-of-deadlines")
	expect(t, "status", code, 200)
	expect(t, "set", got, until)
}

// ---- The server ----------------------------------------------------------------------------

func TestARouteThatCannotBeIsRefusedAtTheStart(t *testing.T) {
	_, err := once.Handler(http.NotFoundHandler(), once.Options{Scope: me,
		Serve: serve(t), Route: map[string]any{"in_fligth": "wait=5s"}})
	if err == nil || !strings.Contains(err.Error(), "in_fligth") {
		t.Errorf("a wrong member: %v", err)
	}
	for _, where := range []string{"localhost", "once.sock"} {
		_, err = once.Handler(http.NotFoundHandler(), once.Options{Scope: me, Serve: where})
		if err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("a wrong address: %v", err)
		}
	}
}

type lines struct {
	sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.text.Write(p)
}

// A server that accepts, and never answers.
func stopped(t *testing.T) (string, *exec.Cmd) {
	t.Helper()
	where := filepath.Join(t.TempDir(), "s")
	c := start(t, "unix:"+where)
	return "unix:" + where, c
}

func TestAServerThatStandsStillHoldsNoRequestForLong(t *testing.T) {
	where, server := stopped(t)
	var runs int32
	running, goOn := make(chan bool), make(chan bool)
	url := site(t, func(w http.ResponseWriter, r *http.Request) {
		atomic.AddInt32(&runs, 1)
		if r.URL.Path == "/wait" {
			running <- true
			<-goOn
		}
	}, once.Options{Scope: me, Serve: where, Route: map[string]any{"lease": "3s"}})
	ended := make(chan int)
	go func() {
		code, _ := post(t, url+"/wait", nil, "a-key-that-runs")
		ended <- code
	}()
	<-running
	_ = server.Process.Signal(syscall.SIGSTOP)
	// Each of these would take 620 s.
	code, body := post(t, url, nil, "a-key-of-the-stopped")
	expect(t, "guarded", code, 503)
	expect(t, "guarded", strings.Contains(body, "store-unavailable"), true)
	code, _ = post(t, url, nil, "")
	expect(t, "unguarded", code, 503)
	goOn <- true
	expect(t, "ended", <-ended, 502)
	_ = server.Process.Signal(syscall.SIGCONT)
	// What waited in its sockets is begun, and then abandoned.
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if code, body = post(t, url, nil, "a-key-of-the-stopped"); code == 200 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	expect(t, "it goes on", fmt.Sprint(code, body), "200")
	expect(t, "runs", atomic.LoadInt32(&runs), int32(2))
}

func TestWhatIsWrongWithTheServerIsLogged(t *testing.T) {
	told := &lines{}
	where := "unix:" + filepath.Join(t.TempDir(), "none")
	s := around(t, func(h http.Handler) http.Handler { return h },
		func(http.ResponseWriter, *http.Request) {}, once.Options{Scope: me,
			Serve: where, Log: newLog(told)})
	code, _ := post(t, started(t, s), nil, "a-key")
	expect(t, "status", code, 503)
	for _, part := range []string{where, "no such file", "Check that it runs"} {
		if !strings.Contains(told.text.String(), part) {
			t.Errorf("%q is missing: %s", part, told.text.String())
		}
	}
}
