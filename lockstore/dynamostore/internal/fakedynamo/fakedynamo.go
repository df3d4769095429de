// Package fakedynamo is DynamoDB's UpdateItem, GetItem, PutItem, DeleteItem and Scan
// behind an http.RoundTripper, for tests of package dynamostore in virtual time. It
// parses and evaluates expressions and knows nothing of locks. It has its own clock, so
// a client's clock can be wrong. A test can plan a fault for each request and each
// reply. The same tests run on DynamoDB Local, so that the fake and the real service
// agree.
package fakedynamo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Value is an attribute value in DynamoDB's JSON, such as {"N": "7"}.
type Value map[string]any

// Item is a row.
type Item map[string]Value

// Service is one account in one region. Set its fields before the first request.
type Service struct {
	// Now is the service's clock.
	Now func() time.Time
	// Fault plans each request; nil means no faults.
	Fault func(Request) Fault
	// NoDate removes the Date header from all replies.
	NoDate bool

	underWay sync.WaitGroup // requests, also if the client does not wait any more

	mu       sync.Mutex
	table    string
	rows     map[string]Item  // by key
	older    map[string]older // of each row that was updated
	actions  map[string]int
	requests int
}

// older is a row before its last update.
type older struct {
	item Item
	at   time.Time
}

// staleFor is how long after an update a read that is not consistent brings the row before it.
const staleFor = 100 * time.Millisecond

// Request is the argument of Service.Fault.
type Request struct {
	N      int // 1 for the first request
	Action string
	Weak   bool // a read that is not consistent
}

// Fault is what happens to a request. Nothing happens with the zero value.
type Fault struct {
	In, Out   time.Duration // time on the way to the service and back
	Unsent    error         // the connection fails before the request is sent
	Refuse    *Failure      // the service's answer; the request is not applied
	LoseReply error         // the request is applied, then the connection fails
	Repeat    time.Duration // the network delivers the request again, this much later
}

// Failure is an error reply.
type Failure struct {
	Status  int    `json:"-"`
	Code    string `json:"__type"`
	Message string `json:"message"`
	Item    Item   `json:",omitempty"`                    // the row whose condition failed
	Reasons []any  `json:"CancellationReasons,omitempty"` // why a transaction was cancelled, one for each item
}

const (
	// signatureAge is how far the time of a signature may be from the service's time. Nothing checks the signature itself.
	signatureAge  = 5 * time.Minute
	signatureTime = "20060102T150405Z"

	conditionFailed = "ConditionalCheckFailedException"
)

// New returns a service with an empty table, whose partition key is "key" of type S.
func New(table string) *Service {
	return &Service{Now: time.Now, table: table, rows: map[string]Item{}, older: map[string]older{}, actions: map[string]int{}}
}

// Row returns a copy of a row, nil when it is not there.
func (s *Service) Row(key string) Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rows[key])
}

// SetRow puts a row without its key attributes; nil deletes it.
func (s *Service) SetRow(key string, item Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if item == nil {
		delete(s.rows, key)
		return
	}
	row := Item{}
	maps.Copy(row, primaryKey(key))
	maps.Copy(row, item)
	s.rows[key] = row
}

// Requests returns how many requests the client has sent.
func (s *Service) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// Actions returns the number of requests by action.
func (s *Service) Actions() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.actions)
}

// Wait returns when all requests have been delivered, late duplicates too.
func (s *Service) Wait() { s.underWay.Wait() }

// RoundTrip implements http.RoundTripper. A request whose context ends on the way is
// delivered anyway, as in a network.
func (s *Service) RoundTrip(r *http.Request) (*http.Response, error) {
	c, err := callOf(r)
	if err != nil {
		return nil, err
	}
	var fault Fault
	s.mu.Lock()
	s.requests++
	s.actions[c.action]++
	request := Request{N: s.requests, Action: c.action, Weak: c.action == "GetItem" && !c.in.ConsistentRead}
	s.mu.Unlock()
	if s.Fault != nil {
		fault = s.Fault(request)
	}
	if fault.Unsent != nil {
		return nil, fault.Unsent
	}

	replies := make(chan *http.Response, 1)
	s.underWay.Go(func() {
		time.Sleep(fault.In)
		reply := s.serve(c, fault.Refuse)
		time.Sleep(fault.Out)
		replies <- reply
	})
	if fault.Repeat > 0 {
		s.underWay.Go(func() {
			time.Sleep(fault.In + fault.Repeat)
			s.serve(c, nil)
		})
	}
	select {
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	case reply := <-replies:
		if fault.LoseReply != nil {
			return nil, fault.LoseReply
		}
		return reply, nil
	}
}

type call struct {
	action string
	header http.Header
	in     input
}

func callOf(r *http.Request) (call, error) {
	c := call{header: r.Header.Clone()}
	_, c.action, _ = strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	return c, errors.Join(json.NewDecoder(r.Body).Decode(&c.in), r.Body.Close())
}

// Direct answers a test: the request is not counted, and meets no fault.
func (s *Service) Direct(r *http.Request) (*http.Response, error) {
	c, err := callOf(r)
	c.header.Set("X-Amz-Date", s.Now().UTC().Format(signatureTime))
	return s.serve(c, nil), err
}

