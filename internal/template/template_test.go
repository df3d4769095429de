package template

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	subnets = "subnet-0a1b2c3d,subnet-0a1b2c3e"
	key     = "arn:aws:kms:eu-central-1:123456789012:key/k"
	policy  = "arn:aws:iam::123456789012:policy/p"
	topic   = "arn:aws:sns:eu-central-1:123456789012:t"
)

// files are the templates: what each parameter on which something depends is tried with, and how many
// combinations the Rules let through. The others must be refused.
var files = map[string]struct {
	choices map[string][2]string
	allowed int
}{
	"template.yaml": {map[string][2]string{
		"LockStack": {"", "locks"}, "LockUrl": {"", "dynamodb://mine"}, "LockPolicy": {"", policy},
		"VpcSubnets": {"", subnets}, "VpcGroups": {"", "sg-0a1b2c3d"}, "ReservedRuns": {"0", "5"},
	}, 3 * 2 * 2},
	"deploy/table.yaml": {map[string][2]string{"KeyArn": {"", key}}, 2},
	"deploy/part.yaml":  {map[string][2]string{"KeyArn": {"", key}}, 2},
	"deploy/cache.yaml": {map[string][2]string{
		"ConnectionType": {"vpc", "public"}, "Subnets": {"", subnets}, "SecurityGroups": {"", "sg-0a1b2c3d"},
		"ReachSecrets": {"false", "true"}, "ReachStates": {"false", "true"}, "KeyArn": {"", key},
	}, (2*2 + 1 + 1) * 2},
	"examples/own-function/template.yaml": {nil, 1},
	"examples/reindex/template.yaml":      {nil, 1},
}

// metrics are those of AWS's services and the dimension by which they are told, from the pages "CloudWatch metrics" of
// their guides. An alarm of a metric that is not there has no data, and no sound.
var metrics = map[string]string{
	"AWS/Lambda Errors": "FunctionName", "AWS/Lambda Throttles": "FunctionName", "AWS/Lambda Duration": "FunctionName",
	"AWS/ApiGateway 5xx":                         "ApiId", // of an HTTP API; a REST API's is 5XXError
	"AWS/SQS ApproximateNumberOfMessagesVisible": "QueueName", "AWS/SQS ApproximateAgeOfOldestMessage": "QueueName",
	"AWS/States ExecutionsFailed": "StateMachineArn", "AWS/States ExecutionsTimedOut": "StateMachineArn",
	"AWS/DynamoDB ReadThrottleEvents": "TableName", "AWS/DynamoDB WriteThrottleEvents": "TableName",
	"AWS/ElastiCache ThrottledCmds": "clusterId", "AWS/ElastiCache BytesUsedForCache": "clusterId", // of a serverless cache
}

// checks are of one template with one combination of values.
type checks struct {
	*Template
	file     string
	values   map[string]string
	first    bool // each value is the first of its choices
	problems []string
}

func (c *checks) want(holds bool, what ...any) {
	if !holds {
		c.problems = append(c.problems, c.file+": "+fmt.Sprintln(what...))
	}
}

// props are the properties of a resource.
type props map[string]any

func (c *checks) props(id string) props {
	p, _ := c.Resources[id].Properties.(map[string]any)
	return p
}

// in is what is below these names.
func (p props) in(names ...string) any {
	var v any = map[string]any(p)
	for _, name := range names {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	return v
}

func (p props) number(names ...string) int {
	n, _ := strconv.Atoi(fmt.Sprint(p.in(names...)))
	return n
}

// eachMap calls look for each map in a value.
func eachMap(v any, look func(props)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			eachMap(item, look)
		}
	case map[string]any:
		look(v)
		for _, inner := range v {
			eachMap(inner, look)
		}
	}
}

func list(v any) []any {
	if all, is := v.([]any); is {
		return all
	}
	return []any{v}
}

