package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// runDeployed runs the fixtures against a stack in AWS.
func runDeployed(ctx context.Context, out *screen, getenv func(string) string, name string) (err error) {
	start := time.Now()
	t, fixtures, err := readAll()
	if err != nil {
		return err
	}
	c, err := openCloud(ctx, getenv)
	if err != nil {
		return err
	}
	at, err := c.describe(ctx, name, t)
	if refused, ok := errors.AsType[*refusal](err); ok && refused.status == http.StatusForbidden {
		return fmt.Errorf("%w\n%s", err, needs)
	}
	if err != nil {
		return err
	}
	d := deployed{c, at}
	s, err := d.store(ctx, t)
	if err != nil {
		return err
	}
	out.line("stack %s in %s, locks in %s", name, c.Options().Region, at.lockStore)
	out.line("  replaces the accounts %s and %s in the table %s", account, another, at.ids[t.urls[accountsVariable]])
	out.line("  takes the locks of the accounts %s, %s, %s, of the schedule nightly, and some in shared/", account, nobody, another)
	out.line("  changes nothing else")
	if err := d.absent(ctx, t, nobody); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lambdalock-aws")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clerk, err := buildDesk(ctx, dir)
	if err != nil {
		return err
	}
	trial := trial{template: t, fixtures: fixtures, clerk: clerk, out: out}
	// Times first, while no function has run for a while.
	r, err := trial.on(ctx, s, d, trial.measure, trial.invoke, trial.call, trial.crowd)
	if err != nil {
		return err
	}
	out.line("\n%s", table(fixtures, t, []*report{r}))
	out.line("  all in %s", seconds(time.Since(start)))
	return verdict([]*report{r})
}

// deployed is the runner, and the one service, of a stack.
type deployed struct {
	cloud *cloud
	stack stack
}

// store has the accounts, and the locks where they can be reached from here.
func (d deployed) store(ctx context.Context, t template) (*store, error) {
	env, err := d.cloud.environment(ctx)
	if err != nil {
		return nil, err
	}
	s := &store{
		name:   "AWS, " + d.stack.lockStore,
		url:    func(_, table string) string { return d.cloud.tableURL(d.stack.ids[table]) },
		fresh:  func(ctx context.Context) error { return d.removeAccounts(ctx, t) },
		open:   dynamostore.Open,
		getenv: d.cloud.getenv,
		env:    env,
		keeps:  true,
	}
	if d.stack.lockStore == "elasticache" {
		s.noHold = "what needs a lock that another holds; the cache is in a VPC, out of reach from here"
	}
	return s, nil
}

// removeAccounts removes what the fixtures use. A lock's row is not for removal.
func (d deployed) removeAccounts(ctx context.Context, t template) error {
	for _, id := range []string{account, another} {
		name, key := d.accountRow(t, id)
		if _, err := d.cloud.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: &name, Key: key}); err != nil {
			return err
		}
	}
	return nil
}

// absent fails where the account exists: the events are about one that does not,
// and would withdraw from it.
func (d deployed) absent(ctx context.Context, t template, id string) error {
	name, key := d.accountRow(t, id)
	found, err := d.cloud.GetItem(ctx, &dynamodb.GetItemInput{TableName: &name, Key: key})
	if err == nil && len(found.Item) > 0 {
		err = fmt.Errorf("the account %s is in the table %s, and the events are for a table without it; use a stack that nobody else does", id, name)
	}
	return err
}

func (d deployed) accountRow(t template, id string) (table string, key map[string]types.AttributeValue) {
	for _, known := range t.tables {
		if known.id == t.urls[accountsVariable] {
			key = map[string]types.AttributeValue{known.key: &types.AttributeValueMemberS{Value: id}}
		}
	}
	return d.stack.ids[t.urls[accountsVariable]], key
}

func (d deployed) once(ctx context.Context, f fixture) ([]byte, error) {
	got, err := d.cloud.invoke(ctx, d.stack.ids[f.function.id], f.Event)
	if err != nil {
		return nil, err
	}
	var wanted struct{ ErrorType string }
	if json.Unmarshal(f.Want, &wanted) == nil && (wanted.ErrorType != "") != (got.failed != "") {
		return nil, fmt.Errorf("want %s\n     got  X-Amz-Function-Error %q, %.300s", bytes.TrimSpace(f.Want), got.failed, got.text)
	}
	return got.text, nil
}

func (d deployed) serve(context.Context, purpose) (service, error) { return d, nil }

func (d deployed) stop() {}

// overlap looks at nothing: the functions' clocks are not one.
func (d deployed) overlap() error { return nil }

func (d deployed) invoke(ctx context.Context, id string, event []byte) (reply, error) {
	got, err := d.cloud.invoke(ctx, d.stack.ids[id], event)
	if err == nil && got.failed != "" {
		err = fmt.Errorf("%s: X-Amz-Function-Error %s: %.300s", id, got.failed, got.text)
	}
	return got.reply, err
}

func (d deployed) call(ctx context.Context, r request) (response, error) {
	got, text, err := d.cloud.send(ctx, "execute-api", r.Method, d.stack.api+r.Path, r.Header, r.Body)
	if err != nil {
		return response{}, err
	}
	return response{got.StatusCode, got.Header, text}, nil
}

// began says that the end of an invocation's log, in base64, reports the start
// of an environment. The report is a line of text or of JSON, as the function's
// log format is.
func began(log string) bool {
	text, err := base64.StdEncoding.DecodeString(log)
	return err == nil && (strings.Contains(string(text), "Init Duration:") || strings.Contains(string(text), `"initDurationMs"`))
}
