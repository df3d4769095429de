// Command readwrite has many readers of a document at work at once, or one writer.
package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Document is the event and the answer. An event without a body reads.
type Document struct{ ID, Title, Body string }

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener)
	rows := boot.Must(redisstore.Client(lockstore.Config{URL: boot.MustURLFromEnv("ROWS_URL"), Getenv: boot.EnvVar}))
	boot.Start(g, handler(g, rows))
}

func handler(g *guard.Guard, rows redis.Cmdable) guard.Wrapped[Document, Document] {
	reader := guard.Wrap(g.WithMaxHolders(lockstore.MaxHolders), key, guard.WithoutFence(read(rows)))
	writer := guard.Wrap(g.WithMaxHolders(1), key, guard.WithoutFence(write(rows)))
	return guard.WrapUnlocked(func(ctx context.Context, d Document) (Document, error) {
		if d.Body == "" {
			return reader.Handle(ctx, d)
		}
		return writer.Handle(ctx, d)
	})
}

func key(_ context.Context, d Document) (string, error) { return lockstore.Key("document", d.ID), nil }

// read gets the title and the body of one write, because no writer is at work. (One that died between its two writes
// leaves the first.)
func read(rows redis.Cmdable) func(context.Context, Document) (Document, error) {
	return func(ctx context.Context, d Document) (Document, error) {
		title, err := rows.Get(ctx, d.ID+":title").Result()
		if err == redis.Nil {
			return Document{ID: d.ID}, nil // nobody has written it
		}
		if err != nil {
			return Document{}, err
		}
		body, err := rows.Get(ctx, d.ID+":body").Result()
		return Document{d.ID, title, body}, err
	}
}

func write(rows redis.Cmdable) func(context.Context, Document) (Document, error) {
	return func(ctx context.Context, d Document) (Document, error) {
		if err := rows.Set(ctx, d.ID+":title", d.Title, 0).Err(); err != nil {
			return Document{}, err
		}
		return d, rows.Set(ctx, d.ID+":body", d.Body, 0).Err()
	}
}