func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// kept looks at what keeps locks or accounts: kept.json is the record of logical ids, of policies, and of the properties
// that may not change. Change it by hand, and only after docs/deploy.md, "Changes that lose locks".
func (c *checks) kept(record map[string]Resource) {
	found := map[string]Resource{}
	for id, r := range c.Resources {
		if r.Type != TableType && r.Type != "AWS::ElastiCache::ServerlessCache" {
			continue
		}
		fixed := maps.Clone(c.props(id))
		for _, name := range []string{"BillingMode", "PointInTimeRecoverySpecification", "SSESpecification", "Description", "MajorEngineVersion", "SecurityGroupIds", "UserGroupId"} {
			delete(fixed, name)
		}
		if r.Properties = map[string]any(fixed); id == "Cache" && !c.first { // some of it are parameters
			r = record[id]
		}
		found[id] = r
	}
	c.want(text(found) == text(record), "what keeps locks or accounts has changed:", text(found), "but the record says", text(record))
}

// functions: sources invoke the alias, a function has what its parameters say, and what is for it by name.
func (c *checks) functions() {
	ids := c.ids(FunctionType)
	refers := regexp.MustCompile(`\b(?:` + strings.Join(ids, "|") + `)\b(\.\w+)?(":)?`)
	where, url := "UseLocks", "dynamodb://LockTable"
	if c.values["LockStack"] != "" {
		where, url = "${import locks-UsePolicy}", "${import locks-Url}"
	} else if c.values["LockUrl"] != "" {
		where, url = policy, "dynamodb://mine"
	}
	for id, r := range c.Resources {
		if r.Type == FunctionType || r.Type == "AWS::CloudWatch::Alarm" || r.Type == "AWS::Logs::MetricFilter" {
			continue
		}
		for _, found := range refers.FindAllStringSubmatch(text(r.Properties), -1) {
			c.want(found[1] == ".Alias" || found[2] != "", id, "is for", found[0], "and not for its alias")
		}
	}
	c.want(c.props("Api").in("Auth", "DefaultAuthorizer") == "AWS_IAM", "everybody may call the API")
	c.want(fmt.Sprint(c.props("PayoutStateMachine").in("Logging", "IncludeExecutionData")) == "false", "the log has task tokens")
	for _, id := range ids {
		p := c.props(id)
		var names []any
		for _, policy := range list(p["Policies"]) {
			if name, is := policy.(string); is {
				names = append(names, name)
			}
		}
		c.want(slices.Equal(names, []any{where, "NoNetwork"}), id, names)
		c.want(p.in("Environment", "Variables", "LOCK_URL") == url, id, p["Environment"])
		c.want((p["VpcConfig"] != nil) == (c.values["VpcSubnets"] != ""), id, "VpcConfig")
		c.want((p["ReservedConcurrentExecutions"] != nil) == (id == "LocksFunction" && c.values["ReservedRuns"] != "0"), id, "ReservedConcurrentExecutions")
		c.want(p["AutoPublishAlias"] == "live", id, "has no alias")
		c.want(slices.Equal(list(p.in("DeploymentPreference", "Alarms")), []any{"ErrorsAlarm", "LockLostAlarm"}), id, "goes on when alarms go off")
		c.want(p.in("DeploymentPreference", "Enabled") == nil, id, "is deployed without alarms, as deploy/README.md has it for a repair")
	}
	if c.first {
		c.versions(ids)
		c.url(ids)
	}
	if c.values["ReservedRuns"] == "0" { // a request may wait for half of the function's time
		rate, _ := strconv.Atoi(c.Template.values["ApiRate"])
		runs := rate * c.props("LocksFunction").number("Timeout") / 2
		c.want(runs <= 300, runs, "runs of the lock service may wait at once, of the 1,000 that an account has")
	}
}

// others are other values than the defaults, which the Rules allow, for what a VersionDescription may name.
var others = map[string]map[string]string{
	"LockStack": {"LockStack": "other"}, "LockUrl": {"LockUrl": "redis://x", "LockPolicy": policy}, "LockTtl": {"LockTtl": "30s"},
	"LockWait": {"LockWait": "1s"}, "Revision": {"Revision": "2"}, "VpcSubnets": {"VpcSubnets": subnets, "VpcGroups": "sg-0a1b2c3d"},
}

