package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/openapitest"
)

type object = openapitest.Object

// description looks answers up in openapi.json.
type description struct{ openapitest.Document }

var described = func() description {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		panic(err)
	}
	d, err := openapitest.Parse(string(text))
	if err != nil {
		panic(err)
	}
	return description{d}
}()

func (d description) operation() object {
	return d.At("paths", "/accounts/{id}/withdrawals", "post").(object)
}

// check tells how an answer differs from the description.
func (d description) check(answer httpapi.Response) error {
	return d.Check(d.Response(d.operation(), answer.StatusCode), answer)
}

// TestEventsAreDescribed compares the answers of the events with the document, as send does in all tests of this package.
func TestEventsAreDescribed(t *testing.T) {
	fixtures, err := eventfiles.Read("../../events", "withdraw")
	require.NoError(t, err)
	for _, f := range fixtures {
		var answer httpapi.Response
		require.NoError(t, json.Unmarshal(f.Want, &answer), f.Name)
		assert.NoError(t, described.check(answer), f.Name)
	}
}

func TestDescriptionIsRight(t *testing.T) {
	examples, err := described.Examples()
	require.NoError(t, err)
	require.Greater(t, examples, 10)
}
