package httpanswer

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// spellings are the cases in which a handler, a store or an operator may write the name of a header.
func spellings(name string) []string {
	mixed := []byte(strings.ToLower(name))
	for i := 1; i < len(mixed); i += 2 {
		mixed[i] = strings.ToUpper(string(mixed[i]))[0]
	}
	return []string{name, strings.ToLower(name), strings.ToUpper(name), string(mixed)}
}

// What is not sent again is in none of its spellings, and what is has all its values under one name.
func TestRepeatableInEachCase(t *testing.T) {
	for _, name := range []string{
		"Set-Cookie", "Set-Cookie2", // RFC 6265, RFC 2965
		"Connection", "Proxy-Connection", "Keep-Alive", "TE", "Transfer-Encoding", "Upgrade", // RFC 9110, 7.6.1
		"Proxy-Authenticate", "Proxy-Authorization", // RFC 9110, 11.7
		"Trailer", "Content-Length", "Date", "Age",
	} {
		for _, spelled := range spellings(name) {
			header := http.Header{spelled: {"1", "2"}, "X-Mine": {"3"}}
			require.Equal(t, http.Header{"X-Mine": {"3"}}, Repeatable(header), spelled)
			require.Equal(t, http.Header{spelled: {"1", "2"}, "X-Mine": {"3"}}, header, "the handler's own is not changed")
		}
	}
	require.Empty(t, Repeatable(http.Header{http.TrailerPrefix + "Sum": {"1"}}))
	for _, name := range []string{"Content-Type", "Location", "Retry-After", "Etag", "Cache-Control", "Vary", "Content-Encoding", "Access-Control-Allow-Origin", "Www-Authenticate", "Warning"} {
		header := http.Header{}
		for _, spelled := range spellings(name) {
			header[spelled] = []string{"1", "2"}
			require.Equal(t, http.Header{name: {"1", "2"}}, Repeatable(http.Header{spelled: {"1", "2"}}), spelled)
		}
		require.Len(t, Repeatable(header)[name], 8, "all values of %s", name)
		require.Len(t, Repeatable(header), 1)
	}
}

func TestReplay(t *testing.T) {
	type header = http.Header
	cors := header{"Access-Control-Allow-Origin": {"https://a.example"}, "Access-Control-Allow-Credentials": {"true"}, "Vary": {"Origin"}}
	all := header{"Access-Control-Allow-Origin": {"*"}}
	gzip := header{"Content-Encoding": {"gzip"}}
	for name, c := range map[string]struct {
		request, answer, want header
	}{
		"nothing":                {header{}, header{}, header{}},
		"the same origin":        {header{"Origin": {"https://a.example"}}, cors, cors},
		"another origin":         {header{"Origin": {"https://b.example"}}, cors, header{"Vary": {"Origin"}}},
		"no origin":              {header{}, cors, header{"Vary": {"Origin"}}},
		"an answer for all":      {header{"Origin": {"https://b.example"}}, all, all},
		"gzip":                   {header{"Accept-Encoding": {"br, gzip"}}, gzip, gzip},
		"gzip, upper case":       {header{"Accept-Encoding": {"GZIP;q=0.1"}}, gzip, gzip},
		"gzip among all":         {header{"Accept-Encoding": {"br;q=1.0", "*;q=0.5"}}, gzip, gzip},
		"no gzip":                {header{"Accept-Encoding": {"br"}}, gzip, nil},
		"no header":              {header{}, gzip, gzip},
		"an empty header":        {header{"Accept-Encoding": {""}}, gzip, nil},
		"gzip refused":           {header{"Accept-Encoding": {"*, gzip; q=0.00"}}, gzip, nil},
		"refused by Q":           {header{"Accept-Encoding": {"*, gzip;Q=0"}}, gzip, nil},
		"refused after a tab":    {header{"Accept-Encoding": {"*, gzip\t;\tq=0"}}, gzip, nil},
		"taken by Q":             {header{"Accept-Encoding": {"*;q=0, gzip;\tQ=0.01"}}, gzip, gzip},
		"all refused":            {header{"Accept-Encoding": {"*;q=0"}}, gzip, nil},
		"two, one is taken":      {header{"Accept-Encoding": {"gzip"}}, header{"Content-Encoding": {"br, gzip"}}, nil},
		"all of CORS is for it":  {header{"Origin": {"https://b.example"}}, header{"Access-Control-Allow-Origin": {"https://a.example"}, "Access-Control-Max-Age": {"7"}, "Access-Control-Allow-Methods": {"PUT"}, "X-Mine": {"1"}}, header{"X-Mine": {"1"}}},
		"in several lines":       {header{"Accept-Encoding": {"br", "gzip"}}, gzip, gzip},
		"refused in one of them": {header{"Accept-Encoding": {"br", "gzip;q=0"}}, gzip, nil},
		"two values":             {header{"Accept-Encoding": {"gzip"}}, header{"Content-Encoding": {"gzip", "br"}}, nil},
		"an encoding that is no": {header{}, header{"Content-Encoding": {"identity"}}, header{"Content-Encoding": {"identity"}}},
	} {
		answer := c.answer.Clone()
		problem := Replay(c.request, answer)
		if c.want == nil {
			require.Equal(t, http.StatusNotAcceptable, problem.Status, name)
			continue
		}
		require.Nil(t, problem, name)
		want := maps.Clone(c.want)
		want["Idempotent-Replayed"] = []string{"true"}
		require.Equal(t, want, answer, name)
	}
}
