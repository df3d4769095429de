package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// batchSources are the event sources whose failed records are lost, or block
// what is behind them, unless the function's answer names them.
var batchSources = map[string]bool{"SQS": true, "DynamoDB": true, "Kinesis": true}

// silentBatches finds batch sources of a SAM template that do not say
// ReportBatchItemFailures: Lambda would then not read the answer, and delete the
// failed messages of a batch with the others.
func silentBatches(template []byte) (problems []string, sources int, err error) {
	var t struct {
		Resources map[string]struct {
			Type       string    `yaml:"Type"`
			Properties yaml.Node `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	if err := yaml.Unmarshal(template, &t); err != nil {
		return nil, 0, err
	}
	for name, r := range t.Resources {
		if r.Type != "AWS::Serverless::Function" {
			continue
		}
		var p struct {
			Events map[string]struct {
				Type       string `yaml:"Type"`
				Properties struct {
					FunctionResponseTypes []string `yaml:"FunctionResponseTypes"`
				} `yaml:"Properties"`
			} `yaml:"Events"`
		}
		if err := r.Properties.Decode(&p); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		for event, e := range p.Events {
			if !batchSources[e.Type] {
				continue
			}
			sources++
			if len(e.Properties.FunctionResponseTypes) != 1 || e.Properties.FunctionResponseTypes[0] != "ReportBatchItemFailures" {
				problems = append(problems, fmt.Sprintf("%s, event %s: add FunctionResponseTypes: [ReportBatchItemFailures], or failed messages are deleted", name, event))
			}
		}
	}
	return problems, sources, nil
}

func TestBatchesReportFailures(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
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
