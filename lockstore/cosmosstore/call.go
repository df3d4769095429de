package cosmosstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
)

// transport is between azcosmos and the network, for three reasons:
//
//   - azcosmos repeats requests after pauses of a second. It does not know the errors of
//     this transport, so it repeats none, and the store knows what was sent.
//   - Before its first request azcosmos asks for the account's regions, without the
//     caller's context. If nobody answers, all requests of the next five minutes fail. The
//     store uses the global endpoint only, so the transport gives an answer without regions.
//   - The errors of azcosmos quote whole answers.
type transport struct {
	client *http.Client
	// account gets the answer about the account. With it, the transport does ask, with the context check.
	account func(body []byte)
	check   context.Context
}

func (t *transport) Do(req *http.Request) (*http.Response, error) {
	asksAccount := req.Method == http.MethodGet && strings.Trim(req.URL.Path, "/") == ""
	if asksAccount && t.account == nil {
		return &http.Response{StatusCode: http.StatusOK, Request: req, Header: http.Header{}, Body: body("{}")}, nil
	}
	if asksAccount {
		req = req.WithContext(t.check)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, httpclient.Plain(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, httpclient.MaxReply))
	if err != nil {
		return nil, httpclient.Plain(err)
	}
	if resp.StatusCode >= 300 {
		substatus, _ := strconv.Atoi(resp.Header.Get("x-ms-substatus")) // no text, which could quote what was sent
		return nil, &refusal{resp.StatusCode, substatus, date(resp.Header)}
	}
	if asksAccount {
		t.account(text)
		text = []byte("{}")
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp, nil
}

func body(text string) io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }

// refusal is an answer that is an error.
type refusal struct {
	status, substatus int
	date              time.Time
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the answer is HTTP %d/%d", r.status, r.substatus)
}

// noOwner is the substatus of an answer 404 that misses the database or the container.
const noOwner = 1003

// retryWith is the service's own status for writes that meet.
const retryWith = 449

type op int

const (
	opRead op = iota
	opCreate
	opReplace
)

// missingItem says that the answer to a read is: there is no such item.
func (r *refusal) missingItem() bool {
	return r.status == http.StatusNotFound && r.substatus == 0
}

// explain turns an error of azcosmos into a KV's.
func explain(sent *httpclient.Sent, what op, err error) error {
	r, refused := errors.AsType[*refusal](err)
	if !refused {
		return sent.Failed("Cosmos DB", err)
	}
	switch r.status {
	case http.StatusConflict, http.StatusPreconditionFailed, retryWith:
		return casstore.ErrConflict
	case http.StatusNotFound:
		if what == opReplace && r.substatus != noOwner {
			return casstore.ErrConflict
		}
		if what == opRead && r.substatus != noOwner {
			return r // of a replica that is behind
		}
		return httpclient.Corrupt(r.Error() + "; the URL's database or container is wrong")
	case http.StatusBadRequest:
		return httpclient.Corrupt(r.Error() + "; the container needs the partition key /id")
	case http.StatusUnauthorized, http.StatusForbidden:
		return httpclient.Unavailable(r.Error() + "; the key is not accepted or may not write, the account's firewall is closed, or the clock is wrong by more than 15 minutes")
	case http.StatusTooManyRequests:
		return httpclient.Unavailable(r.Error() + "; the container has too few request units")
	}
	return r
}

// date is the service's time, in whole seconds; zero without one.
func date(h http.Header) time.Time {
	t, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Time{}
	}
	return t
}

var errUnclear = errors.New("the reply is not Cosmos DB's")
