// SPDX-License-Identifier: Apache-2.0
//
// calls.go - what ../test_drivers.py asks of every driver, in Go's database/sql
// with lib/pq.
//
//	calls HOST PORT DATABASE BODY
package main

import (
	"database/sql"
	"fmt"
	"os"

	"github.com/lib/pq"
)

var text = os.Args[4]

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func alone(db *sql.DB, call string, args ...interface{}) {
	_, err := db.Exec("SELECT once."+call, args...)
	if err == nil {
		fmt.Println("taken")
	} else if e, ok := err.(*pq.Error); ok {
		fmt.Println(e.Code)
	} else {
		must(err)
	}
}

func exec(tx *sql.Tx, query string, args ...interface{}) {
	_, err := tx.Exec(query, args...)
	must(err)
}

func emit(tx *sql.Tx, body, key, id interface{}, cast string) {
	exec(tx, "SELECT once.emit('r', $1"+cast+", p_key => $2, p_id => $3)",
		body, key, id)
}

func call(db *sql.DB) {
	var answer string
	var result []byte

	tx, err := db.Begin()
	must(err)
	must(tx.QueryRow(`SELECT answer, result FROM once.begin('calls', $1,
		sha256(convert_to($2, 'UTF8')))`, 7, text).Scan(&answer, &result))
	fmt.Println(answer)
	if answer != "run" {
		if string(result) == text {
			fmt.Println("True")
		}
		must(tx.Rollback())
		return
	}
	exec(tx, "INSERT INTO effect VALUES ($1)", text)
	exec(tx, "SELECT once.finish('calls', $1, 1, $2)", 7, text)
	must(tx.Commit())
}

func main() {
	var all [256]byte

	db, err := sql.Open("postgres", fmt.Sprintf(
		"host=%s port=%s dbname=%s user=once sslmode=disable",
		os.Args[1], os.Args[2], os.Args[3]))
	must(err)
	alone(db, "inbox_claim('billing', $1)", "alone")
	alone(db, "barrier_enter($1, 'b', 'try')", "alone")
	alone(db, "emit('r', $1)", text)
	alone(db, "saga_start('k', $1)", `[{"try": "r"}]`)
	alone(db, "begin('calls', $1)", "alone")
	call(db)
	call(db)
	for i := range all {
		all[i] = byte(i)
	}
	tx, err := db.Begin()
	must(err)
	emit(tx, text, "text", "text", "")
	emit(tx, all[:], "bytes", "bytes", "::bytea")
	emit(tx, `{"a": "\\u00e9\\"}`, "json", "json", "::jsonb")
	emit(tx, text, 42, 43, "")
	emit(tx, text, nil, "6f1c2a9b-e04d-4735-8000-000000000001", "")
	exec(tx, "SELECT once.inbox_claim('billing', $1)",
		"6f1c2a9b-e04d-4735-8000-000000000002")
	must(tx.Commit())
}
