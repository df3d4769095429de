//go:build sam

package samtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/awsenv"
	"github.com/lambdalock/lambdalock/internal/template"
)

// needs is what a run on a deployed stack has to be given.
const needs = `It needs, in the environment:
  AWS_REGION                                  the stack's region
  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY    of a user or a role, and
  AWS_SESSION_TOKEN                           where the keys are temporary
or AWS_CONTAINER_CREDENTIALS_FULL_URI instead of the keys. Profiles are not read;
the AWS CLI, where there is one, prints a profile's keys:
  eval "$(aws configure export-credentials --format env)"
It may have to:
  cloudformation:DescribeStacks, DescribeStackResources    on the stack, and DescribeStacks on its LockStack
  lambda:InvokeFunction                                    on its functions
  execute-api:Invoke                                       on its API
  dynamodb:GetItem, UpdateItem                             on its table of locks
  dynamodb:GetItem, PutItem                                on its accounts`

// cloud is AWS in one region, or what AWS_ENDPOINT_URL names.
type cloud struct {
	region, endpoint string
	keys             aws.CredentialsProvider
	getenv           func(string) string
}

// openCloud takes region and credentials as the functions do.
func openCloud(t *testing.T, getenv func(string) string) cloud {
	c := cloud{region: awsenv.Region(getenv), endpoint: getenv("AWS_ENDPOINT_URL"), getenv: getenv}
	require.NotEmpty(t, c.region, "AWS_REGION is not set\n"+needs)
	var err error
	c.keys, err = awsenv.Credentials(getenv, &http.Client{Timeout: 2 * time.Second})
	require.NoError(t, err, needs)
	_, err = c.keys.Retrieve(context.Background())
	require.NoError(t, err, needs)
	return c
}

// url is that of a service.
func (c cloud) url(service string) string {
	if c.endpoint != "" {
		return c.endpoint
	}
	domain := "amazonaws.com"
	if strings.HasPrefix(c.region, "cn-") {
		domain += ".cn"
	}
	return "https://" + service + "." + c.region + "." + domain
}

// sign signs a request to a service.
func (c cloud) sign(ctx context.Context, service string, r *http.Request, body []byte) error {
	keys, err := c.keys.Retrieve(ctx)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	return v4.NewSigner().SignHTTP(ctx, keys, r, hex.EncodeToString(sum[:]), service, c.region, time.Now())
}

// stack is what is deployed.
type stack struct {
	locks string            // URL of its locks, if they are in no table of its own
	api   string            // its output ApiUrl
	names map[string]string // logical id -> name in AWS
}

// describe asks CloudFormation for the stack of the template.
func (c cloud) describe(t *testing.T, ctx context.Context, name string, tm *template.Template) stack {
	ask := func(action, stack string, to any) {
		query := url.Values{"Action": {action}, "Version": {"2010-05-15"}, "StackName": {stack}}.Encode()
		got, err := signer(c.sign).send(ctx, "cloudformation", c.url("cloudformation"), request{Method: http.MethodPost, Path: "/",
			Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, Body: []byte(query)})
		require.NoError(t, err, needs)
		require.Equal(t, http.StatusOK, got.status, "%s\n%s", got.body, needs)
		require.NoError(t, xml.Unmarshal(got.body, to))
	}
	find := func(name string) (parameters, outputs map[string]string) {
		var found struct {
			Status     []string                                        `xml:"DescribeStacksResult>Stacks>member>StackStatus"`
			Parameters []struct{ ParameterKey, ParameterValue string } `xml:"DescribeStacksResult>Stacks>member>Parameters>member"`
			Outputs    []struct{ OutputKey, OutputValue string }       `xml:"DescribeStacksResult>Stacks>member>Outputs>member"`
		}
		ask("DescribeStacks", name, &found)
		require.Len(t, found.Status, 1)
		require.Contains(t, []string{"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE"},
			found.Status[0], "want a stack that is deployed and at rest")
		parameters, outputs = map[string]string{}, map[string]string{}
		for _, p := range found.Parameters {
			parameters[p.ParameterKey] = p.ParameterValue
		}
		for _, o := range found.Outputs {
			outputs[o.OutputKey] = o.OutputValue
		}
		return parameters, outputs
	}
	parameters, outputs := find(name)
	s := stack{locks: parameters["LockUrl"], api: strings.TrimSuffix(outputs["ApiUrl"], "/"), names: map[string]string{}}
	if from := parameters["LockStack"]; from != "" {
		_, exported := find(from)
		s.locks = exported["Url"]
		require.NotEmpty(t, s.locks, "the stack %s, which LockStack names, has no output Url", from)
	}
	var resources struct {
		All []struct{ LogicalResourceId, PhysicalResourceId string } `xml:"DescribeStackResourcesResult>StackResources>member"`
	}
	ask("DescribeStackResources", name, &resources)
	for _, r := range resources.All {
		s.names[r.LogicalResourceId] = r.PhysicalResourceId
	}
	const question = "the stack has no %s; is it this application's, and up to date?"
	require.NotEmpty(t, s.api, question, "output ApiUrl")
	for id, r := range tm.Resources {
		if r.Type == template.FunctionType || r.Type == template.TableType {
			require.NotEmpty(t, s.names[id], question, id)
		}
	}
	return s
}

// suite is all that is tried on the stack.
func (c cloud) suite(t *testing.T, ctx context.Context, name string) *suite {
	tm := readTemplate(t)
	at, tables := c.describe(t, ctx, name, tm), tableOf(t, tm)
	on := store{accounts: c.tableURL(at.names[tables["ACCOUNTS_URL"]]), getenv: c.getenv, fresh: func(context.Context) error { return nil }}
	switch {
	case at.locks == "":
		on.locks = c.tableURL(at.names[tables["LOCK_URL"]])
	case strings.HasPrefix(at.locks, "dynamodb:"): // others may not be reachable from here
		on.locks = at.locks
	}
	s := newSuite(t, ctx, tm, on)
	require.Empty(t, s.accounts.Balance(t, nobody), "the account %s exists, and the events would withdraw from it; use a stack that nobody else is using", nobody)
	deployed := &service{lambda: c.url("lambda"), names: at.names, api: at.api, sign: c.sign}
	s.once = deployed.once
	s.serve = func(*testing.T, string) *service { return deployed }
	return s
}

// tableURL names a table for lambdalock.
func (c cloud) tableURL(table string) string {
	u := "dynamodb://" + table
	if c.endpoint != "" {
		u += "?endpoint=" + url.QueryEscape(c.endpoint)
	}
	return u
}
