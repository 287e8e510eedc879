// SPDX-License-Identifier: Apache-2.0

// A service in Go whose handlers are guarded by the middleware, for the scenarios
// of test/gateway: ONCE_TARGET=go.
//
//	service FILE SOCKET
//
// FILE is the route file as JSON (routes.py). Its handler sends the request on to
// the scenario's upstream and answers with what comes back, byte for byte.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"once"
)

type location struct {
	Path    string  `json:"path"`
	Store   *string `json:"store"`
	Route   any     `json:"route"`
	Scope   *string `json:"scope"`
	Key     *string `json:"key"`
	Print   *string `json:"fingerprint"`
	Origin  []any   `json:"origin"`
	Timeout float64 `json:"timeout"`
	Users   *string `json:"users"`
	Denied  bool    `json:"denied"`
	handler http.Handler
}

var notForwarded = map[string]bool{"connection": true, "content-length": true,
	"expect": true, "keep-alive": true, "te": true, "trailer": true,
	"transfer-encoding": true, "upgrade": true}

var variable = regexp.MustCompile(`\$(\w+)`)
var firstLine = regexp.MustCompile(`^HTTP/1\.[01] ([2-5]\d\d)( .*)?$`)

func expand(template *string) func(*http.Request) string {
	if template == nil {
		return nil
	}
	return func(r *http.Request) string {
		return variable.ReplaceAllStringFunc(*template, func(name string) string {
			switch {
			case name == "$uri":
				path, _, _ := strings.Cut(r.RequestURI, "?")
				path, _ = url.PathUnescape(path)
				return path
			case name == "$remote_user":
				user, _, _ := r.BasicAuth()
				return user
			}
			return r.Header.Get(strings.ReplaceAll(name[6:], "_", "-"))
		})
	}
}

func cut(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		panic(err)
	}
	panic(http.ErrAbortHandler)
}

func line(in *bufio.Reader) string {
	text, err := in.ReadString('\n')
	if err != nil {
		cut(err)
	}
	if !strings.HasSuffix(text, "\r\n") {
		panic(http.ErrAbortHandler)
	}
	return text[:len(text)-2]
}

func chunks(in *bufio.Reader) []byte {
	var out bytes.Buffer
	for {
		size, err := strconv.ParseInt(strings.TrimSpace(line(in)), 16, 64)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if size == 0 {
			break
		}
		if _, err = io.CopyN(&out, in, size); err != nil {
			cut(err)
		}
		if line(in) != "" {
			panic(http.ErrAbortHandler)
		}
	}
	for line(in) != "" { // trailers
	}
	return out.Bytes()
}

func (l *location) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("%v:%v", l.Origin[0], l.Origin[1]))
	if err != nil {
		w.Header().Set("Idempotency-Outcome", "not-applied")
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Duration(l.Timeout * float64(time.Second))))
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s %s HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\nHost: %s\r\n",
		r.Method, r.RequestURI, len(body), r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			if !notForwarded[strings.ToLower(name)] {
				fmt.Fprintf(&out, "%s: %s\r\n", name, value)
			}
		}
	}
	out.WriteString("\r\n")
	out.Write(body)
	if _, err = conn.Write(out.Bytes()); err != nil {
		cut(err)
	}
	l.answer(w, r, conn, bufio.NewReader(conn))
}

