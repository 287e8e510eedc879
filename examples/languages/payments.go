// SPDX-License-Identifier: Apache-2.0

// payments charges cards, with net/http. Each charge is a line of a ledger.
//
//	payments LEDGER PORT
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"

	"once"
)

type order struct {
	Order  string `json:"order"`
	Amount int    `json:"amount"`
}

func charge(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ledger, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer ledger.Close()
	fmt.Fprintf(ledger, "%s %d\n", o.Order, o.Amount)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "{\"order\":%q,\"charged\":%d}\n", o.Order, o.Amount)
}

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/charge", charge)
	// Who calls? Here this header says so: take yours from the session.
	handler, err := once.Handler(mux, once.Options{
		Scope: func(r *http.Request) string { return r.Header.Get("X-Customer") },
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[2], handler))
}
