package repotest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
)

// mappingType is a source whose failed records are lost, or block what is behind
// them, unless the function's answer names them.
const mappingType = "AWS::Lambda::EventSourceMapping"

// silentBatches finds batch sources that do not say ReportBatchItemFailures: Lambda
// would then not read the answer, and delete the failed messages of a batch with the
// others. It also returns how many sources there are. A source among the Events of a
// function is refused: SAM would give the role a policy for every queue or stream.
func silentBatches(t *template.Template) (problems []string, sources int, err error) {
	for name, r := range t.Resources {
		var p struct {
			FunctionResponseTypes []string
			Events                map[string]struct{ Type string }
		}
		if r.Type != mappingType && r.Type != template.FunctionType {
			continue
		}
		if err := r.Decode(&p); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		for event, e := range p.Events {
			switch e.Type {
			case "HttpApi", "ScheduleV2", "EventBridgeRule":
			default:
				problems = append(problems, fmt.Sprintf("%s, event %s: make it a resource, %s, with permissions for its one source", name, event, mappingType))
			}
		}
		if r.Type != mappingType {
			continue
		}
		sources++
		if !slices.Equal(p.FunctionResponseTypes, []string{"ReportBatchItemFailures"}) {
			problems = append(problems, name+": add FunctionResponseTypes: [ReportBatchItemFailures], or failed messages are deleted")
		}
	}
	return problems, sources, nil
}

// timesThatDoNotFit finds times and counts that do not fit each other, or not what AWS says of them. It also returns how
// many functions and sources there are.
func timesThatDoNotFit(t *template.Template) (problems []string, looked int, err error) {
	type queue struct {
		VisibilityTimeout, MessageRetentionPeriod int // seconds
		RedrivePolicy                             struct {
			DeadLetterTargetArn string
			MaxReceiveCount     int
		}
	}
	queues := map[string]queue{} // by ARN
	for name, r := range t.Resources {
		if r.Type == "AWS::SQS::Queue" {
			var q queue
			if err := r.Decode(&q); err != nil {
				return nil, 0, fmt.Errorf("%s: %w", name, err)
			}
			queues[name+".Arn"] = q
		}
	}
	functions, err := t.Functions()
	if err != nil {
		return nil, 0, err
	}
	timeouts := map[string]int{}
	for _, f := range functions {
		looked++
		timeouts[f.ID] = f.Timeout
		var p struct {
			Events map[string]struct{ Type string }
		}
		if err := t.Resources[f.ID].Decode(&p); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", f.ID, err)
		}
		for _, e := range p.Events {
			if e.Type == "HttpApi" && f.Timeout >= 30 { // "Maximum integration timeout: 30 seconds" (API Gateway, quotas for HTTP APIs)
				problems = append(problems, fmt.Sprintf("%s: its Timeout is %d, and its HTTP API waits for 30 s", f.ID, f.Timeout))
			}
		}
		if f.Timeout < 1 || f.Timeout > 900 { // "Function timeout: 900 seconds" (Lambda quotas)
			problems = append(problems, fmt.Sprintf("%s: its Timeout is %d", f.ID, f.Timeout))
		}
	}
	for name, r := range t.Resources {
		if r.Type != mappingType {
			continue
		}
		looked++
		var m struct {
			FunctionName, EventSourceArn   string
			MaximumBatchingWindowInSeconds int
		}
		if err := r.Decode(&m); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		function, _, _ := strings.Cut(strings.Trim(m.FunctionName, "${}"), ".")
		q, ok := queues[m.EventSourceArn]
		dead, hasDead := queues[q.RedrivePolicy.DeadLetterTargetArn]
		switch timeout := timeouts[function]; {
		case !ok || timeout == 0:
			problems = append(problems, fmt.Sprintf("%s: no queue %s, or no function %s", name, m.EventSourceArn, function))
		// "at least six times the function's timeout, plus the value of MaximumBatchingWindowInSeconds" and "maxReceiveCount
		// to at least 5" (Lambda, Using Lambda with Amazon SQS, Configuring a queue)
		case q.VisibilityTimeout < 6*timeout+m.MaximumBatchingWindowInSeconds:
			problems = append(problems, fmt.Sprintf("%s: VisibilityTimeout of its queue is less than six times %d s", name, timeout))
		case q.RedrivePolicy.MaxReceiveCount < 5:
			problems = append(problems, fmt.Sprintf("%s: maxReceiveCount of its queue is less than 5", name))
		// "always set the retention period of a dead-letter queue to be longer" (SQS, dead-letter queues)
		case !hasDead || dead.MessageRetentionPeriod <= q.MessageRetentionPeriod:
			problems = append(problems, fmt.Sprintf("%s: the queue for what fails keeps messages for no longer than the queue", name))
		}
	}
	return problems, looked, nil
}

// expression is what an alarm here may watch. Metric math that takes no list,
// such as a + b, may have no value where one of its metrics has none.
var expression = regexp.MustCompile(`^(?:SUM|MAX)\(\[([\w/, ]+)\]\)$`)

