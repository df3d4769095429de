// Package fakedynamo is DynamoDB's UpdateItem, GetItem and Scan
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
	"fmt"
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
	// Now is the service's clock; nil means time.Now.
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
	Status        int
	Code, Message string
	item          Item
	Reasons       []any // why a transaction was cancelled, one for each item
}

const (
	// signatureAge is how far the time of a signature may be from the service's time.
	signatureAge = 5 * time.Minute

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
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := r.Body.Close(); err != nil {
		return nil, err
	}
	c := call{header: r.Header.Clone(), body: body}
	_, c.action, _ = strings.Cut(r.Header.Get("X-Amz-Target"), ".")

	var fault Fault
	s.mu.Lock()
	s.requests++
	s.actions[c.action]++
	request := Request{N: s.requests, Action: c.action}
	s.mu.Unlock()
	if s.Fault != nil {
		var in struct{ ConsistentRead bool }
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, err
		}
		request.Weak = c.action == "GetItem" && !in.ConsistentRead
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
	body   []byte
}

// serve answers a call that has arrived.
func (s *Service) serve(c call, refuse *Failure) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	failure := refuse
	var out any
	if failure == nil {
		failure = checkSignatureTime(c.header, now)
	}
	if failure == nil {
		out, failure = s.apply(c)
	}
	status := http.StatusOK
	if failure != nil {
		status = failure.Status
		reply := map[string]any{"__type": "com.amazonaws.dynamodb.v20120810#" + failure.Code, "message": failure.Message}
		if failure.item != nil {
			reply["Item"] = failure.item
		}
		if failure.Reasons != nil {
			reply["CancellationReasons"] = failure.Reasons
		}
		out = reply
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

// checkSignatureTime refuses old signatures, as the real service does. It does not check
// the signature itself.
func checkSignatureTime(header http.Header, now time.Time) *Failure {
	signed, err := time.Parse("20060102T150405Z", header.Get("X-Amz-Date"))
	if err != nil || now.Sub(signed).Abs() > signatureAge {
		return &Failure{Status: 400, Code: "InvalidSignatureException", Message: "Signature expired or not yet current"}
	}
	return nil
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
	FilterExpression                    *string
	ProjectionExpression                string
	ExclusiveStartKey                   Item
}

func (s *Service) apply(c call) (any, *Failure) {
	var in input
	if err := json.Unmarshal(c.body, &in); err != nil {
		return nil, validation("the request cannot be read: %v", err)
	}
	if c.action == "Scan" {
		return s.scan(in)
	}
	key, failure := s.find(in)
	if failure != nil {
		return nil, failure
	}
	old := s.rows[key]
	switch c.action {
	case "GetItem":
		if before, ok := s.older[key]; ok && !in.ConsistentRead && s.Now().Sub(before.at) < staleFor {
			old = before.item
		}
		if old == nil {
			return map[string]any{}, nil
		}
		return map[string]any{"Item": old}, nil
	case "UpdateItem":
		changed, failure := update(in, old)
		if failure != nil {
			return nil, failure
		}
		s.rows[key] = changed
		s.older[key] = older{old, s.Now()}
		switch {
		case in.ReturnValues == "ALL_NEW":
			return map[string]any{"Attributes": changed}, nil
		case in.ReturnValues == "ALL_OLD" && old != nil:
			return map[string]any{"Attributes": old}, nil
		}
		return map[string]any{}, nil
	default:
		return nil, &Failure{Status: 400, Code: "UnknownOperationException", Message: c.action}
	}
}

// scanPage is how many rows one Scan reads.
const scanPage = 3

// scan returns a page of a table, in the order of the keys.
func (s *Service) scan(in input) (any, *Failure) {
	if !in.ConsistentRead {
		return map[string]any{"Items": []Item{}, "Count": 0, "ScannedCount": 0}, nil
	}
	after := ""
	if in.ExclusiveStartKey != nil {
		in.Key = in.ExclusiveStartKey
		var failure *Failure
		if after, failure = s.find(in); failure != nil {
			return nil, failure
		}
	}
	var items []Item
	read := 0
	for _, key := range slices.Sorted(maps.Keys(s.rows)) {
		if key <= after {
			continue
		}
		if read == scanPage {
			return map[string]any{"Items": items, "Count": len(items), "ScannedCount": read, "LastEvaluatedKey": primaryKey(after)}, nil
		}
		read, after = read+1, key
		e := &env{names: in.ExpressionAttributeNames, values: in.ExpressionAttributeValues, used: map[string]bool{}, item: maps.Clone(s.rows[key])}
		maps.Copy(e.item, primaryKey(key))
		if in.FilterExpression != nil {
			holds, err := e.condition(*in.FilterExpression)
			if err != nil {
				return nil, validation("Invalid FilterExpression: %v", err)
			}
			if !holds {
				continue
			}
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
	return map[string]any{"Items": items, "Count": len(items), "ScannedCount": read}, nil
}

// primaryKey is the primary key of a row.
func primaryKey(key string) Item { return Item{"key": {"S": key}} }

// find returns the key that a request names.
func (s *Service) find(in input) (string, *Failure) {
	if in.TableName != s.table {
		return "", &Failure{Status: 400, Code: "ResourceNotFoundException", Message: "Cannot do operations on a non-existent table"}
	}
	key, ok := in.Key["key"]["S"].(string)
	if !ok || len(in.Key) != 1 {
		return "", validation("The provided key element does not match the schema")
	}
	if key == "" || len(key) > 2048 {
		return "", validation("One or more parameter values are not valid: the key has %d bytes", len(key))
	}
	return key, nil
}

// update returns the row after the update, or the reason of the refusal.
func update(in input, old Item) (Item, *Failure) {
	e := &env{keys: in.Key, names: in.ExpressionAttributeNames, values: in.ExpressionAttributeValues, used: map[string]bool{}, item: old}
	holds := true
	if in.ConditionExpression != "" {
		var err error
		if holds, err = e.condition(in.ConditionExpression); err != nil {
			return nil, validation("Invalid ConditionExpression: %v", err)
		}
	}
	changed, err := e.update(in.UpdateExpression)
	if err != nil {
		return nil, validation("Invalid UpdateExpression: %v", err)
	}
	for name := range in.ExpressionAttributeNames {
		if !e.used[name] {
			return nil, validation("Value provided in ExpressionAttributeNames unused in expressions: %s", name)
		}
	}
	for name := range in.ExpressionAttributeValues {
		if !e.used[name] {
			return nil, validation("Value provided in ExpressionAttributeValues unused in expressions: %s", name)
		}
	}
	if !holds {
		failure := &Failure{Status: 400, Code: conditionFailed, Message: "The conditional request failed"}
		if in.ReturnValuesOnConditionCheckFailure == "ALL_OLD" {
			failure.item = old
		}
		return nil, failure
	}
	if e.late != nil {
		return nil, validation("%v", e.late)
	}
	maps.Copy(changed, in.Key)
	return changed, nil
}

func validation(format string, args ...any) *Failure {
	return &Failure{Status: 400, Code: "ValidationException", Message: fmt.Sprintf(format, args...)}
}
