// Package boot turns a function's environment into a guard. It is the only
// package here that reads the environment and the only one that may end the
// process: when something is missing it says so in one sentence on standard
// error and exits with status 1.
//
// It reads
//
//	LOCK_URL       where the locks are, for example dynamodb://locks (required)
//	LOCK_TTL       guard.Options.TTL, for example 30s
//	LOCK_MAX_HOLD  guard.Options.MaxHold
//	LOCK_WAIT      guard.Options.Wait
//	LOCK_RESERVE   guard.Options.Reserve
//	LOCK_SIGTERM   true: on SIGTERM cancel the work, so that its lease is released
//	LOCK_METRICS   a CloudWatch namespace: each report line is a metric there, too
//
// and what the opened store and the function ask for. Durations are Go's: 500ms,
// 30s, 5m. Start refuses a variable that begins with LOCK_ and that nothing has
// asked for before, because it is nearly always a typing mistake: a function that wants
// one of its own gets it through the lockstore.Config of Config.
//
// Most report lines have the level INFO. A function whose ApplicationLogLevel is
// higher has neither them nor their metrics.
package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// MustGuard opens the store that LOCK_URL names and returns a guard over it, whose
// holder is the function's name and request id and which logs one JSON line for
// each run to standard output. It makes slog's default logger write such lines
// too, for what stores and adapters have to say. It makes no request to the store.
func MustGuard(openers ...lockstore.Opener) *guard.Guard {
	g, err := newGuard(getenv, openers...)
	if err != nil {
		exit(err)
	}
	slog.SetDefault(slog.New(jsonHandler(os.Stdout)))
	return g
}

// Config reads the URL in the environment variable name, for a function's own
// resources, so that they are opened from the environment as the store is.
func Config(name string) lockstore.Config {
	cfg, err := config(name, getenv)
	if err != nil {
		exit(err)
	}
	return cfg
}

// Must is for what a function opens next to its guard: it returns v, or exits
// with err's sentence.
func Must[T any](v T, err error) T {
	if err != nil {
		exit(err)
	}
	return v
}

// Start runs the function. It does not return. With LOCK_SIGTERM=true it
// registers for SIGTERM, which Lambda then sends half a second before it ends
// the process, also after a timeout; that costs start time, so it is not the
// default.
func Start[In, Out any](g *guard.Guard, handler func(context.Context, In) (Out, error)) {
	options, err := startOptions(g, getenv)
	if err == nil {
		err = asked.unknown(os.Environ())
	}
	if err != nil {
		exit(err)
	}
	lambda.StartWithOptions(handler, options...)
}

func exit(err error) {
	fmt.Fprintln(os.Stderr, "lambdalock:", err)
	os.Exit(1)
}

func newGuard(getenv func(string) string, openers ...lockstore.Opener) (*guard.Guard, error) {
	options := guard.Options{Holder: holder}
	var written, names []string // what to write instead of guard's words
	for _, v := range []struct {
		name, option string
		to           *time.Duration
	}{
		{"LOCK_TTL", "TTL", &options.TTL},
		{"LOCK_MAX_HOLD", "MaxHold", &options.MaxHold},
		{"LOCK_WAIT", "Wait", &options.Wait},
		{"LOCK_RESERVE", "Reserve", &options.Reserve},
	} {
		names = append(names, v.option, v.name)
		text := getenv(v.name)
		if text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("%s is %.40q; want a duration such as 30s", v.name, text)
		}
		*v.to = d
		written = append(written, fmt.Sprintf("%s is %v", v.option, d), fmt.Sprintf("%s is %s", v.name, text))
	}
	namespace := getenv("LOCK_METRICS")
	if err := checkNamespace(namespace); err != nil {
		return nil, err
	}
	url := getenv("LOCK_URL")
	if url == "" {
		return nil, missing("LOCK_URL")
	}
	store, err := lockstore.Open(context.Background(), url, getenv, openers...)
	if err != nil {
		return nil, fmt.Errorf("LOCK_URL: %w", err)
	}
	scheme, _, _ := strings.Cut(url, ":")
	options.Observe = guard.LogReports(reportLogger(os.Stdout, scheme, namespace))
	g, err := guard.New(store, options)
	if err != nil {
		words := append([]string{"guard: ", ""}, append(written, names...)...)
		return nil, errors.New(strings.NewReplacer(words...).Replace(err.Error()))
	}
	return g, nil
}

// jsonHandler writes JSON lines with the names that Lambda's own log lines have.
func jsonHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: lambdacontext.ReplaceAttr})
}

func reportLogger(w io.Writer, scheme, namespace string) *slog.Logger {
	handler := jsonHandler(w)
	if namespace != "" {
		handler = metrics{handler, namespace}
	}
	return slog.New(handler).With("service", lambdacontext.FunctionName, "store", scheme)
}

func config(name string, getenv func(string) string) (lockstore.Config, error) {
	text := getenv(name)
	if text == "" {
		return lockstore.Config{}, missing(name)
	}
	u, err := lockstore.ParseURL(text)
	if err != nil {
		return lockstore.Config{}, fmt.Errorf("%s: %w", name, err)
	}
	return lockstore.Config{URL: u, Getenv: getenv}, nil
}

func missing(name string) error {
	return fmt.Errorf("the environment variable %s is not set; want a URL, such as dynamodb://TABLE for a table", name)
}

func startOptions(g *guard.Guard, getenv func(string) string) ([]lambda.Option, error) {
	text := getenv("LOCK_SIGTERM")
	if text == "" {
		return nil, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("LOCK_SIGTERM is %.40q; want true or false", text)
	}
	if !on {
		return nil, nil
	}
	return []lambda.Option{lambda.WithEnableSIGTERM(g.Shutdown)}, nil
}

// holder says who holds a lock, in the words of the function's logs.
func holder(ctx context.Context) lockstore.Holder {
	h := lockstore.Holder{Name: lambdacontext.FunctionName}
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		h.ID = lc.AwsRequestID
	}
	return h
}
