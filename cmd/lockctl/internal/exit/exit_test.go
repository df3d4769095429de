package exit

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"account/7 ä 漢 é\tx\n":   "account/7 ä 漢 é\tx\n",
		"a\u202eb":               `a\u202eb`, // right to left
		"a\u2066b":               `a\u2066b`,
		"a\u200bb\u200d\ufeff":   `a\u200bb\u200d\ufeff`,
		"a\u00a0b\u3000":         `a\u00a0b\u3000`, // spaces that are none
		"a\u3164b\ufe0f\u034f":   `a\u3164b\ufe0f\u034f`,
		"a\U000e0041":            `a\udb40\udc41`, // a tag
		"a\x1b[2J\r\x7f\u009b":   `a\u001b[2J\u000d\u007f\u009b`,
		"a\x9bb":                 `a\x9bb`,
		`a\u202eb`:               `a\u202eb`,
		"\u2028":                 `\u2028`,
		"":                       "",
		"\U0001F512 and \ufffd.": "\U0001F512 and \ufffd.",
	} {
		assert.Equal(t, want, Visible(text), "%+q", text)
	}
}

// A reader of JSON gets the text as it is.
func TestVisibleJSON(t *testing.T) {
	const key = "a\u202eb\U000e0041\u200b\u2028 \U0001F512"
	var out bytes.Buffer
	require.NoError(t, json.NewEncoder(Writer{&out}).Encode(key))
	assert.NotContains(t, out.String(), "\u202e")
	assert.NotContains(t, out.String(), "\u200b")
	var got string
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	assert.Equal(t, key, got)
}
