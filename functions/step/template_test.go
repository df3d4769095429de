package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return text
}

// functionTimeout is what the template gives the function, in seconds.
func functionTimeout(t *testing.T) int {
	t.Helper()
	type function struct {
		Timeout int `yaml:"Timeout"`
	}
	var template struct {
		Globals struct {
			Function function `yaml:"Function"`
		} `yaml:"Globals"`
		Resources map[string]struct {
			Properties yaml.Node `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	require.NoError(t, yaml.Unmarshal(readFile(t, "../../template.yaml"), &template))
	f := template.Globals.Function
	properties := template.Resources["StepFunction"].Properties
	require.NoError(t, properties.Decode(&f))
	require.Positive(t, f.Timeout)
	return f.Timeout
}