// versions: SAM makes a new version for another VersionDescription, and not for another value of a parameter, which
// would then not reach the alias. Lambda refuses a new version of a function whose code and configuration are
// those of the last one, and the description is no part of them. So what changes the description changes both.
func (c *checks) versions(ids []string) {
	for _, name := range slices.Sorted(maps.Keys(others)) {
		changed := checks{Template: c.source.with(others[name])}
		c.want(!changed.Refused, "the Rules refuse", others[name])
		for _, id := range ids {
			before, after := c.props(id), changed.props(id)
			c.want(after["VersionDescription"] != before["VersionDescription"], id, "has no new version for another", name, "so the value does not reach the alias")
			c.want(text([]any{after["Environment"], after["VpcConfig"]}) != text([]any{before["Environment"], before["VpcConfig"]}),
				id, "is the same with another", name, "so its new version is refused")
		}
	}
	for id, r := range c.source.Resources {
		properties, _ := r.Properties.v.(map[string]any)
		for _, found := range named.FindAllStringSubmatch(text(properties["VersionDescription"]), -1) {
			c.want(others[found[1]] != nil, id, "has a VersionDescription with", found[1], "of which nobody knows whether it changes the function")
		}
	}
}

// policies: no statement allows all actions or, but for the logs of the state machine, everything. No role has a policy of
// AWS's, which are for every resource of an account: SAM adds such a policy for a queue or a stream among a function's
// Events, and none for a source that is here.
func (c *checks) policies() {
	for id, r := range c.Resources {
		p := c.props(id)
		if r.Type == FunctionType || r.Type == "AWS::Serverless::StateMachine" {
			c.want(p["Role"] == nil && p["AssumeRolePolicyDocument"] == nil, id, "has a role that SAM does not make")
			for _, policy := range list(p["Policies"]) {
				if name, is := policy.(string); is {
					c.want(c.Resources[name].Type == "AWS::IAM::ManagedPolicy" || name == c.values["LockPolicy"] || strings.HasPrefix(name, "${import "), id, "has", name)
				}
			}
			events, _ := p["Events"].(map[string]any)
			for name := range events {
				kind := props(events).in(name, "Type")
				c.want(kind == "HttpApi" || kind == "ScheduleV2" || kind == "EventBridgeRule", id, "has a source", kind)
				c.want(kind != "ScheduleV2" || props(events).in(name, "Properties", "OmitName") == true, id, "a schedule whose name SAM makes has one name in all stacks, of which an account could deploy one")
			}
		} else if !strings.HasPrefix(r.Type, "AWS::IAM::") {
			// The principal is a whole service of AWS, or everybody: the condition says who may pass.
			needs := map[string][]string{"AWS::SQS::QueuePolicy": {"aws:SourceArn"}, "AWS::EC2::VPCEndpoint": {"aws:PrincipalAccount", "aws:ResourceAccount"}}
			eachMap(r.Properties, func(s props) {
				for _, name := range needs[r.Type] {
					c.want(s["Effect"] != "Allow" || strings.Contains(text(s["Condition"]), name), id, "lets in whoever comes, without", name)
				}
			})
			continue
		}
		eachMap(r.Properties, func(s props) {
			if all, has := s["Statement"]; has {
				c.want(len(list(all)) > 0 && all != nil, id, "has a policy without a statement, which IAM refuses")
			}
			c.want(s["Effect"] != "Deny" || strings.Contains(text(s["Condition"]), "lambda:SourceFunctionArn"), id, "denies something to Lambda, too")
			if s["Effect"] == "Allow" {
				everything := slices.Contains(list(s["Resource"]), any("*"))
				c.want(s["Action"] != nil && s["Resource"] != nil, id, "allows all but something", s)
				for _, action := range list(s["Action"]) {
					c.want(!strings.Contains(fmt.Sprint(action), "*") && (!everything || strings.HasPrefix(fmt.Sprint(action), "logs:")), id, s)
				}
			}
		})
	}
}

