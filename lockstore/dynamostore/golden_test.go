package dynamostore_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
	"github.com/lambdalock/lambdalock/lockstore/internal/golden"
)

func TestGoldenRows(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		service := fakedynamo.New(table)
		return golden.Storage{
			Parks: true,
			Open: func() *lockstore.Store {
				s, err := dynamostore.New(dynamostore.ClientOver(service, fakeEndpoint, 0), table, dynamostore.Options{})
				require.NoError(t, err)
				return s.Store
			},
			Read: func() string {
				text, err := json.Marshal(service.Row(table, golden.Key))
				require.NoError(t, err)
				return string(text)
			},
			Write: func(text string) {
				var row fakedynamo.Item
				require.NoError(t, json.Unmarshal([]byte(text), &row))
				service.SetRow(table, golden.Key, row)
			},
		}
	})
}
