// Command main says whether the model of rules.dfy, as Dafny translates it, makes the same steps as the rule book.
package main

import (
	rules "0_Rules_Compile_"
	"bufio"
	. "dafny"
	"fmt"
	"os"
	"strings"
)

// input is a line of numbers, as proof_test.go writes it.
type input struct{ rest string }

func (in *input) number() Int {
	word, rest, _ := strings.Cut(in.rest, " ")
	in.rest = rest
	return IntOfString(word)
}

func (in *input) yes() bool { return in.number().Int() == 1 }

func (in *input) list(element func() interface{}) Seq {
	all := make([]interface{}, in.number().Int())
	for i := range all {
		all[i] = element()
	}
	return SeqOf(all...)
}

func (in *input) state() rules.State {
	last := in.number()
	holders := in.list(func() interface{} {
		return rules.Companion_Holder_.Create_Holder_(in.number(), in.number(), in.number(), in.number(), in.number(), in.number(), in.number(), in.yes(), in.yes(), in.yes())
	})
	queue := in.list(func() interface{} {
		return rules.Companion_Waiter_.Create_Waiter_(in.number(), in.number(), in.number(), in.number(), in.number())
	})
	ended := in.list(func() interface{} { return rules.Companion_Mark_.Create_Mark_(in.number(), in.number(), in.how()) })
	closed := rules.Companion_Closed_.Create_Open_()
	if in.yes() {
		closed = rules.Companion_Closed_.Create_Closed_(in.number(), in.number(), in.number(), in.number())
	}
	return rules.Companion_State_.Create_State_(last, holders, queue, ended, closed)
}

func (in *input) how() rules.How {
	c := rules.Companion_How_
	return []rules.How{c.Create_Released_(), c.Create_Expired_(), c.Create_Completed_(), c.Create_Resolved_(), c.Create_Revoked_()}[in.number().Int()]
}

func (in *input) kind() rules.Kind {
	c := rules.Companion_Kind_
	return []rules.Kind{c.Create_Acquire_(), c.Create_Renew_(), c.Create_Release_(), c.Create_Abandon_(), c.Create_Leave_(), c.Create_MarkStarted_(), c.Create_Complete_(), c.Create_Resolve_(), c.Create_Revoke_()}[in.number().Int()]
}

func (in *input) outcome() rules.Outcome {
	c := rules.Companion_Outcome_
	return []rules.Outcome{c.Create_Granted_(), c.Create_Done_(), c.Create_Refused_(), c.Create_Lost_(), c.Create_Holding_(), c.Create_Exclusive_()}[in.number().Int()]
}

func (in *input) owner() interface{} { return in.number() }

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	model := rules.Companion_Default___
	n := 0
	for ; lines.Scan(); n++ {
		in := &input{lines.Text()}
		before := in.state()
		if holds := in.yes(); model.Inv(before) != holds {
			fail("invariant: the rules say %t, the model does not\nstate: %v\n", holds, before)
		}
		if in.rest == "" {
			continue
		}
		book := rules.Companion_Book_.Create_Book_(in.number(), in.number())
		clock := rules.Companion_Clock_.Create_Clock_(in.number(), in.number(), in.yes(), in.number())
		request := rules.Companion_Request_.Create_Request_(in.kind(), in.number(), in.number(), in.number(), in.number(), in.number(), in.yes(), in.number(), in.number(), in.number(), in.yes(), in.yes(), in.number())
		after := rules.Companion_Step_.Create_Step_(in.state(), in.list(in.owner), in.list(in.owner))
		want := rules.Companion_Decision_.Create_Decision_(after, rules.Companion_Answer_.Create_Answer_(in.outcome(), in.number(), in.number(), in.number(), in.number(), in.yes()))
		if got := model.Decide(before, book, clock, request); !got.Equals(want) {
			fail("step\nbefore:  %v\nrequest: %v\n%v %v\nmodel: %v\nrules: %v\n", before, request, book, clock, got, want)
		}
	}
	if err := lines.Err(); err != nil {
		fail("%v\n", err)
	}
	fmt.Println("the same:", n)
}

func fail(format string, what ...interface{}) {
	fmt.Printf(format, what...)
	os.Exit(1)
}
