// Command function is the Lambda that lambdatest's own tests run: it does what
// its payload says.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

type request struct {
	Do string `json:"do"`
	N  int    `json:"n"`
}

type answer struct {
	RequestID string        `json:"requestId"`
	PID       int           `json:"pid"`
	Remaining time.Duration `json:"remaining"`
	Deadline  time.Time     `json:"deadline"`
	Env       []string      `json:"env,omitempty"`
}

type NamedError struct{ Reason string }

func (e *NamedError) Error() string { return "named: " + e.Reason }

func main() {
	if os.Getenv("FAIL_INIT") != "" {
		log.Fatal("no store is configured")
	}
	var options []lambda.Option
	if os.Getenv("WITH_SIGTERM") != "" {
		options = append(options, lambda.WithEnableSIGTERM(func() { fmt.Println("got SIGTERM") }))
	}
	lambda.StartWithOptions(handle, options...)
}

// together lets n invocations of one process meet.
var together struct {
	sync.Mutex
	here int
	all  chan struct{}
}

func handle(ctx context.Context, r request) (any, error) {
	lc, _ := lambdacontext.FromContext(ctx)
	a := answer{RequestID: lc.AwsRequestID, PID: os.Getpid()}
	if deadline, ok := ctx.Deadline(); ok {
		a.Remaining, a.Deadline = time.Until(deadline), deadline
	}
	switch r.Do {
	case "echo":
	case "env":
		a.Env = os.Environ()
	case "log":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
	case "named":
		return nil, &NamedError{"as asked"}
	case "wrapped":
		return nil, fmt.Errorf("wrapped: %w", &NamedError{"as asked"})
	case "plain":
		return nil, errors.New("plain")
	case "panic":
		panic("as asked")
	case "exit":
		os.Exit(7)
	case "hang":
		fmt.Println("hanging", r.N)
		<-ctx.Done()
		select {}
	case "late":
		<-ctx.Done()
		fmt.Println("late", r.N)
	case "large":
		return strings.Repeat("x", r.N-2), nil // and two quotes
	case "meet":
		together.Lock()
		if together.all == nil {
			together.all = make(chan struct{})
		}
		if together.here++; together.here == r.N {
			close(together.all)
		}
		together.Unlock()
		select {
		case <-together.all:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	default:
		return nil, fmt.Errorf("unknown do: %q", r.Do)
	}
	return a, nil
}
