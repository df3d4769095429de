package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/lambdalock/lambdalock/lockstore/awsenv"
)

// needs is what a run against a deployed stack has to be given.
const needs = `It needs, in the environment:
  AWS_REGION                                  the stack's region
  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY    of a user or a role, and
  AWS_SESSION_TOKEN                           where the keys are temporary
or AWS_CONTAINER_CREDENTIALS_FULL_URI instead of the keys. Profiles are not read;
the AWS CLI, where there is one, prints a profile's keys:
  eval "$(aws configure export-credentials --format env)"
It may have to:
  cloudformation:DescribeStacks, DescribeStackResources    on the stack
  lambda:InvokeFunction                                    on its functions
  execute-api:Invoke                                       on its API
  dynamodb:GetItem, UpdateItem                             on its two tables
  dynamodb:DeleteItem                                      on its accounts`

// cloud sends signed requests to AWS in one region. The SDK's modules for Lambda
// and CloudFormation would be two more for three requests.
type cloud struct {
	*dynamodb.Client        // has the credentials
	endpoint         string // AWS_ENDPOINT_URL, "" for AWS itself
	http             *http.Client
	getenv           func(string) string
}

// openCloud takes region and credentials as the functions do. It fails where
// there are none.
func openCloud(ctx context.Context, getenv func(string) string) (*cloud, error) {
	c := &cloud{
		endpoint: strings.TrimSuffix(getenv("AWS_ENDPOINT_URL"), "/"),
		getenv:   getenv,
		http: &http.Client{
			Timeout:       90 * time.Second, // longer than any function
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	region := awsenv.Region(getenv)
	if region == "" {
		return nil, errors.New("AWS cannot be asked: AWS_REGION is not set\n" + needs)
	}
	keys, err := awsenv.Credentials(getenv, &http.Client{Timeout: 2 * time.Second})
	if err == nil {
		_, err = keys.Retrieve(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("AWS cannot be asked: %w\n%s", err, needs)
	}
	options := dynamodb.Options{Region: region, Credentials: keys}
	if c.endpoint != "" {
		options.BaseEndpoint = &c.endpoint
	}
	c.Client = dynamodb.New(options)
	return c, nil
}

// tableURL names a table for lambdalock.
func (c *cloud) tableURL(table string) string {
	u := "dynamodb://" + table
	if c.endpoint != "" {
		u += "?endpoint=" + url.QueryEscape(c.endpoint)
	}
	return u
}

// environment hands region, credentials and the way out to another process.
func (c *cloud) environment(ctx context.Context) ([]string, error) {
	keys, err := c.Options().Credentials.Retrieve(ctx)
	if err != nil {
		return nil, err
	}
	env := []string{
		"AWS_REGION=" + c.Options().Region,
		"AWS_ACCESS_KEY_ID=" + keys.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY=" + keys.SecretAccessKey,
		"AWS_SESSION_TOKEN=" + keys.SessionToken,
	}
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value := c.getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env, nil
}

// base is the URL of a service.
func (c *cloud) base(service string) string {
	if c.endpoint != "" {
		return c.endpoint
	}
	domain := "amazonaws.com"
	if strings.HasPrefix(c.Options().Region, "cn-") {
		domain += ".cn"
	}
	return "https://" + service + "." + c.Options().Region + "." + domain
}

// refusal is an answer of AWS that is not the asked one.
type refusal struct {
	service string
	status  int
	text    string
}

func (e *refusal) Error() string {
	text := fmt.Sprintf("%s answers %d: %s", e.service, e.status, e.text)
	if e.status == http.StatusTooManyRequests {
		text += fmt.Sprintf(" (throttled; a run has up to %d invocations at once, and new accounts have a concurrency of 10)", burstSize)
	}
	return text
}

// send signs and sends a request, and returns whatever the answer is.
func (c *cloud) send(ctx context.Context, service, method, to string, header http.Header, body []byte) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(request.Header, header)
	keys, err := c.Options().Credentials.Retrieve(ctx)
	if err != nil {
		return nil, nil, err
	}
	sum := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(ctx, keys, request, hex.EncodeToString(sum[:]), service, c.Options().Region, time.Now()); err != nil {
		return nil, nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		name := map[string]string{"cloudformation": "CloudFormation", "lambda": "Lambda", "execute-api": "the API"}[service]
		return nil, nil, fmt.Errorf("%s cannot be reached; check AWS_REGION (%s) and the network: %w", name, c.Options().Region, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	return response, text, err
}

// stack is what is deployed.
type stack struct {
	name      string
	lockStore string            // its parameter LockStore
	api       string            // its output ApiUrl
	ids       map[string]string // logical id -> name in AWS
}

// describe asks CloudFormation for the stack of the template.
func (c *cloud) describe(ctx context.Context, name string, t template) (stack, error) {
	var described struct {
		Stacks []struct {
			Status     string `xml:"StackStatus"`
			Parameters []struct {
				Key   string `xml:"ParameterKey"`
				Value string `xml:"ParameterValue"`
			} `xml:"Parameters>member"`
			Outputs []struct {
				Key   string `xml:"OutputKey"`
				Value string `xml:"OutputValue"`
			} `xml:"Outputs>member"`
		} `xml:"DescribeStacksResult>Stacks>member"`
	}
	if err := c.formation(ctx, "DescribeStacks", name, &described); err != nil {
		return stack{}, err
	}
	if len(described.Stacks) != 1 {
		return stack{}, fmt.Errorf("CloudFormation describes %d stacks named %q, not 1", len(described.Stacks), name)
	}
	found := described.Stacks[0]
	switch found.Status {
	case "CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE":
	default:
		return stack{}, fmt.Errorf("the stack %q is %s; want one that is deployed and at rest", name, found.Status)
	}
	s := stack{name: name, ids: map[string]string{}}
	for _, p := range found.Parameters {
		if p.Key == "LockStore" {
			s.lockStore = p.Value
		}
	}
	for _, o := range found.Outputs {
		if o.Key == "ApiUrl" {
			s.api = strings.TrimSuffix(o.Value, "/")
		}
	}
	var resources struct {
		All []struct {
			Logical  string `xml:"LogicalResourceId"`
			Physical string `xml:"PhysicalResourceId"`
		} `xml:"DescribeStackResourcesResult>StackResources>member"`
	}
	if err := c.formation(ctx, "DescribeStackResources", name, &resources); err != nil {
		return stack{}, err
	}
	for _, r := range resources.All {
		s.ids[r.Logical] = r.Physical
	}
	return s, s.complete(t)
}

// complete says what the stack lacks of what the run uses.
func (s stack) complete(t template) error {
	lacks := func(what string) error {
		return fmt.Errorf("the stack %q has no %s; is it this application's, and up to date?", s.name, what)
	}
	if s.lockStore != "dynamodb" && s.lockStore != "elasticache" {
		return lacks("parameter LockStore that is dynamodb or elasticache")
	}
	if s.api == "" {
		return lacks("output ApiUrl")
	}
	for _, f := range t.functions {
		if s.ids[f.id] == "" {
			return lacks("function " + f.id)
		}
	}
	for _, table := range t.tables {
		if s.ids[table.id] == "" {
			return lacks("table " + table.id)
		}
	}
	return nil
}

// formation sends one request to CloudFormation, which answers in XML.
func (c *cloud) formation(ctx context.Context, action, stack string, to any) error {
	form := url.Values{"Action": {action}, "Version": {"2010-05-15"}, "StackName": {stack}}
	header := http.Header{"Content-Type": {"application/x-www-form-urlencoded; charset=utf-8"}}
	response, text, err := c.send(ctx, "cloudformation", http.MethodPost, c.base("cloudformation")+"/", header, []byte(form.Encode()))
	if err != nil {
		return err
	}
	if response.StatusCode == http.StatusOK {
		if err := xml.Unmarshal(text, to); err != nil {
			return fmt.Errorf("CloudFormation's answer to %s: %w", action, err)
		}
		return nil
	}
	var trouble struct {
		Code    string `xml:"Error>Code"`
		Message string `xml:"Error>Message"`
	}
	if xml.Unmarshal(text, &trouble) == nil && trouble.Code != "" {
		text = []byte(trouble.Code + ": " + trouble.Message)
	}
	return &refusal{"CloudFormation", response.StatusCode, fmt.Sprintf("%.300s", text)}
}

// outcome is the answer to an invocation.
type outcome struct {
	reply
	failed string // X-Amz-Function-Error, "" where the function succeeded
}

// invoke runs a function, by its name in AWS.
func (c *cloud) invoke(ctx context.Context, function string, event []byte) (outcome, error) {
	header := http.Header{"Content-Type": {"application/json"}, "X-Amz-Log-Type": {"Tail"}}
	response, text, err := c.send(ctx, "lambda", http.MethodPost,
		c.base("lambda")+"/2015-03-31/functions/"+url.PathEscape(function)+"/invocations", header, event)
	if err != nil {
		return outcome{}, err
	}
	if response.StatusCode != http.StatusOK {
		var trouble struct{ Message string }
		if json.Unmarshal(text, &trouble) == nil && trouble.Message != "" {
			text = []byte(response.Header.Get("X-Amzn-ErrorType") + ": " + trouble.Message)
		}
		return outcome{}, &refusal{"Lambda", response.StatusCode, fmt.Sprintf("%.300s", text)}
	}
	return outcome{reply{text, !began(response.Header.Get("X-Amz-Log-Result"))}, response.Header.Get("X-Amz-Function-Error")}, nil
}
