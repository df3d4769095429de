package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/lockstore"
)

// What is stored is a header and a text:
//
//	1 byte    version of this layout
//	1 byte    kind of the text
//	1 byte    1 if there is a hash, otherwise 0
//	16 bytes  hash of Call.Fingerprint, or zeros
//	1 byte    length of Options.Version
//	          Options.Version
//	          the text
const (
	layout     = 1
	headerSize = 3 + hashSize + 1
	hashSize   = 16

	withResult = 'a' // the text is the result's JSON
	noResult   = 'n' // the text says why there is no result
)

// form is what a result must have so that a call may read it.
type form struct {
	match   *[hashSize]byte // nil is not compared
	version string
}

func (f form) envelope(kind byte, text []byte) lockstore.HiddenBytes {
	data := make([]byte, 0, headerSize+len(f.version)+len(text))
	data = append(data, layout, kind)
	if f.match != nil {
		data = append(append(data, 1), f.match[:]...)
	} else {
		data = append(data, make([]byte, 1+hashSize)...)
	}
	data = append(append(data, byte(len(f.version))), f.version...)
	return append(data, text...)
}

type stored struct {
	form
	kind byte
	text []byte
}

func open(data []byte) (s stored, ok bool) {
	if len(data) < headerSize || data[0] != layout || data[1] != withResult && data[1] != noResult || data[2] > 1 {
		return s, false
	}
	end := headerSize + int(data[headerSize-1])
	if end > len(data) || data[1] == noResult && !slices.Contains(reasons, string(data[end:])) {
		return s, false
	}
	s.kind = data[1]
	match := (*[hashSize]byte)(data[3:])
	switch {
	case data[2] == 1:
		s.match = match
	case *match != [hashSize]byte{}:
		return stored{}, false
	}
	s.version, s.text = string(data[headerSize:end]), data[end:]
	return s, true
}

// hash is that of Fingerprint, nil without one. The key is in it, so that the same input under two
// keys has two hashes.
func (c Call) hash() (*[hashSize]byte, error) {
	if c.Fingerprint == nil {
		return nil, nil
	}
	text, err := marshal(c.Fingerprint)
	if err != nil {
		return nil, fmt.Errorf("idempotency: Fingerprint has no JSON form: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d %s\n", len(c.Key), c.Key)
	h.Write(text)
	return (*[hashSize]byte)(h.Sum(nil)), nil
}

// completion is what work leaves: its result, or a note if the result cannot be stored.
func completion[Out any](o *Once, f form, out Out) doonce.Completion {
	kind, text, err := encode(out, o.opt.MaxResultBytes)
	return doonce.Completion{ResultTime: o.opt.ResultTime, Result: f.envelope(kind, text), Err: err}
}

// The reasons that are stored. They are fixed texts, so that what is read is one of them.
const (
	noJSON     = "it has no JSON form"
	notBack    = "its JSON cannot be read back"
	otherBack  = "its JSON is another one after it was read back"
	streamed   = "it is a stream"
	tooLarge   = "it is too large"
	byOperator = "an operator resolved the key without it"
)

var reasons = []string{noJSON, notBack, otherBack, streamed, tooLarge, byOperator}

// encode is what is stored of a result: its JSON of at most so many bytes, which gives the same JSON when
// it is read back; or one of the reasons, and an error, neither with data of the result.
func encode[Out any](out Out, most int) (kind byte, text []byte, err error) {
	none := func(reason, more string) (byte, []byte, error) {
		return noResult, []byte(reason), fmt.Errorf("the result is not stored: %s%s", reason, more)
	}
	if _, ok := any(out).(io.Reader); ok {
		return none(streamed, "")
	}
	text, err = marshal(out)
	if t, ok := errors.AsType[*json.UnsupportedTypeError](err); ok {
		return none(noJSON, fmt.Sprintf(" (%v)", t.Type))
	}
	if err != nil {
		return none(noJSON, fmt.Sprintf(" (%T)", err))
	}
	if len(text) > most {
		return none(tooLarge, fmt.Sprintf(": its JSON has %d bytes; want at most MaxResultBytes, %d", len(text), most))
	}
	again, err := decode[Out](text)
	if err != nil {
		return none(notBack, "")
	}
	if second, err := marshal(again); err != nil || !bytes.Equal(text, second) {
		return none(otherBack, "")
	}
	return withResult, text, nil
}

// read is how a run ends whose key is in doubt, or whose work is done. result is what the store has.
func read[Out any](busy *guard.LockBusy, result lockstore.HiddenBytes, f form) (out Out, outcome string, err error) {
	if busy.State == lockstore.InDoubt {
		return out, doonce.InDoubt, &RepeatInDoubt{busy.Key, busy.Holder}
	}
	none := func(reason string) (Out, string, error) {
		var zero Out
		return zero, doonce.NoResult, &RepeatNoAnswer{busy.Key, busy.Holder, reason}
	}
	s, ok := open(result)
	_, nothing := any(out).(struct{})
	switch {
	case len(result) == 0:
		return none("the key is in a cooldown")
	case !ok:
		return none("this version of the program did not write what is stored")
	case f.match != nil && s.match != nil && *f.match != *s.match:
		return out, doonce.Mismatch, &RepeatMismatch{busy.Key, busy.Holder}
	case nothing:
		return out, doonce.Replayed, nil
	case s.kind == noResult:
		return none(string(s.text))
	case f.version != s.version:
		return none(fmt.Sprintf("it is of version %q, and this program reads version %q", s.version, f.version))
	}
	out, err = decode[Out](s.text)
	if err != nil {
		where := ""
		if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			where = fmt.Sprintf(": %v %s", t.Type, t.Field)
		}
		return none(fmt.Sprintf("what is stored cannot be read as %T%s", out, where))
	}
	return out, doonce.Replayed, nil
}

// marshal is json.Marshal without the escapes for HTML. A panic of a method of the user's
// is an error: after the work it would look like one of the work.
func marshal(v any) (text []byte, err error) {
	defer recovered(&err)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err = e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// decode reads a result. A field that Out does not have is an error: a result without it
// would be another one. For an Out of type any the result is the text itself, in which no
// number loses digits.
func decode[Out any](text []byte) (out Out, err error) {
	defer recovered(&err)
	if all, ok := any(&out).(*any); ok && json.Valid(text) {
		*all = json.RawMessage(text)
		return out, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err = d.Decode(&out); err == nil && d.InputOffset() != int64(len(text)) {
		err = errMore
	}
	return out, err
}

var errMore = errors.New("there is more after the result")

func recovered(err *error) {
	if v := recover(); v != nil {
		*err = errPanicked
	}
}

var errPanicked = errors.New("it panicked")
