package eventsource

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The events of aws-lambda-go's own tests.
func TestNameOfFiles(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/aws-lambda-go").Output()
	require.NoError(t, err)
	for file, want := range map[string]string{
		"sqs-event":                                    SQS,
		"kinesis-event":                                Kinesis,
		"kinesis-time-window-event":                    Kinesis,
		"dynamodb-event":                               DynamoDB,
		"dynamodb-time-window-event":                   DynamoDB,
		"kafka-event":                                  `a batch of "aws:kafka"`,
		"s3-event":                                     "an event of S3",
		"s3-glacier-event":                             "an event of S3",
		"sns-event":                                    "an event of SNS",
		"ses-lambda-event":                             "an event of SES",
		"code-commit-event":                            "an event of CodeCommit",
		"codebuild-state-change":                       `an event of EventBridge ("aws.codebuild")`,
		"cloudwatch-logs-event":                        "an event of CloudWatch Logs",
		"apigw-custom-auth-request-type-request":       "a request to an authorizer of API Gateway",
		"apigw-v2-custom-authorizer-v2-request":        "a request to an authorizer of API Gateway",
		"apigw-websocket-request":                      "a request of a WebSocket API",
		"apigw-request":                                "a request of API Gateway (payload format 1.0)",
		"apigw-restapi-openapi-request":                "a request of API Gateway (payload format 1.0)",
		"apigw-v2-request-no-authorizer":               "a request of an HTTP API or a function URL (payload format 2.0)",
		"lambda-urls-request":                          "a request of an HTTP API or a function URL (payload format 2.0)",
		"alb-lambda-target-request-headers-only":       "a request of a load balancer",
		"alb-lambda-target-request-multivalue-headers": "a request of a load balancer",
		"kinesis-firehose-event":                       "a batch of Firehose",
		"s3-batch-job-event-request-1.0":               "an event of no known source, such as a direct call",
		"iot-button-event":                             "an event of no known source, such as a direct call",
	} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "events", "testdata", file+".json"))
		require.NoError(t, err)
		require.Equal(t, want, Name(text), file)
	}
}

func TestName(t *testing.T) {
	for event, want := range map[string]string{
		`{"Service":"Amazon S3","Event":"s3:TestEvent","Time":"2014-10-13T15:57:02.089Z","Bucket":"bucketname"}`:                                    "an event of S3 (a test)",
		`{"eventSource":"SelfManagedKafka","records":{"t-0":[{"value":"eA=="}]}}`:                                                                   "a batch of Kafka",
		`{"raw_path":"/a","method":"GET","headers":{}}`:                                                                                             "a request of VPC Lattice",
		`{"version":"2.0","path":"/a","method":"GET","requestContext":{"serviceNetworkArn":"arn:aws:vpc-lattice:eu-west-1:1:servicenetwork/sn-1"}}`: "a request of VPC Lattice",
		`{"Records":[]}`: "a batch without records",
		`{"Records":[{"eventSource":"aws:sqs"},{"eventSource":"aws:sqs"}]}`: SQS,
		`{"Records":[{"eventSource":"aws:sqs"},{"EventSource":"aws:sns"}]}`: "a batch of SQS and an event of SNS in one",
		`{"Records":[{"eventSource":"aws:sqs"},{"messageId":"m"}]}`:         "a batch of SQS and a batch whose records name no eventSource in one",
		`{"Records":[{"eventSource":"aws:new"}]}`:                           `a batch of "aws:new"`,
		`{"Records":null}`:                      "an event of no known source, such as a direct call",
		`{"source":5,"Event":{},"account":"7"}`: "an event of no known source, such as a direct call",
		`{}`:                                    "an event of no known source, such as a direct call",
		`null`:                                  "no JSON object",
		`[]`:                                    "no JSON object",
		`"text"`:                                "no JSON object",
		`5`:                                     "no JSON object",
		``:                                      "no JSON object",
		`{"Records":[{"eventSource":"aws:sqs"}]} {}`: "no JSON object",
		// The form of EventBridge Pipes.
		` [{"messageId":"m","eventSource":"aws:sqs"}]`:                            "a batch of SQS, as a JSON array such as EventBridge Pipes sends",
		`[{"eventSource":"aws:kinesis","data":""},{"eventSource":"aws:kinesis"}]`: "a batch of a Kinesis stream, as a JSON array such as EventBridge Pipes sends",
		`[{"eventSource":"aws:dynamodb"}]`:                                        "a batch of a DynamoDB stream, as a JSON array such as EventBridge Pipes sends",
		`[{"eventSource":"aws:amq"}]`:                                             `a batch of "aws:amq", as a JSON array such as EventBridge Pipes sends`,
		`[{"eventSource":"aws:sqs"},5]`:                                           "a batch of SQS and a batch whose records name no eventSource in one, as a JSON array such as EventBridge Pipes sends",
		`[{"eventSource":"aws:sqs"}] []`:                                          "no JSON object",
		`[{"eventSource":5}]`:                                                     "no JSON object",
		`[5,"a",{"eventSource":"aws:sqs"}]`:                                       "no JSON object",
		`[{"id":"1"}]`:                                                            "no JSON object",
		`[[],null]`:                                                               "no JSON object",
	} {
		require.Equal(t, want, Name([]byte(event)), event)
	}
}

func TestCheckAsync(t *testing.T) {
	for _, event := range []string{
		`{"Records":[{"eventSource":"aws:sqs"}]}`,
		`{"Records":[{"eventSource":"aws:sqs"},{"eventSource":"aws:sns"}]}`,
		`{"deliveryStreamArn":"a","records":[{"recordId":"1","data":"eA=="}]}`, // of Firehose
		`{"eventSource":"SelfManagedKafka","records":{}}`,
		`{"rawPath":"/a","requestContext":{"http":{}}}`,
		`[{"eventSource":"aws:sqs"}]`,
	} {
		require.ErrorContains(t, CheckAsync("schedule", []byte(event)), "schedule: the event is "+Name([]byte(event))+"; want one of a schedule", event)
	}
	for _, event := range []string{
		`{"Records":[{"eventSource":"aws:s3"}]}`,
		`{"detail-type":"Scheduled Event","source":"aws.events"}`,
		`{"eventSource":"another","records":[{"n":1}]}`, `{"Records":[]}`, `[{"eventSource":"another"}]`,
		`{"deliveryStreamArn":"a","day":"2026-01-01"}`, `{"id":"1"}`, `{}`, `null`, `5`, `"text"`, `[]`, `[5]`, `["aws:sqs"]`, `[{"id":"1"}]`,
	} {
		require.NoError(t, CheckAsync("schedule", []byte(event)), event)
	}
}
