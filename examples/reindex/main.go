// Command reindex keeps an index of the documents of each customer. Each change of a document sends a message, and the work reads all
// documents of the customer and writes the index anew. While one run is at work for a customer, at most one waits. All other
// messages are answered at once, because the run that waits begins later and does what they ask for, too.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Change is a message. It does not say what has changed: the run that does its work has another message.
type Change struct {
	Customer string `json:"customer"`
}

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener) // with LOCK_COALESCE=true
	d := boot.Must(openDocuments(boot.MustURLFromEnv("DOCUMENTS_URL"), boot.EnvVar))
	boot.Start(g, sqsbatch.Wrap(g, key, reindex(d)))
}

func parse(m events.SQSMessage) (c Change, err error) {
	if err = json.Unmarshal([]byte(m.Body), &c); err == nil && c.Customer == "" {
		err = errors.New("the message names no customer")
	}
	return c, err
}

func key(_ context.Context, m events.SQSMessage) (string, error) {
	c, err := parse(m)
	return lockstore.Key("index", c.Customer), err
}

func reindex(d documents) guard.Work[events.SQSMessage] {
	return func(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
		c, err := parse(m)
		if err != nil {
			return err
		}
		titles, err := d.titles(ctx, c.Customer) // of now, by a consistent read
		if err != nil {
			return fmt.Errorf("the documents of customer %s: %w", c.Customer, err)
		}
		if err := layOut(ctx, titles); err != nil {
			return err
		}
		return d.putIndex(ctx, lock, c.Customer, titles)
	}
}

// layOut stands for what takes time.
func layOut(ctx context.Context, _ []string) error {
	select {
	case <-time.After(200 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
