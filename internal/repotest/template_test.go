package repotest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lambdalock/lambdalock/internal/template"
)

// batchSources are the event sources whose failed records are lost, or block
// what is behind them, unless the function's answer names them.
var batchSources = map[string]bool{"SQS": true, "DynamoDB": true, "Kinesis": true}

// silentBatches finds batch sources of a SAM template that do not say
// ReportBatchItemFailures: Lambda would then not read the answer, and delete the
// failed messages of a batch with the others.
func silentBatches(text []byte) (problems []string, sources int, err error) {
	t, err := template.Parse(text, nil)
	if err != nil {
		return nil, 0, err
	}
	for name, r := range t.Resources {
		if r.Type != template.FunctionType {
			continue
		}
		var p struct {
			Events map[string]struct {
				Type       string
				Properties struct{ FunctionResponseTypes []string }
			}
		}
		if err := r.Decode(&p); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		for event, e := range p.Events {
			if !batchSources[e.Type] {
				continue
			}
			sources++
			if !slices.Equal(e.Properties.FunctionResponseTypes, []string{"ReportBatchItemFailures"}) {
				problems = append(problems, fmt.Sprintf("%s, event %s: add FunctionResponseTypes: [ReportBatchItemFailures], or failed messages are deleted", name, event))
			}
		}
	}
	return problems, sources, nil
}

func templateText(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestBatchesReportFailures(t *testing.T) {
	text := templateText(t)
	problems, sources, err := silentBatches(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	if sources == 0 {
		t.Error("no batch source was found, so nothing was checked")
	}
	without := strings.ReplaceAll(string(text), "FunctionResponseTypes: [ReportBatchItemFailures]", "Enabled: true")
	if problems, _, err := silentBatches([]byte(without)); err != nil || len(problems) == 0 {
		t.Errorf("a template without it gives %v, %v; want a problem", problems, err)
	}
}

// expression is what an alarm here may watch. Metric math that takes no list,
// such as a + b, may have no value where one of its metrics has none.
var expression = regexp.MustCompile(`^(?:SUM|MAX)\(\[([\w/, ]+)\]\)$`)

// deafAlarms finds alarms of a SAM template that may not notice: an expression
// that is no list of all its metrics, missing data that is not harmless, and a
// share of a function's time that is not reckoned with its Timeout.
func deafAlarms(text []byte) (problems []string, alarms int, err error) {
	t, err := template.Parse(text, nil)
	if err != nil {
		return nil, 0, err
	}
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
			if divisor == "" {
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

func TestAlarmsNotice(t *testing.T) {
	text := templateText(t)
	problems, alarms, err := deafAlarms(text)
	if err != nil || len(problems) > 0 || alarms == 0 {
		t.Errorf("%d alarms: %q, %v", alarms, problems, err)
	}
	for old, changed := range map[string]string{
		"SUM([settlements, nights, ends])": "settlements + nights + ends",
		"SUM([withdraw, ":                  "SUM([",
		"settle/300":                       "settle/100",
		"notBreaching":                     "missing",
	} {
		without := strings.ReplaceAll(string(text), old, changed)
		if problems, _, err := deafAlarms([]byte(without)); err != nil || len(problems) == 0 {
			t.Errorf("a template with %q gives %q, %v; want a problem", changed, problems, err)
		}
	}
}

// The filters of the log group look for words that a report line has.
func TestFiltersKnowTheReports(t *testing.T) {
	template := templateText(t)
	report, err := os.ReadFile(filepath.Join("..", "..", "guard", "report.go"))
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`\$\.(?:message|outcome) = ("\w+")`).FindAllStringSubmatch(string(template), -1)
	if len(words) == 0 {
		t.Error("no filter was found, so nothing was checked")
	}
	for _, word := range words {
		if !strings.Contains(string(report), word[1]) {
			t.Errorf("a filter of template.yaml looks for %s, which guard/report.go does not log", word[1])
		}
	}
}

// A schedule whose name SAM makes has the same name in every stack, and only
// one of an account's stacks could be deployed.
func TestSchedulesHaveNamesOfTheirOwn(t *testing.T) {
	text := templateText(t)
	if schedules, own := strings.Count(string(text), "Type: ScheduleV2"), strings.Count(string(text), "OmitName: true"); schedules != own {
		t.Errorf("%d of %d schedules have OmitName: true", own, schedules)
	}
}
