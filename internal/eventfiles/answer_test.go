package eventfiles

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSameAnswer(t *testing.T) {
	for want, got := range map[string]string{
		`{"a": 1, "b": [null]}`:                      `{"b":[null],"a":1}` + "\n",
		`{"body": "{\"a\": 1, \"b\": 2}"}`:           `{"body": "{\"b\":2,\"a\":1}"}`,
		`{"body": "{\"token\": \"<text>\"}"}`:        `{"body": "{\"token\":\"ab\"}"}`,
		`["<number>", "<text>", "{\"<number>\":0}"]`: `[12, "12", "{\"<number>\":0}"]`,
	} {
		assert.NoError(t, SameAnswer([]byte(want), []byte(got)), want)
	}
	for want, got := range map[string]string{
		`{"a": 1}`:                            `{"a": 2}`,
		`{"b": null}`:                         `{}`,
		`{"n": 12345678901234567}`:            `{"n": 12345678901234568}`,
		`{"statusCode": 200}`:                 `{"errorType": "LockBusy"}`,
		`{"c": 1}`:                            `{"c": 1} {"c": 1}`,
		`{"c": 2}`:                            `{"c": 2}}`,
		`[3]`:                                 `[3]]`,
		`"Task timed out"`:                    `Task timed out`,
		`{"empty answer of": "a run"}`:        ``,
		`[1, 2]`:                              `[2, 1]`,
		`[1]`:                                 `[1, 2]`,
		`{}`:                                  `[]`,
		`[]`:                                  `{}`,
		`"a"`:                                 `"b"`,
		`"1"`:                                 `1`,
		`"<text>"`:                            `""`,
		`["<text>"]`:                          `[1]`,
		`["<number>"]`:                        `["1"]`,
		`{"d": "<number>"}`:                   `{}`,
		`{"body": "{\"n\": \"<number>\"}"}`:   `{"body": "{\"n\": \"1\"}"}`,
		`{"body": "{\"a\": 1}"}`:              `{"body": "{\"a\": 1} 2"}`,
		`{"body": "{\"token\": \"<text>\"}"}`: `{"body": ""}`,
	} {
		assert.Error(t, SameAnswer([]byte(want), []byte(got)), want)
	}
}