func (l *location) answer(w http.ResponseWriter, r *http.Request, conn net.Conn,
	in *bufio.Reader) {
	match := firstLine.FindStringSubmatch(line(in))
	if match == nil {
		panic(http.ErrAbortHandler)
	}
	status, _ := strconv.Atoi(match[1])
	values := map[string]string{}
	header := w.Header()
	header["Content-Type"] = nil // none is guessed
	for text := line(in); text != ""; text = line(in) {
		name, value, colon := strings.Cut(text, ":")
		value = strings.TrimSpace(value)
		if !colon {
			panic(http.ErrAbortHandler)
		}
		values[strings.ToLower(name)] = value
		if !notForwarded[strings.ToLower(name)] {
			header[name] = append(header[name], value)
		}
	}
	size, sized := values["content-length"]
	kind := values["content-type"]
	w.WriteHeader(status)
	if !sized && (strings.HasPrefix(kind, "text/event-stream") ||
		strings.HasPrefix(kind, "application/x-ndjson")) {
		_ = conn.SetDeadline(time.Time{})
		go func() {
			<-r.Context().Done() // another answer was sent in its place
			conn.Close()
		}()
		flusher := w.(http.Flusher)
		flusher.Flush()
		part := make([]byte, 65536)
		for {
			n, err := in.Read(part)
			if n > 0 {
				if _, failed := w.Write(part[:n]); failed != nil {
					return
				}
				flusher.Flush()
			}
			if err != nil {
				return
			}
		}
	}
	var data []byte
	var err error
	switch {
	case r.Method == http.MethodHead || status == 204 || status == 304:
	case values["transfer-encoding"] == "chunked":
		data = chunks(in)
	case sized:
		n, bad := strconv.Atoi(size)
		if bad != nil {
			panic(http.ErrAbortHandler)
		}
		data = make([]byte, n)
		_, err = io.ReadFull(in, data)
	default:
		data, err = io.ReadAll(in)
	}
	if err != nil {
		cut(err)
	}
	_, _ = w.Write(data)
}

func (l *location) guarded(socket string, logger *log.Logger) http.Handler {
	if l.Store == nil {
		return l
	}
	given, _ := l.Route.(map[string]any)
	bypass := given["store_failure"] == "bypass"
	handler, err := once.Handler(l, once.Options{Scope: expand(l.Scope),
		Key: expand(l.Key), Fingerprint: expand(l.Print), Route: l.Route,
		Bypass: bypass,
		Serve:  "unix:" + socket + "." + *l.Store, Log: logger})
	if err != nil { // scenarios have routes that once serve does not
		logger.Print(err)
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
		})
	}
	return handler
}

func knows(file string, r *http.Request) bool {
	name, password, ok := r.BasicAuth()
	text, err := os.ReadFile(file)
	return ok && err == nil && strings.Contains("\n"+string(text),
		"\n"+name+":{PLAIN}"+password+"\n")
}

func route(locations []*location) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		path, _, _ := strings.Cut(r.RequestURI, "?")
		var found *location
		for _, l := range locations {
			if strings.HasPrefix(path, l.Path) &&
				(found == nil || len(l.Path) > len(found.Path)) {
				found = l
			}
		}
		switch {
		case found == nil:
			w.WriteHeader(http.StatusNotFound)
		case found.Users != nil && !knows(*found.Users, r):
			w.Header().Set("WWW-Authenticate", `Basic realm="shop"`)
			w.WriteHeader(http.StatusUnauthorized)
		case found.Denied:
			w.WriteHeader(http.StatusForbidden)
		default:
			found.handler.ServeHTTP(w, r)
		}
	}
}

func main() {
	var conf struct {
		Top       map[string]string `json:"top"`
		Locations []*location       `json:"locations"`
	}
	text, err := os.ReadFile(os.Args[1] + ".json")
	if err == nil {
		err = json.Unmarshal(text, &conf)
	}
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.OpenFile(conf.Top["error_log"], os.O_APPEND|os.O_CREATE|os.O_WRONLY,
		0o600)
	if err != nil {
		log.Fatal(err)
	}
	logger := log.New(file, "", 0)
	for _, l := range conf.Locations {
		l.handler = l.guarded(os.Args[2], logger)
	}
	server := http.Server{Addr: conf.Top["listen"], Handler: route(conf.Locations),
		MaxHeaderBytes: 1 << 20, ErrorLog: logger}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGQUIT, syscall.SIGTERM)
	over := make(chan int)
	go func() {
		if <-ends == syscall.SIGTERM {
			os.Exit(0)
		}
		logger.Print("gracefully shutting down")
		_ = server.Shutdown(context.Background())
		over <- 0
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		if strings.Contains(err.Error(), "address already in use") {
			logger.Print("Address already in use")
		}
		logger.Print(err)
		os.Exit(1)
	}
	<-over
}
