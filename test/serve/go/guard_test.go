// SPDX-License-Identifier: Apache-2.0

// What the scenarios of test/gateway do not tell of the middleware: bodies that it
// reads in part, what functions compute, and handlers that do not return.
//
//	ONCE_BUILD=... go test .
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"once"
)

const patience = 60 * time.Second

var quiet = log.New(io.Discard, "", 0)

func me(*http.Request) string { return "me" }

func size(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	fmt.Fprint(w, len(data), r.ContentLength, err)
}

// A server of its own; it ends with the test.
func serve(t *testing.T, more ...string) string {
	t.Helper()
	where := "unix:" + filepath.Join(t.TempDir(), "s")
	start(t, where, more...)
	return where
}

func start(t *testing.T, where string, more ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{"--volatile", "--store", "memory:", "--listen", where}, more...)
	c := exec.Command(filepath.Join(os.Getenv("ONCE_BUILD"), "once-serve"), args...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	for end := time.Now().Add(patience); time.Now().Before(end); {
		// Its name is there a moment before anybody may connect.
		if conn, err := net.Dial("unix", where[len("unix:"):]); err == nil {
			conn.Close()
			return c
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
	return nil
}

func newLog(w io.Writer) *log.Logger { return log.New(w, "", 0) }

func site(t *testing.T, h http.HandlerFunc, o once.Options) string {
	t.Helper()
	if o.Serve == "" {
		o.Serve = serve(t)
	}
	o.Log = quiet
	guarded, err := once.Handler(h, o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(guarded)
	s.Config.ErrorLog = quiet
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

// Status and body; 0 if the connection ended without an answer.
func post(t *testing.T, url string, body []byte, key string) (int, string) {
	t.Helper()
	r, err := http.NewRequest("POST", url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	// On a connection that was used before, it would repeat such a request itself.
	client := http.Client{Timeout: patience,
		Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := client.Do(r)
	if err != nil {
		return 0, ""
	}
	defer a.Body.Close()
	data, _ := io.ReadAll(a.Body)
	return a.StatusCode, string(data)
}

func expect(t *testing.T, what string, is, wanted any) {
	t.Helper()
	if is != wanted {
		t.Errorf("%s: %v in place of %v", what, is, wanted)
	}
}

func TestABodyThatIsNotGuardedIsWhole(t *testing.T) {
	const n = 3 << 20
	url := site(t, size, once.Options{Scope: me})
	code, body := post(t, url, make([]byte, n), "")
	expect(t, "status", code, 200)
	expect(t, "body", body, fmt.Sprint(n, n, nil))
	code, _ = post(t, url, make([]byte, n), "too-long-for-a-guard")
	expect(t, "guarded", code, 413)
}

func TestARouteWithANameTakesWhatTheServerSays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pay.json")
	if err := os.WriteFile(file, []byte(`{"max_request":"4m"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var runs int32
	url := site(t, func(http.ResponseWriter, *http.Request) {
		atomic.AddInt32(&runs, 1)
	}, once.Options{Scope: me, Route: "pay", Serve: serve(t, "--define", "pay="+file)})
	code, _ := post(t, url, make([]byte, 4<<20+1), "a-key-that-stays-free")
	expect(t, "status", code, 413)
	expect(t, "runs", atomic.LoadInt32(&runs), int32(0))
	code, _ = post(t, url, make([]byte, 4<<20), "a-key-that-stays-free")
	expect(t, "the next", code, 200)
}

func TestScopesThatAreNotUTF8AreNotOne(t *testing.T) {
	var runs int32
	url := site(t, func(http.ResponseWriter, *http.Request) {
		atomic.AddInt32(&runs, 1)
	}, once.Options{
		Scope:       func(r *http.Request) string { return r.URL.Query().Get("user") },
		Fingerprint: func(*http.Request) string { return "same" }})
	for _, user := range []string{"%ff", "%fe"} {
		code, _ := post(t, url+"/?user="+user, nil, "a-key-of-two-callers")
		expect(t, user, code, 500)
	}
	expect(t, "runs", atomic.LoadInt32(&runs), int32(0))
}

func TestAHandlerThatDoesNotReturnIsUnknown(t *testing.T) {
	url := site(t, func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/nil":
			panic(nil)
		case "/late":
			panic(context.DeadlineExceeded)
		case "/exit":
			runtime.Goexit()
		}
		panic("text")
	}, once.Options{Scope: me})
	for path, wanted := range map[string]int{"/text": 502, "/nil": 502, "/late": 504,
		"/exit": 0} {
		code, _ := post(t, url+path, nil, "a-key-of-its-own"+path[1:])
		expect(t, path, code, wanted)
		code, _ = post(t, url+path, nil, "a-key-of-its-own"+path[1:])
		expect(t, path+" again", code, 409)
	}
}

func TestADryRunBreaksAsWithoutOnce(t *testing.T) {
	url := site(t, func(http.ResponseWriter, *http.Request) { panic("text") },
		once.Options{Scope: me, Route: map[string]any{"dry_run": "on"}})
	code, _ := post(t, url, nil, "a-key-of-a-dry-run")
	expect(t, "status", code, 0)
}

func TestWhatTheServerMayNotSayRunsNothing(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprint(w, "{\"do\":\"other\"}\n")
	}))
	defer other.Close()
	var runs int32
	url := site(t, func(http.ResponseWriter, *http.Request) {
		atomic.AddInt32(&runs, 1)
	}, once.Options{Scope: me, Serve: other.URL})
	code, _ := post(t, url, nil, "a-key")
	expect(t, "status", code, 500)
	expect(t, "runs", atomic.LoadInt32(&runs), int32(0))
}

func TestLinesOfAHandlerAroundItStay(t *testing.T) {
	inner := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Own", "1")
		w.Header().Set("X-Both", "inner")
	}
	guarded, err := once.Handler(http.HandlerFunc(inner),
		once.Options{Scope: me, Serve: serve(t), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	outer := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", r.Header.Get("Origin"))
			w.Header().Set("X-Both", "outer")
			guarded.ServeHTTP(w, r)
		}))
	defer outer.Close()
	for _, origin := range []string{"a", "b"} {
		r, _ := http.NewRequest("POST", outer.URL, nil)
		r.Header.Set("Idempotency-Key", "a-key-of-lines")
		r.Header.Set("Origin", origin)
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		expect(t, "outer", got.Header.Get("X-Outer"), origin)
		expect(t, "both", strings.Join(got.Header["X-Both"], ","), "inner")
		expect(t, "own", got.Header.Get("X-Own"), "1")
	}
}