// logs end, and so does what a function writes to a group.
func (c *checks) logs() {
	for id, r := range c.Resources {
		p := c.props(id)
		c.want(r.Type != "AWS::Logs::LogGroup" || p.number("RetentionInDays") > 0, id, "keeps its lines for ever")
		group, _ := p.in("LoggingConfig", "LogGroup").(string)
		c.want(r.Type != FunctionType || c.Resources[group].Type == "AWS::Logs::LogGroup", id, "logs to a group of its own, which keeps its lines for ever")
	}
}

// times and counts fit each other, and what AWS says of them.
func (c *checks) times() {
	for id, r := range c.Resources {
		p := c.props(id)
		if events := text(p["Events"]); r.Type == FunctionType && strings.Contains(events, `"HttpApi"`) {
			c.want(p.number("Timeout") < 30, id, "has more time than an HTTP API waits, 30 s") // API Gateway, quotas for HTTP APIs
		}
		c.want(r.Type != FunctionType || p["EventInvokeConfig"] == nil || p.number("EventInvokeConfig", "MaximumRetryAttempts") == 2, id, "has no try after the lease of one that crashed")
		if r.Type != "AWS::Lambda::EventSourceMapping" {
			continue
		}
		c.want(text(p["FunctionResponseTypes"]) == `["ReportBatchItemFailures"]`, id, "deletes the failed messages of a batch with the others")
		function := c.props(strings.TrimSuffix(fmt.Sprint(p["FunctionName"]), ".Alias"))
		queue := c.props(strings.TrimSuffix(fmt.Sprint(p["EventSourceArn"]), ".Arn"))
		dead := c.props(strings.TrimSuffix(fmt.Sprint(queue.in("RedrivePolicy", "deadLetterTargetArn")), ".Arn"))
		c.want(dead != nil, id, "reads a queue without one for what fails")
		// "at least six times the function's timeout, plus the value of MaximumBatchingWindowInSeconds" and "maxReceiveCount
		// to at least 5" (Lambda, Using Lambda with Amazon SQS, Configuring a queue)
		c.want(queue.number("VisibilityTimeout") >= 6*function.number("Timeout")+p.number("MaximumBatchingWindowInSeconds"), id, "VisibilityTimeout", queue)
		c.want(queue.number("RedrivePolicy", "maxReceiveCount") >= 5, id, "maxReceiveCount", queue)
		// "always set the retention period of a dead-letter queue to be longer" (SQS, dead-letter queues)
		c.want(dead.number("MessageRetentionPeriod") > queue.number("MessageRetentionPeriod"), id, "MessageRetentionPeriod", queue, dead)
	}
}

var lists = regexp.MustCompile(`^(?:SUM|MAX)\(\[([\w/, ]+)\]\)$`)

