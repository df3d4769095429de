package main

import (
	"encoding/json"
	"os"
	"runtime/debug"
	"syscall/js"
	"time"
)

// main is the program of the page: it begins the situation of its first argument, and gives the page the object lockWorld. play.js decides how
// fast time goes, and starts the program anew for another situation.
func main() {
	// The collector would change the order of goroutines, and so the run of a situation.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(256 << 20)

	w := open(os.Args[1])
	does := func(f func([]js.Value)) js.Func {
		return js.FuncOf(func(_ js.Value, args []js.Value) any {
			w.locked(func() { f(args) })
			return nil
		})
	}
	picture := func(_ js.Value, args []js.Value) any {
		w.mu.Lock()
		defer w.mu.Unlock()
		text, err := json.Marshal(w.picture(args[0].Int()))
		if err != nil {
			panic(err) // a picture has nothing that JSON lacks
		}
		return string(text)
	}
	js.Global().Set("lockWorld", map[string]any{
		"picture": js.FuncOf(picture),
		"send":    does(func(args []js.Value) { w.send(args[0].Int(), time.Second) }),
		"choose":  does(func(args []js.Value) { w.shown.Set = settings{args[0].String(), args[1].Int(), args[2].Int()} }),
		"strike":  does(func(args []js.Value) { w.environments[args[0].Int()].strike(args[1].String()) }),
	})
	select {}
}
