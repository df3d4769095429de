package httpanswer

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

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
		"all refused":            {header{"Accept-Encoding": {"*;q=0"}}, gzip, nil},
		"two, one is taken":      {header{"Accept-Encoding": {"gzip"}}, header{"Content-Encoding": {"br, gzip"}}, nil},
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
