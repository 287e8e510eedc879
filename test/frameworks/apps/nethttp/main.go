// SPDX-License-Identifier: Apache-2.0

// The application of test/frameworks with net/http and middlewares as those of gorilla
// and chi. ./start builds and starts it.
//
// Not here: extra=debug (it is ASGI's). http.ServeFile answers with 200.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"once"
)

const large = 300 << 10

type do struct {
	Outer       string   `json:"outer"`
	Catch       bool     `json:"catch"`
	InnerCatch  bool     `json:"inner_catch"`
	Before      string   `json:"before"`
	Effect      *bool    `json:"effect"`
	SleepMS     int      `json:"sleep_ms"`
	After       string   `json:"after"`
	Answer      string   `json:"answer"`
	Extra       []string `json:"extra"`
	Fingerprint bool     `json:"fingerprint"`
}

func doOf(r *http.Request) do {
	var d do
	if text := r.Header.Get("Do"); text != "" {
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			log.Printf("Do: %v", err)
		}
	}
	return d
}

func random() string {
	data := make([]byte, 16)
	if _, err := rand.Read(data); err != nil {
		log.Fatal(err)
	}
	return hex.EncodeToString(data)
}

var events *os.File

// One run of the handler.
type run struct {
	do
	w      http.ResponseWriter
	r      *http.Request
	id     string
	key    string
	body   []byte
	stream int32 // 1: the answer is told
}

