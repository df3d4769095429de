// Command function is the Lambda function of this package's tests. Its work reads from the board how many events have come, takes the
// time WORK, and writes this number to the board. VARIANT "" is the right one. The others plant a mistake in the store.
package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambdacontext"
	_ "github.com/lib/pq" // PostgreSQL's driver

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

// stores are those that LOCK_URL may name.
var stores = []lockstore.SchemeOpener{
	dynamostore.Opener, redisstore.Opener, zkstore.Opener,
	sqlstore.Opener(func(url string) (*sql.DB, error) { return sql.Open("postgres", url) }, sqlstore.Options{}),
}

func main() {
	variant := boot.EnvVar("VARIANT")
	plant := mistakes[variant]
	if variant != "" && plant == nil {
		panic("unknown variant " + variant)
	}
	var openers []lockstore.SchemeOpener
	for _, o := range stores {
		openers = append(openers, planted(o, plant))
	}
	g := boot.MustGuardFromEnv(openers...)
	f := function{boot.MustURLFromEnv("BOARD_URL"), boot.Must(time.ParseDuration(boot.EnvVar("WORK")))}
	boot.Start(g, sqsbatch.Wrap(g, key, f.work))
}

// key is the body of a message.
func key(_ context.Context, m events.SQSMessage) (string, error) { return m.Body, nil }

type function struct {
	board *url.URL
	takes time.Duration
}

func (f function) work(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
	row := f.board.JoinPath(m.Body, lambdacontext.FunctionName)
	row.RawQuery = url.Values{"event": {m.MessageId}, "fence": {fmt.Sprint(int64(lock.Fence))}}.Encode()
	came, err := ask(ctx, http.MethodGet, row, "")
	if err == nil {
		err = pause.For(ctx, f.takes)
	}
	if err == nil {
		_, err = ask(ctx, http.MethodPut, row, came)
	}
	return err
}

func ask(ctx context.Context, method string, row *url.URL, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, row.String(), strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the board refuses: %s %s", resp.Status, text)
	}
	return string(text), err
}

// planted plants a mistake in the stores that o opens; nil is none.
func planted(o lockstore.SchemeOpener, plant func(driver.Driver) driver.Driver) lockstore.SchemeOpener {
	if plant == nil {
		return o
	}
	return lockstore.SchemeOpener{Schemes: o.Schemes, Open: func(ctx context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
		s, err := o.Open(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return s.WrapDriver(plant), nil
	}}
}

// mistakes are those about who covers an event.
var mistakes = map[string]func(driver.Driver) driver.Driver{
	"a holder covers": func(d driver.Driver) driver.Driver { return changed{d, coveredByHolder} },
	"its own place covers": func(d driver.Driver) driver.Driver {
		return changed{d, func(ctx context.Context, d driver.Driver, key string, r driver.Request) (driver.Answer, error) {
			sum := sha256.Sum256([]byte(r.Owner)) // each try is an event of its own
			r.Event = hex.EncodeToString(sum[:8])
			return d.Do(ctx, key, r)
		}}
	},
	"another work covers": func(d driver.Driver) driver.Driver {
		return changed{d, func(ctx context.Context, d driver.Driver, key string, r driver.Request) (driver.Answer, error) {
			r.Work = "any"
			return d.Do(ctx, key, r)
		}}
	},
}

// coveredByHolder lets whoever holds the key cover an event.
func coveredByHolder(ctx context.Context, d driver.Driver, key string, r driver.Request) (driver.Answer, error) {
	r.Join, r.Work, r.Event = false, "", ""
	a, err := d.Do(ctx, key, r)
	a.Covered = err == nil && a.Outcome == driver.Refused
	return a, err
}

// changed sends the acquires that coalesce in another way.
type changed struct {
	driver.Driver
	acquire func(context.Context, driver.Driver, string, driver.Request) (driver.Answer, error)
}

func (c changed) Unwrap() driver.Driver { return c.Driver }

func (c changed) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if r.Kind == driver.Acquire && r.Work != "" {
		return c.acquire(ctx, c.Driver, key, r)
	}
	return c.Driver.Do(ctx, key, r)
}
