package fakedynamo

import (
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// env evaluates expressions on one item. The grammar is the part of DynamoDB's
// that works on top-level attributes and the elements of lists:
//
//	or      = and { "OR" and }
//	and     = first { "AND" first }
//	first   = "NOT" first | "(" or ")" | function "(" operand { "," operand } ")" | operand compare operand
//	compare = "=" | "<>" | "<" | "<=" | ">"
//	operand = value | name [ "[" index "]" ]
//	update  = { "SET" name "=" new { "," … } | "REMOVE" name [ "[" index "]" ] { "," … } }
//	new     = operand | ("if_not_exists" | "list_append") "(" new "," new ")"
//
// What DynamoDB refuses as invalid ends with a panic, which Service.apply recovers.
type env struct {
	names  map[string]string
	values map[string]Value
	used   map[string]bool
	item   Item

	tokens []string
}

// scanned are the tokens of the expressions that had no mistake. A store sends few different
// ones.
var scanned sync.Map // expression -> []string

var tokenForm = regexp.MustCompile(`\s*(<>|<=|[=<>(),]|[#:]?[A-Za-z0-9_]+(?:\[\d+\])?)`)

func (e *env) scan(expression string) {
	if known, ok := scanned.Load(expression); ok {
		e.tokens = known.([]string)
		return
	}
	e.tokens = nil
	for rest := strings.TrimSpace(expression); rest != ""; rest = strings.TrimSpace(rest) {
		at := tokenForm.FindStringSubmatchIndex(rest)
		if at == nil || at[0] != 0 {
			invalid("unexpected text at %q", rest)
		}
		e.tokens = append(e.tokens, rest[at[2]:at[3]])
		rest = rest[at[1]:]
	}
	scanned.Store(expression, e.tokens)
}

// invalid is a request that DynamoDB refuses as invalid.
func invalid(format string, args ...any) {
	panic(&Failure{Status: 400, Code: "ValidationException", Message: fmt.Sprintf(format, args...)})
}

func (e *env) next() string {
	if len(e.tokens) == 0 {
		invalid("unexpected end of an expression")
	}
	t := e.tokens[0]
	e.tokens = e.tokens[1:]
	return t
}

// take consumes the next token if it is want; keywords match in any case.
func (e *env) take(want string) bool {
	if len(e.tokens) == 0 || !strings.EqualFold(e.tokens[0], want) {
		return false
	}
	e.tokens = e.tokens[1:]
	return true
}

func (e *env) expect(want string) {
	if !e.take(want) {
		invalid("want %q", want)
	}
}

func (e *env) condition(expression string) bool {
	e.scan(expression)
	holds := e.or()
	if len(e.tokens) > 0 {
		invalid("unexpected %q", e.tokens[0])
	}
	return holds
}

func (e *env) or() bool {
	holds := e.and()
	for e.take("OR") {
		right := e.and() // always parsed
		holds = holds || right
	}
	return holds
}

func (e *env) and() bool {
	holds := e.first()
	for e.take("AND") {
		right := e.first()
		holds = holds && right
	}
	return holds
}

func (e *env) first() bool {
	if e.take("NOT") {
		return !e.first()
	}
	if e.take("(") {
		holds := e.or()
		e.expect(")")
		return holds
	}
	if len(e.tokens) > 1 && e.tokens[1] == "(" {
		return e.function(e.next())
	}
	left := e.operand()
	op := e.next()
	right := e.operand()
	return e.compare(left, op, right)
}

func (e *env) function(name string) bool {
	e.expect("(")
	var args []Value
	for {
		args = append(args, e.operand())
		if !e.take(",") {
			break
		}
	}
	e.expect(")")
	switch {
	case name == "attribute_exists" && len(args) == 1:
		return args[0] != nil
	case name == "attribute_not_exists" && len(args) == 1:
		return args[0] == nil
	case name == "attribute_type" && len(args) == 2:
		kind, _ := args[1]["S"].(string)
		return args[0][kind] != nil
	case name == "begins_with" && len(args) == 2:
		text, isText := args[0]["S"].(string)
		part, _ := args[1]["S"].(string)
		return isText && strings.HasPrefix(text, part)
	case name == "contains" && len(args) == 2:
		text, isText := args[0]["S"].(string)
		part, _ := args[1]["S"].(string)
		return isText && strings.Contains(text, part) ||
			slices.ContainsFunc(elements(args[0]), func(v Value) bool { return reflect.DeepEqual(v, args[1]) })
	}
	invalid("the function %s with %d arguments is not known", name, len(args))
	return false
}

// operand returns a value, or an attribute of the item, nil when it is missing.
func (e *env) operand() Value {
	t := e.next()
	if !strings.HasPrefix(t, ":") {
		name, index, isElement := e.path(t)
		if !isElement {
			return e.item[name]
		}
		if list := elements(e.item[name]); index < len(list) {
			return list[index]
		}
		return nil
	}
	v, ok := e.values[t]
	if !ok {
		invalid("the value %s is not given", t)
	}
	e.used[t] = true
	return v
}

// path resolves the token of an attribute, or of an element of one.
func (e *env) path(t string) (name string, index int, isElement bool) {
	t, bracket, isElement := strings.Cut(t, "[")
	if isElement {
		index, _ = strconv.Atoi(strings.TrimSuffix(bracket, "]")) // its digits are the scanner's
	}
	return e.name(t), index, isElement
}

// elements are those of a list; other values have none.
func elements(v Value) []Value {
	list, _ := v["L"].([]any)
	var all []Value
	for _, v := range list {
		element, _ := v.(map[string]any)
		all = append(all, Value(element))
	}
	return all
}

func listOf(all []Value) Value {
	list := []any{}
	for _, v := range all {
		list = append(list, map[string]any(v))
	}
	return Value{"L": list}
}

// name resolves the token of an attribute name.
func (e *env) name(t string) string {
	if !strings.HasPrefix(t, "#") {
		return t
	}
	name, ok := e.names[t]
	if !ok {
		invalid("the name %s is not given", t)
	}
	e.used[t] = true
	return name
}

// compare answers as DynamoDB does. A missing attribute, or a value of another type, is
// different, and neither smaller nor larger. Only numbers have an order here.
func (e *env) compare(left Value, op string, right Value) bool {
	order, numbers := orderOf(left, right)
	equal := numbers && order == 0 || !numbers && left != nil && reflect.DeepEqual(left, right)
	switch op {
	case "=":
		return equal
	case "<>":
		return !equal
	case "<":
		return numbers && order < 0
	case "<=":
		return numbers && order <= 0
	case ">":
		return numbers && order > 0
	}
	invalid("%q is no comparison", op)
	return false
}

// orderOf is the order of two numbers.
func orderOf(left, right Value) (order int, numbers bool) {
	aText, _ := left["N"].(string)
	bText, _ := right["N"].(string)
	a, aOK := new(big.Rat).SetString(aText)
	b, bOK := new(big.Rat).SetString(bText)
	if !aOK || !bOK {
		return 0, false
	}
	return a.Cmp(b), true
}

func (e *env) update(expression string) Item {
	changed := Item{}
	maps.Copy(changed, e.item)
	done := map[string]bool{}
	removed := map[string][]int{} // elements, by their old indexes
	touch := func(name string) string {
		if done[name] {
			invalid("two changes of %s", name)
		}
		done[name] = true
		return name
	}
	e.scan(expression)
	for len(e.tokens) > 0 {
		switch {
		case e.take("SET"):
			for {
				name := touch(e.name(e.next()))
				e.expect("=")
				if changed[name] = e.value(); changed[name] == nil {
					invalid("an operand refers to an attribute that does not exist")
				}
				if !e.take(",") {
					break
				}
			}
		case e.take("REMOVE"):
			for {
				name, index, isElement := e.path(e.next())
				switch {
				case !isElement:
					delete(changed, touch(name))
				case e.item[name]["L"] == nil:
					invalid("the document path is invalid for an update")
				default:
					removed[name] = append(removed[name], index)
				}
				if !e.take(",") {
					break
				}
			}
		default:
			invalid("want SET or REMOVE, not %q", e.tokens[0])
		}
	}
	for name, indexes := range removed {
		var kept []Value
		for i, v := range elements(e.item[touch(name)]) {
			if !slices.Contains(indexes, i) {
				kept = append(kept, v)
			}
		}
		changed[name] = listOf(kept)
	}
	return changed
}

// value reads an operand or a function of two operands: if_not_exists or list_append.
func (e *env) value() Value {
	replaces, appends := e.take("if_not_exists"), e.take("list_append")
	if !replaces && !appends {
		return e.operand()
	}
	e.expect("(")
	first := e.value()
	e.expect(",")
	second := e.value()
	e.expect(")")
	switch {
	case replaces && first == nil:
		return second
	case replaces:
		return first
	case first["L"] == nil || second["L"] == nil:
		invalid("an operand of list_append is not a list")
	}
	return listOf(append(elements(first), elements(second)...))
}