func (x *run) says(event string, more map[string]any) {
	line := map[string]any{"event": event, "key": x.key, "run": x.id}
	for name, value := range more {
		line[name] = value
	}
	data, err := json.Marshal(line)
	if err == nil {
		_, err = events.Write(append(data, '\n'))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func (x *run) finished(status int, body []byte) {
	sum := sha256.Sum256(body)
	x.says("finished", map[string]any{"status": status,
		"body": hex.EncodeToString(sum[:])})
}

func (x *run) raises(why any) {
	x.says("raised", nil)
	panic(why)
}

// Tells of a client that leaves before the answer is told.
func (x *run) watch(ended chan struct{}) {
	select {
	case <-ended:
		return
	case <-x.r.Context().Done():
	}
	select {
	case <-ended: // both, and this one came first
	default:
		if x.r.Context().Err() == context.Canceled && atomic.LoadInt32(&x.stream) == 0 {
			x.says("disconnect", nil)
		}
	}
}

func pay(w http.ResponseWriter, r *http.Request) {
	x := &run{do: doOf(r), w: w, r: r, id: random(), key: r.Header.Get("Idempotency-Key")}
	ended := make(chan struct{})
	go x.watch(ended)
	defer close(ended)
	if x.Before == "raise" {
		x.raises("before")
	}
	if x.Effect == nil || *x.Effect {
		x.says("effect", map[string]any{"n": random()})
	}
	for i := 0; i < x.SleepMS/10; i++ {
		time.Sleep(10 * time.Millisecond)
	}
	switch x.After {
	case "raise":
		x.raises("after")
	case "timeout":
		<-r.Context().Done()
		x.raises(r.Context().Err())
	case "cancel":
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		<-ctx.Done()
		x.raises(ctx.Err())
	}
	x.body, _ = json.Marshal(map[string]string{"key": x.key, "n": random()})
	x.extra()
	x.answer()
}

func (x *run) extra() {
	for _, what := range x.Extra {
		switch what {
		case "early_hints":
			x.w.Header().Set("Link", "</style.css>; rel=preload; as=style")
			x.w.WriteHeader(http.StatusEarlyHints)
			x.w.Header().Del("Link")
		case "continue":
			x.w.WriteHeader(http.StatusContinue)
		case "trailers":
			x.w.Header().Set("Trailer", "X-Sum")
			x.w.Header().Set(http.TrailerPrefix+"X-Late", "1")
		case "flush":
			atomic.StoreInt32(&x.stream, 1)
		}
	}
	if atomic.LoadInt32(&x.stream) == 1 {
		x.w.Header().Set("Content-Type", "application/json")
		x.w.WriteHeader(x.status())
		x.w.(http.Flusher).Flush()
	}
}

func (x *run) status() int {
	switch x.Answer {
	case "empty":
		return http.StatusNoContent
	case "error":
		return http.StatusUnprocessableEntity
	case "file": // http.ServeFile has no other one
		return http.StatusOK
	}
	return http.StatusCreated
}

func (x *run) answer() {
	x.w.Header().Set("Content-Type", "application/json")
	switch x.Answer {
	case "empty":
		x.finished(http.StatusNoContent, nil)
		x.w.WriteHeader(http.StatusNoContent)
		return
	case "error":
		x.finished(http.StatusUnprocessableEntity, append(x.body, '\n'))
		http.Error(x.w, string(x.body), http.StatusUnprocessableEntity)
		return
	case "file":
		x.file()
		return
	case "stream":
		x.chunks()
		return
	case "short":
		x.w.Header().Set("Content-Length", strconv.Itoa(len(x.body)+10))
		x.w.WriteHeader(http.StatusCreated)
		_, _ = x.w.Write(x.body)
		return
	case "large":
		x.body = append(x.body, bytes.Repeat([]byte(" "), large-len(x.body))...)
	}
	x.finished(http.StatusCreated, x.body)
	x.w.WriteHeader(http.StatusCreated)
	_, _ = x.w.Write(x.body)
}

func (x *run) file() {
	file, err := os.CreateTemp("", "nethttp")
	if err != nil {
		x.raises(err)
	}
	defer os.Remove(file.Name())
	if _, err = file.Write(x.body); err != nil {
		x.raises(err)
	}
	file.Close()
	x.finished(http.StatusOK, x.body)
	http.ServeFile(x.w, x.r, file.Name())
}

func (x *run) chunks() {
	x.w.WriteHeader(http.StatusCreated)
	third := len(x.body) / 3
	atomic.StoreInt32(&x.stream, 1)
	for i, part := range [][]byte{x.body[:third], x.body[third : 2*third],
		x.body[2*third:]} {
		if i == 2 {
			x.finished(http.StatusCreated, x.body)
		}
		_, _ = x.w.Write(part)
		x.w.(http.Flusher).Flush()
		time.Sleep(20 * time.Millisecond)
	}
}

// A recover middleware, as those of gorilla/handlers and chi.
func recovery(text string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if wrong := recover(); wrong != nil {
				http.Error(w, text, http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// What is between the guard and the handler.
func inner(w http.ResponseWriter, r *http.Request) {
	d := doOf(r)
	var next http.Handler = http.HandlerFunc(pay)
	if d.After == "timeout" {
		next = http.TimeoutHandler(next,
			time.Duration(d.SleepMS+200)*time.Millisecond, "late")
	}
	if d.InnerCatch {
		next = recovery("inner", next)
	}
	next.ServeHTTP(w, r)
}

// What is around the guard.
func outer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := doOf(r)
		switch d.Outer {
		case "read":
			_, _ = io.ReadAll(r.Body)
		case "peek":
			_, _ = io.ReadFull(r.Body, make([]byte, 3))
		case "restore":
			data, err := io.ReadAll(r.Body)
			if err != nil { // a part of an order is none
				panic(http.ErrAbortHandler)
			}
			r.Body = io.NopCloser(bytes.NewReader(data))
		}
		if d.Catch {
			recovery("outer", next).ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func main() {
	var err error
	events, err = os.OpenFile(os.Getenv("APP_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY,
		0o644)
	if err != nil {
		log.Fatal(err)
	}
	guarded, err := once.Handler(http.HandlerFunc(inner), once.Options{
		Scope: func(r *http.Request) string { return r.Header.Get("X-User") },
		Fingerprint: func(r *http.Request) string {
			if doOf(r).Fingerprint {
				return r.Header.Get("X-Print")
			}
			return ""
		},
		Route: map[string]any{"in_flight": "wait=2s", "run": "10s",
			"max_request": "256k", "max_response": "256k"}})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/pay", outer(guarded))
	mux.HandleFunc("/plain", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "plain")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("APP_PORT"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	log.Fatal(http.Serve(listener, mux))
}
