// Package eventsource says which source an event of Lambda looks like one of, so that an adapter does not take
// the event of another source for an empty one of its own.
package eventsource

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The batches that the adapters take, as Name says them.
const (
	SQS      = "a batch of SQS"
	Kinesis  = "a batch of a Kinesis stream"
	DynamoDB = "a batch of a DynamoDB stream"
)

// names are the values of eventSource, in a record or at the top.
var names = map[string]string{
	"aws:sqs":          SQS,
	"aws:kinesis":      Kinesis,
	"aws:dynamodb":     DynamoDB,
	"SelfManagedKafka": "a batch of Kafka",
	"aws:s3":           "an event of S3",
	"aws:sns":          "an event of SNS",
	"aws:ses":          "an event of SES",
	"aws:codecommit":   "an event of CodeCommit",
}

// Read reads a batch, and refuses an event that is not of want, which is one of the constants.
func Read[Batch any](adapter string, event json.RawMessage, want string) (b Batch, err error) {
	if name := Name(event); name != want {
		return b, fmt.Errorf("%s: the event is %s; want %s; nothing was run", adapter, name, want)
	}
	err = json.Unmarshal(event, &b)
	return b, err
}

// CheckAsync refuses a batch of a known source, which its source deletes after a success, and a request, whose client
// waits for an answer. It takes other JSON, such as an input of one's own that has a field records, or is an array.
func CheckAsync(adapter string, event json.RawMessage) error {
	name := Name(event)
	if strings.HasPrefix(name, "a batch of ") || strings.HasPrefix(name, "a request") {
		return fmt.Errorf("%s: the event is %s; want one of a schedule or of another source that calls the function asynchronously; nothing was run", adapter, name)
	}
	return nil
}

// Name says what the event looks like, for an error: one of the constants, or another text that begins with "a
// batch", "a request" or "an event", for one that is sent asynchronously. It reads no more than it needs: an event that it names may still be a bad one.
func Name(event json.RawMessage) string {
	var e *struct {
		EventSource         string // of a batch of Kafka or MQ
		DeliveryStreamArn   string // of Firehose
		Records             []struct{ EventSource string }
		Source              string
		DetailType          string `json:"detail-type"`
		Event               string // of a test event of S3
		AWSLogs             any
		MethodArn, RouteArn string
		RawPath             string `json:"raw_path"`
		RequestContext      struct {
			ELB, HTTP, Identity             any
			ConnectionID, ServiceNetworkArn string
		}
	}
	err := json.Unmarshal(event, &e)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); e == nil || err != nil && (!ok || wrong.Field == "") {
		return array(event)
	}
	switch context := e.RequestContext; {
	case e.DeliveryStreamArn != "" && e.Records != nil:
		return "a batch of Firehose"
	case e.Records != nil:
		return batch(e.Records)
	case e.EventSource != "":
		return named(e.EventSource)
	case e.DetailType != "":
		return fmt.Sprintf("an event of EventBridge (%.80q)", e.Source)
	case e.Event == "s3:TestEvent":
		return "an event of S3 (a test)"
	case e.AWSLogs != nil:
		return "an event of CloudWatch Logs"
	case e.MethodArn != "" || e.RouteArn != "":
		return "a request to an authorizer of API Gateway"
	case context.ConnectionID != "":
		return "a request of a WebSocket API"
	case context.ELB != nil:
		return "a request of a load balancer"
	case context.ServiceNetworkArn != "" || e.RawPath != "":
		return "a request of VPC Lattice"
	case context.HTTP != nil:
		return "a request of an HTTP API or a function URL (payload format 2.0)"
	case context.Identity != nil:
		return "a request of API Gateway (payload format 1.0)"
	}
	return "an event of no known source, such as a direct call"
}

// array is the name of what is no JSON object. A pipe of EventBridge sends an array of records, also of a single one.
func array(event json.RawMessage) string {
	var records []struct{ EventSource string }
	if err := json.Unmarshal(event, &records); err != nil {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok {
			return "no JSON object"
		}
	}
	if len(records) == 0 || records[0].EventSource == "" {
		return "no JSON object"
	}
	return batch(records) + ", as a JSON array such as EventBridge Pipes sends"
}

func batch(records []struct{ EventSource string }) string {
	if len(records) == 0 {
		return "a batch without records"
	}
	for _, r := range records[1:] {
		if r != records[0] {
			return fmt.Sprintf("%s and %s in one", named(records[0].EventSource), named(r.EventSource))
		}
	}
	return named(records[0].EventSource)
}

func named(source string) string {
	switch name, known := names[source]; {
	case known:
		return name
	case source == "":
		return "a batch whose records name no eventSource"
	}
	if strings.HasPrefix(source, "aws:") {
		return fmt.Sprintf("a batch of %.80q", source)
	}
	return fmt.Sprintf("a batch whose eventSource is %.80q", source)
}
