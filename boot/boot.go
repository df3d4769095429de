// Package boot turns a function's environment into a guard. Of this module's packages that a
// function links, only boot reads the environment, and only boot may end the process. The
// functions that begin with Must, and [Start], print one sentence to standard error
// and exit with status 1 when a setting is missing or wrong.
//
// boot reads these variables:
//
//	LOCK_URL              where the locks are, for example dynamodb://locks (required)
//	LOCK_TTL              guard.Options.TTL, the longest lease: 60s by default
//	LOCK_MAX_HOLD         guard.Options.MaxHold, the longest time for one run's work: 15m by default
//	LOCK_WAIT             guard.Options.Wait, how long to wait for a busy lock: 0 by default
//	LOCK_COALESCE         true: guard.Options.Coalesce is the function's name, so of many events for one key only one waits. Without an
//	                      adapter that knows better, an event's id is Lambda's request id. A batch (SQS) or an HTTP request has
//	                      a new request id at each try, so its run fails
//	LOCK_MAX_HOLDERS      guard.Guard.WithMaxHolders, how many runs may hold each key at once: 1 by default
//	LOCK_DEADLINE_MARGIN  guard.Options.DeadlineMargin, time for the release before Lambda's deadline: 300ms by default
//	LOCK_SIGTERM          true: on SIGTERM cancel the work, so that its lease is released
//	LOCK_METRICS          a CloudWatch namespace: each report line is also a metric there
//	LOCK_LOG              start: one more line for each run, when it gets the lock
//
// The store and the function may read other variables. A duration is written as in Go: 500ms,
// 30s, 5m. A variable whose name begins with LOCK_ and that nobody has read is nearly
// always a typing mistake, so [Start] refuses it. A function reads a variable of its
// own with [EnvVar] or [MustURLFromEnv]; then Start knows the name.
//
// # Log lines
//
// boot writes JSON lines to standard output: one when the process starts, with the
// store's URL (scheme and host only), and one report for each run of the guard, see docs/log.md.
// A line that cannot be written ends no run: the guard waits for it for at most a second, see guard.Options.Observe,
// and SIGPIPE does not end the process.
package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/eventsource"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
	"github.com/lambdalock/lambdalock/lockstore"
)

// MustGuardFromEnv opens the store that LOCK_URL names, with the opener that has the URL's
// scheme, and returns a guard over this store. In a lock's entry the holder is the
// function's name and the request id. The guard logs one JSON line for each run to
// standard output. MustGuardFromEnv also makes slog's default logger write such lines, for
// the messages of stores and adapters. It sends no request to the store.
func MustGuardFromEnv(openers ...lockstore.SchemeOpener) *guard.Guard {
	return MustGuardFromEnvWith(nil, openers...)
}

// MustGuardFromEnvWith is MustGuardFromEnv for a program that sets more than the environment says, such as
// guard.Options.Wake: set gets the options as boot has made them, and may change them.
func MustGuardFromEnvWith(set func(*guard.Options), openers ...lockstore.SchemeOpener) *guard.Guard {
	return mustGuard("LOCK_URL", set, openers)
}

// MustGuardFromURL is MustGuardFromEnv for the store that the environment variable name names, in place of LOCK_URL. It is for a
// program with two guards, as while its locks move to another store.
func MustGuardFromURL(name string, openers ...lockstore.SchemeOpener) *guard.Guard {
	return mustGuard(name, nil, openers)
}

func mustGuard(name string, set func(*guard.Options), openers []lockstore.SchemeOpener) *guard.Guard {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // or a log whose reader has gone would end the process, with its leases
	g := Must(newGuard(os.Stdout, getenv, name, set, openers...))
	slog.SetDefault(slog.New(jsonHandler(os.Stdout)))
	return g
}

// MustURLFromEnv returns the URL in the environment variable name. It is for a resource of
// the function's own, such as a table, that the function opens beside its guard.
func MustURLFromEnv(name string) *url.URL { return Must(readURL(name, getenv)) }

// EnvVar returns an environment variable, or "" if the variable is not set. It is
// os.Getenv, and it tells Start that the function knows the variable.
func EnvVar(name string) string { return getenv(name) }

// Must returns v, or exits with err's sentence. It is for what a function opens
// beside its guard.
func Must[T any](v T, err error) T {
	if err != nil {
		exit(err)
	}
	return v
}

// Start runs the function, as lambda.Start does. It does not return. It takes only what a
// Wrap has made, of package guard or of a package below it, so that no handler runs without its
// lock by mistake:
//
//	boot.Start(g, guard.Wrap(g, key, handle))
//
// For a handler that takes its locks itself see guard.WrapUnlocked.
//
// With LOCK_SIGTERM=true Start registers for SIGTERM. Lambda then sends SIGTERM half a
// second before it ends the process, also after a timeout. Registering makes the
// start slower, so it is not the default.
func Start[In, Out any](g *guard.Guard, handler guard.Wrapped[In, Out]) {
	options := Must(startOptions(g, getenv))
	if err := asked.unknown(os.Environ()); err != nil {
		exit(err)
	}
	lambda.StartWithOptions(entry(g, handler), options...)
}

// triesKey is that of a context whose request id is another one for each try of the event.
type triesKey struct{}

