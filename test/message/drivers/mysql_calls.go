// SPDX-License-Identifier: Apache-2.0
//
// mysql_calls.go - what ../test_mysql_drivers.py asks of every driver, in Go's
// database/sql with go-sql-driver.
//
//	mysql_calls HOST PORT DATABASE USER PASSWORD BODY
package main

import (
	"database/sql"
	"fmt"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
)

var text = os.Args[6]

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func word(yes bool) string {
	if yes {
		return "True"
	}
	return "False"
}

func alone(db *sql.DB, call string, args ...interface{}) {
	_, err := db.Exec("CALL "+call, args...)
	if err == nil {
		fmt.Println("taken")
	} else if e, ok := err.(*mysql.MySQLError); ok {
		fmt.Println(strings.Split(e.Message, ".")[0])
	} else {
		must(err)
	}
}

func ask(tx *sql.Tx, call string, args ...interface{}) string {
	var answer sql.NullString

	must(tx.QueryRow("CALL "+call, args...).Scan(&answer))
	if !answer.Valid {
		return "None"
	}
	return answer.String
}

func emit(tx *sql.Tx, body interface{}, name string) {
	fmt.Println(ask(tx, "once_emit('r', ?, 7, ?, 't', '', 0, 0)", body, name))
}

func call(db *sql.DB) {
	var answer string
	var kind sql.NullInt64
	var result, token []byte

	tx, err := db.Begin()
	must(err)
	must(tx.QueryRow("CALL once_begin('calls', ?, UNHEX(SHA2(?, 256)))", 7,
		text).Scan(&answer, &kind, &result, &token))
	said := "None"
	if kind.Valid {
		said = fmt.Sprint(kind.Int64)
	}
	fmt.Println(answer, said, word(string(result) == text))
	if answer == "run" {
		_, err = tx.Exec("INSERT INTO effect (body) VALUES (?)", text)
		must(err)
		fmt.Println(ask(tx, "once_finish('calls', ?, ?, 1, ?)", 7, token, text))
	}
	must(tx.Commit())
}

// What the page has as an example in other languages.
func placeOrder(db *sql.DB) {
	tx, err := db.Begin()
	must(err)
	_, err = tx.Exec("INSERT INTO orders (id, cents) VALUES (?, ?)", 42, 1250)
	must(err)
	ask(tx, "once_emit('orders', ?, ?, NULL, 'application/json', NULL, NULL, NULL)",
		`{"order": 42, "cents": 1250}`, 42)
	must(tx.Commit())
}

func take(db *sql.DB, body string) bool {
	tx, err := db.Begin()
	must(err)
	answer := ask(tx,
		"once_inbox_claim('billing', ?, UNHEX(SHA2(?, 256)), 0)", "m1", body)
	if answer == "run" {
		_, err = tx.Exec("INSERT INTO invoices (order_id) VALUES (?)", 42)
		must(err)
	}
	must(tx.Commit())
	return answer == "run" || answer == "done"
}

func main() {
	var all [256]byte

	db, err := sql.Open("mysql", fmt.Sprintf("%s:%s@tcp(%s:%s)/%s", os.Args[4],
		os.Args[5], os.Args[1], os.Args[2], os.Args[3]))
	must(err)
	alone(db, "once_inbox_claim('c', ?, NULL, 0)", "alone")
	alone(db, "once_emit('r', ?, NULL, NULL, NULL, NULL, NULL, NULL)", text)
	alone(db, "once_begin('c', ?, NULL)", "alone")
	alone(db, "once_barrier_enter('g', ?, 'try')", "alone")
	call(db)
	call(db)
	for i := range all {
		all[i] = byte(i)
	}
	tx, err := db.Begin()
	must(err)
	emit(tx, text, "text")
	emit(tx, all[:], "bytes")
	emit(tx, text, "text")
	must(tx.Commit())
	placeOrder(db)
	for _, body := range []string{`{"order": 42, "cents": 1250}`,
		`{"order": 42, "cents": 1250}`, "{}"} {
		fmt.Println(word(take(db, body)))
	}
}
