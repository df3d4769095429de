//go:build !js

// Command play serves the page on which anybody can try the lock: the shipped guard and the rules over memstore, compiled to WebAssembly, in
// virtual time. make play builds the page. It needs no program behind it: any server of files will do.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("play: want one argument: the folder of the page")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal("play: ", err)
	}
	fmt.Printf("http://%s/\n", l.Addr())
	log.Fatal("play: ", http.Serve(l, http.FileServer(http.Dir(os.Args[1]))))
}
