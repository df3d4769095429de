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

	w, known := open(os.Args[1])
	answer := func(f func([]js.Value) any) js.Func {
		return js.FuncOf(func(_ js.Value, args []js.Value) any {
			text, err := json.Marshal(f(args))
			if err != nil {
				panic(err) // these types have nothing that JSON lacks
			}
			return string(text)
		})
	}
	js.Global().Set("lockWorld", map[string]any{
		"known":      known,
		"situations": answer(func([]js.Value) any { return situations }),
		"picture":    answer(func(args []js.Value) any { return w.picture(args[0].Int()) }),
		"send": answer(func(args []js.Value) any {
			w.locked(func() { w.send(args[0].Int(), time.Second, "") })
			return nil
		}),
		"choose": answer(func(args []js.Value) any {
			w.locked(func() { w.set = settings{args[0].String(), args[1].Int(), args[2].Int()} })
			return nil
		}),
		"strike": answer(func(args []js.Value) any {
			w.locked(func() { w.environments[args[0].Int()].strike(args[1].String()) })
			return nil
		}),
	})
	select {}
}
