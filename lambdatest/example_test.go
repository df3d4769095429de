package lambdatest_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lambdatest"
)

// Three environments of one binary get an event each. One of them is killed in the
// middle of its work, and its event comes again, with the same request id.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "example") // in a test: t.TempDir()
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "bootstrap")
	if err := lambdatest.Build(ctx, "./testdata/function", binary); err != nil {
		log.Fatal(err)
	}
	envs, err := lambdatest.StartAll(ctx, 3, lambdatest.Config{
		Binary:  binary,
		Env:     []string{"TABLE=orders"},
		Timeout: 10 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer envs.Close()

	for i, env := range envs {
		r, err := env.Invoke(ctx, []byte(`{"do": "echo"}`))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("environment %d: error type %q\n", i+1, r.ErrorType)
	}

	killed := make(chan lambdatest.Result)
	go func() {
		r, err := envs[0].Invoke(ctx, []byte(`{"do": "hang", "n": 1}`))
		if err != nil {
			log.Print(err)
		}
		killed <- r
	}()
	// The function writes a line, so the test knows where the work is.
	if _, err := envs[0].WaitLog(ctx, func(line string) bool { return strings.HasPrefix(line, "hanging") }); err != nil {
		log.Fatal(err)
	}
	if err := envs[0].Kill(); err != nil {
		log.Fatal(err)
	}
	first := <-killed
	fmt.Println("killed:", first.ErrorType)
	again, err := envs[1].Send(ctx, lambdatest.Event{Payload: []byte(`{"do": "echo"}`), ID: first.RequestID})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("again: the same request id %v, error type %q\n", again.RequestID == first.RequestID, again.ErrorType)

	// Output:
	// environment 1: error type ""
	// environment 2: error type ""
	// environment 3: error type ""
	// killed: Runtime.ExitError
	// again: the same request id true, error type ""
}