// alarms: each notices, and tells the topic. Its expression is a list of all its metrics, because metric math that takes no
// list, such as a + b, has no value where one of them has none; missing data is harmless; and a share of a function's time is
// reckoned with its Timeout. Somebody makes what it watches, nothing is watched twice in place of something else, and each
// metric filter has an alarm.
func (c *checks) alarms() {
	filters, watched := map[string]bool{}, map[string]bool{}
	for _, id := range c.ids("AWS::Logs::MetricFilter") {
		for _, to := range list(c.props(id)["MetricTransformations"]) {
			m, _ := to.(map[string]any)
			filters[fmt.Sprint(m["MetricNamespace"], " ", m["MetricName"])] = true
		}
	}
	for _, id := range c.ids("AWS::CloudWatch::Alarm") {
		p := c.props(id)
		c.want(p["TreatMissingData"] == "notBreaching", id, "TreatMissingData")
		c.want(slices.Equal(list(p["AlarmActions"]), []any{topic}), id, "tells nobody")
		c.want(p["ComparisonOperator"] == "GreaterThanThreshold", id, "goes off when all is well")
		own := map[string]bool{}
		eachMap(map[string]any(p), func(m props) {
			for _, how := range []any{m["Statistic"], m["Stat"]} {
				c.want(how == nil || slices.Contains([]any{"Sum", "Maximum", "p99"}, how), id, "takes", how)
			}
			if m["MetricName"] == nil {
				return
			}
			name := fmt.Sprint(m["Namespace"], " ", m["MetricName"])
			watched[name] = true
			full := name + text(m["Dimensions"])
			c.want(!own[full], id, "watches twice", full)
			own[full] = true
			dimension, _ := list(m["Dimensions"])[0].(map[string]any)
			c.want(filters[name] || metrics[name] != "" && metrics[name] == dimension["Name"], id, "nobody makes the metric", name)
		})
		if p["Metrics"] == nil {
			continue
		}
		var has, listed []string
		for _, metric := range list(p["Metrics"]) {
			m, _ := metric.(map[string]any)
			if m["Expression"] == nil {
				has = append(has, fmt.Sprint(m["Id"]))
				continue
			}
			found := lists.FindStringSubmatch(fmt.Sprint(m["Expression"]))
			c.want(found != nil, id, m)
			for term := range strings.SplitSeq(strings.Join(found[min(1, len(found)):], ""), ", ") {
				name, divisor, _ := strings.Cut(term, "/")
				listed = append(listed, name)
				c.want(name != "held" || divisor == "60000", id, "compares milliseconds with minutes")
				if divisor != "" && divisor != "60000" { // milliseconds to minutes
					function := strings.ToUpper(name[:1]) + name[1:] + "Function"
					c.want(divisor == fmt.Sprint(10*c.props(function).number("Timeout")), id, name, "is not ten times its Timeout")
				}
			}
		}
		slices.Sort(has)
		slices.Sort(listed)
		c.want(slices.Equal(has, listed), id, "watches", listed)
	}
	for name := range filters {
		c.want(watched[name], "no alarm watches", name)
	}
}

// prefix: no part of a table has another's rows. functions/internal/functest, TestPoliciesOfOtherLocks, has the rest of deploy/part.yaml.
func (c *checks) prefix() {
	pattern := regexp.MustCompile("^(?:" + c.source.Parameters["Prefix"].AllowedPattern + ")$")
	for prefix, good := range map[string]bool{"shop/": true, "shop-2/": true, "shop": false, "/": false, "*/": false, "sho?/": false, "a/b/": false, "${aws:username}/": false, "": false} {
		c.want(pattern.MatchString(prefix) == good, "the prefix", prefix, "is not", good)
	}
}

// stores are the packages of lockstore whose opener takes a scheme.
var stores = map[string]string{
	"dynamodb": "dynamostore", "redis": "redisstore", "rediss": "redisstore", "valkey": "redisstore", "valkeys": "redisstore", "elasticache": "elasticache",
	"zookeeper": "zkstore", "memory": "memstore", "datastore": "datastore", "cosmos": "cosmosstore", "postgres": "sqlstore", "http": "none",
}

// url: LockUrl takes the URLs that each function can open: it is one URL for all of them.
func (c *checks) url(ids []string) {
	pattern := regexp.MustCompile("^(?:" + c.source.Parameters["LockUrl"].AllowedPattern + ")$")
	c.want(pattern.MatchString(""), "LockUrl has to be set")
	for scheme, store := range stores {
		linked := true
		for _, id := range ids {
			main, err := os.ReadFile(fmt.Sprint("../../", c.props(id)["CodeUri"], "/main.go"))
			c.want(err == nil, err)
			linked = linked && strings.Contains(string(main), store+".Opener")
		}
		c.want(pattern.MatchString(scheme+"://x") == linked, "LockUrl takes", scheme, "is not", linked)
	}
}