// entry is the handler as Lambda calls it. If the guard coalesces, the context of a batch and of a request has no event's id.
func entry[In, Out any](g *guard.Guard, handler guard.Wrapped[In, Out]) any {
	if !g.Coalesces() {
		return handler.Handle
	}
	return func(ctx context.Context, event json.RawMessage) (out Out, err error) {
		var in In
		if err := json.Unmarshal(event, &in); err != nil {
			return out, err
		}
		if eventsource.CheckAsync("boot", event) != nil {
			ctx = context.WithValue(ctx, triesKey{}, true)
		}
		return handler.Handle(ctx, in)
	}
}

func exit(err error) {
	fmt.Fprintln(os.Stderr, "lambdalock:", err)
	os.Exit(1)
}

func newGuard(out io.Writer, getenv func(string) string, name string, set func(*guard.Options), openers ...lockstore.SchemeOpener) (*guard.Guard, error) {
	options := guard.Options{HolderInfo: holderInfo, EventID: eventID}
	var written, names []string // pairs: guard's words, and the user's words for them
	for _, v := range []struct {
		name, option string
		to           *time.Duration
	}{
		{"LOCK_TTL", "TTL", &options.TTL},
		{"LOCK_MAX_HOLD", "MaxHold", &options.MaxHold},
		{"LOCK_WAIT", "Wait", &options.Wait},
		{"LOCK_DEADLINE_MARGIN", "DeadlineMargin", &options.DeadlineMargin},
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
	if on, err := readBool("LOCK_COALESCE", getenv); err != nil {
		return nil, err
	} else if on {
		if options.Coalesce = lambdacontext.FunctionName; options.Coalesce == "" {
			return nil, errors.New("LOCK_COALESCE is true, and AWS_LAMBDA_FUNCTION_NAME is empty; want the function's name there, as Lambda sets it")
		}
		written = append(written, fmt.Sprintf("Coalesce is %q", options.Coalesce), "LOCK_COALESCE is "+getenv("LOCK_COALESCE"))
	}
	maxHolders, err := readMaxHolders(getenv("LOCK_MAX_HOLDERS"))
	if err != nil {
		return nil, err
	}
	namespace := getenv("LOCK_METRICS")
	if err := checkNamespace(namespace); err != nil {
		return nil, err
	}
	u, err := readURL(name, getenv)
	if err != nil {
		return nil, err
	}
	store, err := lockstore.Open(context.Background(), getenv(name), getenv, openers...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	first := new(firstInvocation)
	options.Observe = guard.LogReports(logger(out, u, namespace, first))
	plain := logger(out, u, "", first)
	if options.Granted, err = logStart(getenv("LOCK_LOG"), plain); err != nil {
		return nil, err
	}
	if set != nil {
		set(&options)
	}
	g, err := guard.New(store, options)
	if err != nil {
		words := append([]string{"guard: ", ""}, append(written, names...)...)
		return nil, errors.New(strings.NewReplacer(words...).Replace(err.Error()))
	}
	tell.Log(context.Background(), plain, slog.LevelInfo, "lock store", slog.String("host", u.Host))
	return g.WithMaxHolders(maxHolders), nil
}

func readMaxHolders(text string) (int, error) {
	if text == "" {
		return 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > lockstore.MaxHolders {
		return 0, fmt.Errorf("LOCK_MAX_HOLDERS is %.40q; want a whole number, 1 to %d", text, lockstore.MaxHolders)
	}
	return n, nil
}

// jsonHandler writes JSON lines with the names that Lambda's own log lines have.
func jsonHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: lambdacontext.ReplaceAttr})
}

// logger writes lines that say which function, in which version, uses which kind of store.
// With a namespace each line is also a metric.
func logger(w io.Writer, store *url.URL, namespace string, first *firstInvocation) *slog.Logger {
	return slog.New(lineHandler{jsonHandler(w), namespace, first}).With("service", lambdacontext.FunctionName, "version", lambdacontext.FunctionVersion, "store", store.Scheme)
}

func readURL(name string, getenv func(string) string) (*url.URL, error) {
	text := getenv(name)
	if text == "" {
		return nil, fmt.Errorf("the environment variable %s is not set; want a URL, such as dynamodb://TABLE for a table", name)
	}
	u, err := lockstore.ParseURL(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return u, nil
}

func startOptions(g *guard.Guard, getenv func(string) string) ([]lambda.Option, error) {
	on, err := readBool("LOCK_SIGTERM", getenv)
	if err != nil || !on {
		return nil, err
	}
	return []lambda.Option{lambda.WithEnableSIGTERM(g.Shutdown)}, nil
}

// readBool reads a variable that is true, false or not set.
func readBool(name string, getenv func(string) string) (bool, error) {
	text := getenv(name)
	if text == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s is %.40q; want true or false", name, text)
	}
	return on, nil
}

// eventID is the id by which Lambda sends an asynchronous event again.
func eventID(ctx context.Context) string {
	if ctx.Value(triesKey{}) != nil {
		return ""
	}
	return requestID(ctx)
}

func requestID(ctx context.Context) string {
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		return lc.AwsRequestID
	}
	return ""
}

// holderInfo is the name of the function and the request id, as in the function's logs.
func holderInfo(ctx context.Context) lockstore.HolderInfo {
	return lockstore.HolderInfo{Name: lambdacontext.FunctionName, ID: requestID(ctx)}
}
