package eventsource

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// Event has the fields of an HTTP request of any source.
type Event struct {
	Version                                                string
	HTTPMethod, Method                                     string // of format 1.0 and a load balancer; of VPC Lattice
	RawPath, Path                                          string
	LatticePath                                            string `json:"raw_path"`
	RawQueryString                                         string
	QueryStringParameters, MultiValueQueryStringParameters Values
	LatticeQuery                                           Values `json:"query_string_parameters"`
	Headers, MultiValueHeaders                             Values
	Cookies                                                []string
	RouteKey, Resource                                     string
	PathParameters                                         map[string]string
	Body                                                   string
	IsBase64Encoded                                        bool
	LatticeBase64                                          bool `json:"is_base64_encoded"`
	RequestContext                                         *Context

	// Of events that are no HTTP requests.
	Records             any
	MethodArn, RouteArn string
}

// Context is the requestContext of any source.
type Context struct {
	APIID, Stage, DomainName string
	HTTP                     *struct{ Method string }
	ELB                      *struct{ TargetGroupArn string }
	ServiceArn               string
	Authorizer               map[string]any
	Identity                 struct{ UserArn, CognitoIdentityID, Principal, Type string }
	ConnectionID             string
}

// Values are headers or parameters: each one text, or several.
type Values map[string]texts

type texts []string

// UnmarshalJSON takes a text, or a list of texts.
func (t *texts) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*t = texts{""}
		return json.Unmarshal(b, &(*t)[0])
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// Or are the other values if there are none.
func (v Values) Or(other Values) Values {
	if v != nil {
		return v
	}
	return other
}

// Header are the values as headers.
func (v Values) Header() http.Header {
	h := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(v)) { // two names may differ in case alone
		for _, value := range v[name] {
			h.Add(name, value)
		}
	}
	return h
}

// Query are the values as parameters.
func (v Values) Query() url.Values {
	q := url.Values{}
	for name, all := range v {
		q[name] = all
	}
	return q
}
