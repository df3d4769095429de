package locallambda

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// eventTemplate has the texts that events are made of, in turn.
type eventTemplate [][]byte

func readEvent(file string) (eventTemplate, error) {
	if file == "" {
		return nil, exit.WrongUsage("--event is missing; want a file with the event as JSON")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, exit.WrongUsage("--event cannot be read: %w", err)
	}
	e := eventTemplate{text}
	if !e.isJSON() {
		e = nil
		for line := range bytes.Lines(text) {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				e = append(e, line)
			}
		}
	}
	if !e.isJSON() {
		return nil, exit.WrongUsage("--event %s is neither JSON nor one JSON text in each line, after {{n}} and {{run}} have been replaced", file)
	}
	return e, nil
}

// isJSON reports whether all texts make events.
func (e eventTemplate) isJSON() bool {
	for i := range e {
		if !json.Valid(e.event(i+1, "run")) {
			return false
		}
	}
	return len(e) > 0
}

// event is the event with that number, from 1 on.
func (e eventTemplate) event(n int, run string) []byte {
	text := bytes.ReplaceAll(e[(n-1)%len(e)], []byte("{{n}}"), []byte(strconv.Itoa(n)))
	return bytes.ReplaceAll(text, []byte("{{run}}"), []byte(run))
}

// answer is what an answer means to the client of an event.
type answer struct {
	busy   bool
	failed string // the type of the failure; "" for success, and when it is only busy
	again  bool   // after this failure nothing has run: the store was not available
	detail string
	rest   []byte // what of the event is to be sent again, if it is; nil: all
}

// read reads the result of an event, and what the function logged about it.
func read(r lambdatest.Result, event []byte, log said) answer {
	switch r.ErrorType {
	case "":
	case "LockBusy":
		return answer{busy: true, detail: r.ErrorMessage}
	default:
		return answer{failed: r.ErrorType, detail: r.ErrorMessage, again: r.ErrorType == "LockStoreUnavailable"}
	}
	var out struct {
		StatusCode   int               `json:"statusCode"`
		Headers      map[string]string `json:"headers"`
		MultiHeaders http.Header       `json:"multiValueHeaders"` // alone, in the answers to some sources
		Body         string            `json:"body"`
		Failures     []struct {
			Item string `json:"itemIdentifier"`
		} `json:"batchItemFailures"`
	}
	if json.Unmarshal(r.Payload, &out) != nil {
		return answer{} // an answer of another form
	}
	retryAfter := out.Headers["Retry-After"] + out.MultiHeaders.Get("Retry-After")
	switch {
	case out.StatusCode == 409:
		return conflict(out.Body)
	case out.StatusCode >= 400:
		return answer{failed: fmt.Sprint("HTTP ", out.StatusCode), detail: out.Body, again: out.StatusCode == 503 && retryAfter != ""}
	case len(out.Failures) > 0:
		var ids []string
		for _, f := range out.Failures {
			ids = append(ids, f.Item)
		}
		return batch(ids, event, log)
	}
	return answer{}
}

// covers is the type of the failure of an event that another run covers.
const covers = "LockCovered"

// conflict is what the status 409 means: the code of the problem in the body says it.
func conflict(body string) answer {
	var p struct{ Code string }
	_ = json.Unmarshal([]byte(body), &p) // a body of another form has no code
	switch p.Code {
	case "covered":
		return answer{failed: covers, detail: body}
	case "in-doubt": // to send it again does not help
		return answer{failed: "HTTP 409", detail: body}
	}
	return answer{busy: true, detail: body}
}

const batchFailure = "BatchItemFailure"

// batch is an answer that names items which are to come again. It is busy if the function logged no other cause: to send
// the items again would only hide it. What the function says of its items counts, and otherwise what the guard's runs say: a run fails, too, if the
// lock of an item in it was busy.
func batch(ids []string, event []byte, log said) answer {
	a := answer{rest: messages(event, ids)}
	cause := log.cause
	if log.items {
		cause = log.item
	}
	if cause == "" && log.busy != "" {
		a.busy, a.detail = true, log.busy
		return a
	}
	a.failed = batchFailure
	a.detail = cmp.Or(cause, "the function does not log why") +
		"\nits source would send it again, and in the end move it to a dead-letter queue or drop it; change --event or the function"
	return a
}

// messages is an SQS event without the messages that need not be sent again, as
// the queue would make it; nil for another event.
func messages(event []byte, again []string) []byte {
	var e struct{ Records []json.RawMessage }
	if json.Unmarshal(event, &e) != nil {
		return nil
	}
	var rest []json.RawMessage
	for _, record := range e.Records {
		var m struct {
			ID string `json:"messageId"`
		}
		if json.Unmarshal(record, &m) == nil && slices.Contains(again, m.ID) {
			rest = append(rest, record)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	text, _ := json.Marshal(map[string]any{"Records": rest}) // what came from JSON is JSON
	return text
}