// check looks at a template with all combinations of its parameters.
func check(t *testing.T, file, text string, record map[string]Resource) (problems []string) {
	var s source
	require.NoError(t, yaml.Unmarshal([]byte(text), &s))
	choices, allowed := files[file].choices, 0
	names := slices.Sorted(maps.Keys(choices))
	for n := range 1 << len(names) {
		values := map[string]string{"AlarmTopic": topic} // deploy/ has no alarm without it
		for i, name := range names {
			values[name] = choices[name][n>>i&1]
		}
		c := &checks{Template: s.with(values), file: file, values: values, first: n == 0}
		if c.Refused {
			continue
		}
		allowed++
		c.kept(record)
		c.policies()
		c.logs()
		c.times()
		c.alarms()
		switch file {
		case "template.yaml":
			c.functions()
		case "deploy/part.yaml":
			c.prefix()
		case "deploy/cache.yaml":
			for name, url := range c.Exports {
				c.want(strings.HasSuffix(name, "-OperateUrl") == strings.HasPrefix(url, "elasticache://lambdalock-operator@"), name, "is", url)
			}
		}
		problems = append(problems, c.problems...)
	}
	if allowed != files[file].allowed {
		problems = append(problems, fmt.Sprint(file, ": the Rules allow ", allowed, " combinations of parameters, not ", files[file].allowed))
	}
	return problems
}

