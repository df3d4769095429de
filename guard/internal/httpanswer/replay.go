package httpanswer

import (
	"maps"
	"net/http"
	"strings"
)

// Repeatable returns a copy of the headers of an answer, with canonical names, without those that are not sent again:
//
//	Set-Cookie                         belongs to one session
//	Connection and the like            concern one connection (RFC 9110, 7.6.1)
//	Trailer, Content-Length            say how one answer is sent
//	Date, Age                          say when it was sent
func Repeatable(header http.Header) http.Header {
	kept := make(http.Header, len(header))
	for name, values := range header {
		switch canonical := http.CanonicalHeaderKey(name); canonical {
		case "Set-Cookie", "Set-Cookie2",
			"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Transfer-Encoding", "Upgrade",
			"Trailer", "Content-Length",
			"Date", "Age":
		default:
			if !strings.HasPrefix(canonical, http.TrailerPrefix) {
				kept[canonical] = append(kept[canonical], values...)
			}
		}
	}
	return kept
}

// Replay makes the headers of a stored answer those of the answer to a repeat, and marks them. If the repeat cannot read
// the answer, it returns what the repeat gets instead.
func Replay(request, answer http.Header) *Answer {
	if origin := answer.Get("Access-Control-Allow-Origin"); origin != "" && origin != "*" && origin != request.Get("Origin") {
		maps.DeleteFunc(answer, func(name string, _ []string) bool { return strings.HasPrefix(name, "Access-Control-") })
	}
	accepted := request.Values("Accept-Encoding")
	for _, encoding := range tokens(answer.Values("Content-Encoding")) {
		if len(accepted) > 0 && !accepts(accepted, encoding) { // without the header each one is acceptable (RFC 9110, 12.5.3)
			return Problem(http.StatusNotAcceptable, "The first request with this "+Header+" was carried out. Its answer has an encoding that this request does not accept.", nil)
		}
	}
	answer.Set("Idempotent-Replayed", "true")
	return nil
}

// accepts reads the values of Accept-Encoding.
func accepts(values []string, encoding string) bool {
	other := strings.EqualFold(encoding, "identity")
	for _, token := range tokens(values) {
		name, weight, _ := strings.Cut(strings.ToLower(token), ";")
		name, weight = strings.TrimSpace(name), strings.Join(strings.Fields(weight), "")
		takes := !strings.HasPrefix(weight, "q=0") || strings.Trim(weight, "q=0.") != ""
		switch {
		case strings.EqualFold(name, encoding):
			return takes
		case name == "*":
			other = takes
		}
	}
	return other
}

func tokens(values []string) (all []string) {
	for token := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if token = strings.TrimSpace(token); token != "" {
			all = append(all, token)
		}
	}
	return all
}