// serve answers a call that has arrived.
func (s *Service) serve(c call, refuse *Failure) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	var out any
	failure := refuse
	if signed, err := time.Parse(signatureTime, c.header.Get("X-Amz-Date")); failure == nil && (err != nil || now.Sub(signed).Abs() > signatureAge) {
		failure = &Failure{Status: 400, Code: "InvalidSignatureException", Message: "Signature expired or not yet current"}
	}
	if failure == nil {
		out, failure = s.apply(c)
	}
	status := http.StatusOK
	if failure != nil {
		status, out = failure.Status, failure
	}
	body, err := json.Marshal(out)
	if err != nil {
		panic(err) // the values came from JSON
	}
	header := http.Header{"Content-Type": {"application/x-amz-json-1.0"}}
	if !s.NoDate {
		header.Set("Date", now.UTC().Format(http.TimeFormat))
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}

type input struct {
	TableName                           string
	Key                                 Item
	UpdateExpression                    string
	ConditionExpression                 string
	ExpressionAttributeNames            map[string]string
	ExpressionAttributeValues           map[string]Value
	ReturnValues                        string
	ReturnValuesOnConditionCheckFailure string
	ConsistentRead                      bool
	FilterExpression                    string
	ProjectionExpression                string
	ExclusiveStartKey                   Item
	Item                                Item // of PutItem
}

func (s *Service) apply(c call) (out any, failure *Failure) {
	defer func() {
		if v := recover(); v != nil {
			failure = v.(*Failure)
		}
	}()
	in := c.in
	if in.TableName != s.table {
		panic(&Failure{Status: 400, Code: "ResourceNotFoundException", Message: "Cannot do operations on a non-existent table"})
	}
	if c.action == "Scan" {
		return s.scan(in), nil
	}
	if c.action == "PutItem" {
		in.Key = Item{"key": in.Item["key"]}
	}
	key := keyOf(in.Key)
	old := s.rows[key]
	switch c.action {
	case "GetItem":
		if before, ok := s.older[key]; ok && !in.ConsistentRead && s.Now().Sub(before.at) < staleFor {
			old = before.item
		}
		if old != nil {
			return map[string]any{"Item": old}, nil
		}
	case "UpdateItem":
		changed := update(in, old)
		s.rows[key] = changed
		s.older[key] = older{old, s.Now()}
		switch {
		case in.ReturnValues == "ALL_NEW":
			return map[string]any{"Attributes": changed}, nil
		case in.ReturnValues == "ALL_OLD" && old != nil:
			return map[string]any{"Attributes": old}, nil
		}
	case "PutItem":
		s.rows[key] = in.Item
	case "DeleteItem":
		delete(s.rows, key)
	default:
		panic(&Failure{Status: 400, Code: "UnknownOperationException", Message: c.action})
	}
	return map[string]any{}, nil
}

// scanPage is how many rows one Scan reads.
const scanPage = 3

// scan returns a page of a table, in the order of the keys.
func (s *Service) scan(in input) map[string]any {
	if !in.ConsistentRead {
		return map[string]any{"Items": []Item{}, "Count": 0, "ScannedCount": 0}
	}
	after := ""
	if in.ExclusiveStartKey != nil {
		after = keyOf(in.ExclusiveStartKey)
	}
	page := map[string]any{}
	var items []Item
	read := 0
	for _, key := range slices.Sorted(maps.Keys(s.rows)) {
		if key <= after {
			continue
		}
		if read == scanPage {
			page["LastEvaluatedKey"] = primaryKey(after)
			break
		}
		read, after = read+1, key
		e := &env{names: in.ExpressionAttributeNames, values: in.ExpressionAttributeValues, used: map[string]bool{}, item: s.rows[key]}
		if in.FilterExpression != "" && !e.condition(in.FilterExpression) {
			continue
		}
		shown := Item{}
		for name := range strings.SplitSeq(in.ProjectionExpression, ", ") {
			real := in.ExpressionAttributeNames[name]
			if v, ok := e.item[real]; ok {
				shown[real] = v
			}
		}
		items = append(items, shown)
	}
	page["Items"], page["Count"], page["ScannedCount"] = items, len(items), read
	return page
}

// primaryKey is the primary key of a row.
func primaryKey(key string) Item { return Item{"key": {"S": key}} }

// keyOf is the value of a primary key.
func keyOf(primary Item) string {
	key, ok := primary["key"]["S"].(string)
	if !ok || len(primary) != 1 {
		invalid("The provided key element does not match the schema")
	}
	if key == "" || len(key) > 2048 {
		invalid("One or more parameter values are not valid: the key has %d bytes", len(key))
	}
	return key
}

// update returns the row after the update. If the condition fails, nobody looks at the rest.
func update(in input, old Item) Item {
	e := &env{names: in.ExpressionAttributeNames, values: in.ExpressionAttributeValues, used: map[string]bool{}, item: old}
	if in.ConditionExpression != "" && !e.condition(in.ConditionExpression) {
		failure := &Failure{Status: 400, Code: conditionFailed, Message: "The conditional request failed"}
		if in.ReturnValuesOnConditionCheckFailure == "ALL_OLD" {
			failure.Item = old
		}
		panic(failure)
	}
	changed := e.update(in.UpdateExpression)
	if given := len(e.names) + len(e.values); len(e.used) < given {
		invalid("%d of %d names and values are unused in expressions", given-len(e.used), given)
	}
	maps.Copy(changed, in.Key)
	return changed
}