// TestTemplates looks at what the templates say together; make lint-template has SAM translate them, and looks at each
// resource. Then it looks whether changes are found: the file, a text, and what stands there instead.
func TestTemplates(t *testing.T) {
	var kept map[string]map[string]Resource
	record, err := os.ReadFile("kept.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(record, &kept))
	texts := map[string]string{}
	for file := range files {
		text, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		texts[file] = string(text)
		require.Empty(t, check(t, file, texts[file], kept[file]))
	}
	for _, planted := range [][3]string{
		{"template.yaml", "  LockTable:\n    Type", "  Locks:\n    Type"},
		{"template.yaml", "    DeletionPolicy: Retain\n", "    DeletionPolicy: Delete\n"},
		{"template.yaml", "        - AttributeName: account\n          KeyType", "        - AttributeName: id\n          KeyType"},
		{"template.yaml", "        SfnlockFunction: !Ref SfnlockFunction.Alias", "        SfnlockFunction: !GetAtt SfnlockFunction.Arn"},
		{"template.yaml", "    AutoPublishAlias: live\n    DeploymentPreference:\n      Type: !Ref Deployment\n      Alarms: [!Ref ErrorsAlarm, !Ref LockLostAlarm]\n", ""},
		{"template.yaml", "    DeploymentPreference:\n", "    DeploymentPreference:\n      Enabled: false\n"},
		{"template.yaml", "[!Ref ErrorsAlarm, !Ref LockLostAlarm]", "[!Ref ErrorsAlarm, !Ref ThrottlesAlarm]"},
		{"template.yaml", "      VersionDescription: !Sub ${LockStack}", "      VersionDescription: !Sub ${LockTtl}"},
		{"template.yaml", "        REVISION: !Ref Revision\n", ""},
		{"template.yaml", "${Revision} ${VpcSubnets}", "${Revision} ${VpcSubnets} ${ApiRate}"},
		{"template.yaml", "|elasticache)://", "|elasticache|zookeeper)://"},
		{"template.yaml", "rediss?|", "redis|"},
		{"template.yaml", "        - !Ref NoNetwork\n", ""},
		{"template.yaml", "Action: [dynamodb:GetItem", "Action: [dynamodb:*"},
		// as SAM has it for an event: AWS's policy for every queue
		{"template.yaml", "      Timeout: 30\n", "      Timeout: 30\n      Events: {More: {Type: SQS, Properties: {Queue: !GetAtt SettleQueue.Arn}}}\n"},
		{"template.yaml", "      Description: A job on the accounts, once at a time for each event\n", "      Description: x\n      AssumeRolePolicyDocument: {Statement: [{Effect: Allow, Action: sts:AssumeRole, Principal: {Service: [ec2.amazonaws.com]}}]}\n"},
		{"template.yaml", "              Action: dynamodb:UpdateItem\n", "              NotAction: iam:PassRole\n"},
		{"template.yaml", "        AssertDescription: \"LockUrl is set but LockPolicy is not\"", "        AssertDescription: x\n      - Assert: !Equals [!Ref LockUrl, \"\"]\n        AssertDescription: x"},
		{"deploy/table.yaml", "    Type: AWS::DynamoDB::Table\n", "    Type: AWS::DynamoDB::Table\n    Condition: HasKey\n"},
		{"template.yaml", "    Default: 20\n", "    Default: 50\n"},
		{"template.yaml", "FunctionResponseTypes: [ReportBatchItemFailures]", "Enabled: true"},
		{"template.yaml", "VisibilityTimeout: 180", "VisibilityTimeout: 179"},
		{"template.yaml", "      Timeout: 29\n", "      Timeout: 30\n"},
		{"template.yaml", "EventSourceArn: !GetAtt SettleQueue.Arn", "EventSourceArn: !GetAtt NightlyFailures.Arn"},
		{"template.yaml", "SUM([settlements, nights, ends])", "settlements + nights + ends"},
		{"template.yaml", "settle/300", "settle/100"},
		{"template.yaml", "notBreaching", "missing"},
		{"deploy/table.yaml", "      AlarmActions: [!Ref AlarmTopic]\n", ""},
		{"deploy/table.yaml", "MetricName: ReadThrottleEvents", "MetricName: WriteThrottleEvents"},
		{"template.yaml", "MetricName: LockDoubt\n      Statistic", "MetricName: LockDoubts\n      Statistic"},
		{"template.yaml", "MetricName: ExecutionsTimedOut", "MetricName: ExecutionTimedOut"},
		{"template.yaml", "- MetricNamespace: !Ref AWS::StackName\n", "- MetricNamespace: locks\n"},
		{"template.yaml", "      LogGroup: !Ref Logs\n", ""},
		{"template.yaml", "        DefaultAuthorizer: AWS_IAM\n", ""},
		{"template.yaml", "IncludeExecutionData: false", "IncludeExecutionData: true"},
		{"template.yaml", "crashed.\n        MaximumRetryAttempts: 2", "crashed.\n        MaximumRetryAttempts: 0"},
		{"template.yaml", "            Condition:\n              ArnEquals:\n                aws:SourceArn: !GetAtt SfnlockFunctionEnded.Arn # the rule that SAM makes\n", ""},
		{"template.yaml", "            Condition: # a call of a function's code, not of Lambda for it\n              ArnLike:\n                lambda:SourceFunctionArn: !Sub arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:function:*\n", ""},
		{"template.yaml", "ComparisonOperator: GreaterThanThreshold\n      Threshold: 3600", "ComparisonOperator: LessThanThreshold\n      Threshold: 3600"},
		{"template.yaml", "MAX([held/60000])", "MAX([held])"},
		{"template.yaml", "Statistic: Maximum", "Statistic: SampleCount"},
		{"deploy/cache.yaml", "                aws:PrincipalAccount: !Ref AWS::AccountId\n", ""},
		{"deploy/cache.yaml", "Value: !Sub elasticache://${Name}-operator@", "Value: !Sub elasticache://${Name}@"},
		{"deploy/part.yaml", "[a-z0-9][a-z0-9._-]*/", "[a-z0-9*][a-z0-9._-]*/"},
		{"deploy/cache.yaml", "ServerlessCacheName: !Sub ${Name}-locks", "ServerlessCacheName: !Ref Name"},
		{"deploy/cache.yaml", "      UserGroupId: !Ref UserGroup\n", "      UserGroupId: !Ref UserGroup\n      CacheUsageLimits: {DataStorage: {Maximum: 1, Unit: GB}}\n"},
		{"deploy/cache.yaml", "RuleCondition: !Equals [!Ref ConnectionType, public]", "RuleCondition: !Equals [!Ref ConnectionType, private]"},
	} {
		file := planted[0]
		require.True(t, strings.Contains(texts[file], planted[1]), "%s has no %q", file, planted[1]) // Contains would print the whole file
		require.NotEmpty(t, check(t, file, strings.ReplaceAll(texts[file], planted[1], planted[2]), kept[file]), "%q was not found", planted[2])
	}
}
