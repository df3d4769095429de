//go:build !js

// Command play serves the page on which anybody can try the lock: the shipped guard and the rules over memstore, compiled to WebAssembly, in
// virtual time. make play builds the page in a folder, which is the argument. Any other server of files will do as well.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
)

// address is the one to which the pages of docs link. If another program has it, a free port does.
const address = "127.0.0.1:8047"

func main() {
	if len(os.Args) != 2 {
		log.Fatal("play: want one argument: the folder of the page")
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err == nil {
		fmt.Printf("http://%s/\n", l.Addr())
		err = http.Serve(l, http.FileServer(http.Dir(os.Args[1])))
	}
	log.Fatal("play: ", err)
}
