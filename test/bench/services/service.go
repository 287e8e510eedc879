// SPDX-License-Identifier: Apache-2.0

// service answers POST with 201 and 300 bytes; for test/bench/serve.py.
//
//	service plain|guarded PORT
package main

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"os"

	"once"
)

var answer = bytes.Repeat([]byte("a"), 300)

func serve(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	w.Write(answer)
}

func main() {
	var handler http.Handler = http.HandlerFunc(serve)
	var err error
	if os.Args[1] != "plain" {
		handler, err = once.Handler(handler, once.Options{
			Scope: func(*http.Request) string { return "u1" },
		})
	}
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[2], handler))
}
