// SPDX-License-Identifier: Apache-2.0

// Calls functions by the middleware for Go, as test_calls.py tells it: see caller.py.
//
//	caller SOCKET
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"once"
)

type command struct {
	N           int      `json:"n"`
	Group       string   `json:"group"`
	Key         string   `json:"key"`
	Fingerprint string   `json:"fingerprint"`
	WaitMS      int64    `json:"wait_ms"`
	LeaseMS     int64    `json:"lease_ms"`
	RunMS       int64    `json:"run_ms"`
	KeepMS      int64    `json:"keep_ms"`
	Ledger      string   `json:"ledger"`
	Gate        string   `json:"gate"`
	TakesMS     int64    `json:"takes_ms"`
	Act         string   `json:"act"`
	Value       any      `json:"value"`
	Code        int      `json:"code"`
	Inner       *command `json:"inner"`
}

type answer map[string]any

var client *once.Client
var lock sync.Mutex

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (c *command) task() once.Task {
	return once.Task{Group: c.Group, Key: c.Key, Fingerprint: c.Fingerprint,
		Wait: ms(c.WaitMS), Lease: ms(c.LeaseMS), Run: ms(c.RunMS), Keep: ms(c.KeepMS)}
}

func (c *command) note() {
	f, err := os.OpenFile(c.Ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, c.Key)
	time.Sleep(ms(c.TakesMS))
	for c.Gate != "" {
		if _, err := os.Stat(c.Gate); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *command) work() (any, error) {
	c.note()
	if c.Inner != nil {
		return once.Call(client, c.Inner.task(), c.Inner.work)
	}
	switch c.Act {
	case "throw":
		return nil, errors.New("the network")
	case "end":
		runtime.Goexit()
	case "not_applied":
		return nil, fmt.Errorf("the queue is full: %w", once.ErrNotApplied)
	case "failure":
		body, _ := json.Marshal(c.Value)
		return nil, &once.Failure{Code: c.Code, Type: "application/json", Body: body}
	case "unencodable":
		return make(chan int), nil
	case "shape":
		return int64(7), nil
	case "bytes":
		return []byte(c.Value.(string)), nil
	}
	return c.Value, nil
}

func told(value any) answer {
	if data, ok := value.([]byte); ok {
		return answer{"bytes": string(data)}
	}
	return answer{"json": value}
}

var names = map[error]string{once.ErrFree: "Free", once.ErrMismatch: "Mismatch",
	once.ErrRefused: "Refused", once.ErrUnavailable: "Unavailable",
	once.ErrUnknown: "Unknown", once.ErrUnstored: "Unstored"}

func failed(wrong error) answer {
	out := answer{"text": wrong.Error()}
	var flight *once.InFlight
	var failure *once.Failed
	switch {
	case errors.As(wrong, &flight):
		out["error"], out["retry_after_ms"] = "InFlight", flight.RetryAfter.Milliseconds()
	case errors.As(wrong, &failure):
		var value any = failure.Body
		if failure.Type == "application/json" {
			_ = json.Unmarshal(failure.Body, &value)
		}
		for name, v := range told(value) {
			out[name] = v
		}
		out["error"], out["code"] = "Failed", failure.Code
	default:
		for of, name := range names {
			if errors.Is(wrong, of) {
				out["error"] = name
			}
		}
	}
	return out
}

func serve(c *command) {
	out := answer{"error": "gone"} // its goroutine has ended
	defer func() {
		out["n"] = c.N
		line, _ := json.Marshal(out)
		lock.Lock()
		defer lock.Unlock()
		fmt.Println(string(line))
	}()
	value, err := once.Call(client, c.task(), c.work)
	if err != nil {
		out = failed(err)
	} else if c.Act == "shape" {
		out = told(fmt.Sprintf("%T", value))
	} else {
		out = told(value)
	}
}

func main() {
	var err error
	if client, err = once.NewClient(once.Options{Serve: "unix:" + os.Args[1]}); err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		c := &command{}
		if err := json.Unmarshal(lines.Bytes(), c); err != nil {
			panic(err)
		}
		go serve(c)
	}
}