// deafAlarms finds alarms that may not notice: an expression that is no list of all
// its metrics, missing data that is not harmless, and a share of a function's time that
// is not reckoned with its Timeout. It also returns how many alarms there are.
func deafAlarms(t *template.Template) (problems []string, alarms int, err error) {
	functions, err := t.Functions()
	if err != nil {
		return nil, 0, err
	}
	for name, r := range t.Resources {
		if r.Type != "AWS::CloudWatch::Alarm" {
			continue
		}
		alarms++
		var alarm struct {
			TreatMissingData string
			Metrics          []struct{ ID, Expression string }
		}
		if err := r.Decode(&alarm); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		if alarm.TreatMissingData != "notBreaching" {
			problems = append(problems, name+": set TreatMissingData to notBreaching")
		}
		metrics, watched := map[string]bool{}, []string{}
		for _, m := range alarm.Metrics {
			metrics[m.ID] = m.Expression == ""
			if found := expression.FindStringSubmatch(m.Expression); found != nil {
				watched = strings.Split(found[1], ", ")
			} else if m.Expression != "" {
				problems = append(problems, fmt.Sprintf("%s: %s: write SUM([...]) or MAX([...])", name, m.Expression))
			}
		}
		for _, term := range watched {
			id, divisor, _ := strings.Cut(term, "/")
			if !metrics[id] {
				problems = append(problems, fmt.Sprintf("%s: there is no metric %s", name, id))
			}
			delete(metrics, id)
			if divisor == "" || divisor == "60000" { // milliseconds to minutes
				continue
			}
			i := slices.IndexFunc(functions, func(f template.Function) bool { return f.ID == resourceName(id) })
			if i < 0 || divisor != strconv.Itoa(functions[i].Timeout*10) {
				problems = append(problems, fmt.Sprintf("%s: %s is not ten times the Timeout of %s", name, term, resourceName(id)))
			}
		}
		for id, unused := range metrics {
			if unused {
				problems = append(problems, fmt.Sprintf("%s: %s is not in the expression", name, id))
			}
		}
	}
	return problems, alarms, nil
}

func TestAlarmsOfLockStacks(t *testing.T) {
	for _, file := range []string{"deploy/table.yaml", "deploy/cache.yaml"} {
		parsed, err := template.Parse([]byte(read(t, file)), nil)
		require.NoError(t, err)
		problems, alarms, err := deafAlarms(parsed)
		require.NoError(t, err)
		require.Positive(t, alarms, file)
		none(t, problems)
	}
}

// resourceName is the name in the template: nightly-report is
// NightlyReportFunction.
func resourceName(function string) string {
	name := ""
	for part := range strings.SplitSeq(function, "-") {
		if part != "" {
			name += strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return name + "Function"
}

// TestTemplate: template.yaml keeps each rule, and a change for the worse is found.
func TestTemplate(t *testing.T) {
	text := read(t, "template.yaml")
	for name, c := range map[string]struct {
		rule    func(*template.Template) (problems []string, looked int, err error)
		changes map[string]string
	}{
		"batches report failures": {silentBatches, map[string]string{
			"FunctionResponseTypes: [ReportBatchItemFailures]": "Enabled: true",
			"Type: HttpApi": "Type: Kinesis",
		}},
		"times fit": {timesThatDoNotFit, map[string]string{
			"VisibilityTimeout: 180":                  "VisibilityTimeout: 179",
			"      Timeout: 30\n":                     "      Timeout: 31\n",
			"      Timeout: 29\n":                     "      Timeout: 30\n",
			"maxReceiveCount: 10":                     "maxReceiveCount: 4",
			"MessageRetentionPeriod: 864000":          "MessageRetentionPeriod: 1209600",
			"EventSourceArn: !GetAtt SettleQueue.Arn": "EventSourceArn: !GetAtt NightlyFailures.Arn",
		}},
		"alarms notice": {deafAlarms, map[string]string{
			"SUM([settlements, nights, ends])": "settlements + nights + ends",
			"SUM([withdraw, ":                  "SUM([",
			"settle/300":                       "settle/100",
			"notBreaching":                     "missing",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(text string) []string {
				parsed, err := template.Parse([]byte(text), nil)
				require.NoError(t, err)
				problems, looked, err := c.rule(parsed)
				require.NoError(t, err)
				require.Positive(t, looked)
				return problems
			}
			none(t, check(text))
			for good, bad := range c.changes {
				require.NotEmpty(t, check(strings.ReplaceAll(text, good, bad)), bad)
			}
		})
	}
	t.Run("docs/deploy.md counts the alarms, and what they cost", func(t *testing.T) {
		parsed, err := template.Parse([]byte(text), nil)
		require.NoError(t, err)
		_, alarms, err := deafAlarms(parsed)
		require.NoError(t, err)
		metrics := alarms - strings.Count(text, "      Metrics:\n") + strings.Count(text, "          MetricStat:\n") // $0.10 each
		row := fmt.Sprintf("| %d alarms (%d metrics);", alarms, metrics)
		require.Contains(t, read(t, "docs/deploy.md"), row)
		_, after, _ := strings.Cut(read(t, "docs/deploy.md"), row)
		_, prices, _ := strings.Cut(after, " | ")
		require.Equal(t, fmt.Sprintf("$%.2f", float64(metrics)/10), strings.Split(prices, ";")[0])
	})
	// A schedule whose name SAM makes has the same name in every stack, and only one
	// of an account's stacks could be deployed.
	t.Run("schedules have names of their own", func(t *testing.T) {
		require.Equal(t, strings.Count(text, "Type: ScheduleV2"), strings.Count(text, "OmitName: true"))
	})
}
