package rules_test

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
)

// The proof, testdata/proof/proof.dfy, is about a model of the rules, testdata/proof/rules.dfy. TestProof proves it.
// TestModel says whether the model and the rule book are the same.

// lemmas is how many lemmas the proof has, and proved is how many of them and of their functions Dafny has to prove, with what makes them well-defined. That
// there are 0 errors does not suffice: with a Z3 newer than itself, Dafny 2.3 does not count each lemma that it fails to prove as an error. So who adds a
// lemma changes both numbers, and the second one grows.
const lemmas, proved = 48, 145

func TestProof(t *testing.T) {
	if !verifyrecord.Full() {
		t.Skip("the proof takes two minutes of one processor: it is part of make verify")
	}
	began := time.Now()
	source, err := os.ReadFile("testdata/proof/proof.dfy")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(regexp.MustCompile(`(?m)^lemma `).FindAll(source, -1)); n != lemmas {
		t.Fatalf("%d lemmas, want %d", n, lemmas)
	}
	// Dafny stops here only if something is wrong: the longest lemma takes 8 s.
	out, err := exec.Command(testservers.Dafny(t), "/compile:0", "/noCheating:1", "/timeLimit:300", "/vcsCores:2", "/verifyAllModules", "testdata/proof/proof.dfy").CombinedOutput()
	want := fmt.Sprintf("Dafny program verifier finished with %d verified, 0 errors\n", proved)
	if err != nil || !bytes.HasSuffix(out, []byte(want)) {
		said := regexp.MustCompile(`(?m)^(Prover error.*|Legal parameters.*|  \w+ \(.*)\n`).ReplaceAll(out, nil) // of an option that this Z3 does not know
		t.Fatalf("%v, want %s\n%s", err, want, said)
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Induction, Name: "proof for states of any size", Counts: map[string]int64{"lemmas": lemmas}, Took: time.Since(began),
		Limits: []string{"The proof is about a model of the rules. Its clocks are right, each owner keeps its `MaxHolders`, and nobody guesses or waits. The induction checks that each refusal has a reason. Only a comparison of random steps shows that the model is the rule book."},
	})
}

// sentences is how many texts Broken has for the states that the model has, with "" for none. It has no numbers below 0, and none without a bound.
const sentences = 14

// Model and rule book have to have the same invariant, and make the same steps. If this fails after a change of the rules, change the
// model in the same way, and run TestProof, see make verify.
func TestModel(t *testing.T) {
	if !verifyrecord.Full() {
		t.Skip("the comparison needs the program Dafny: it is part of make verify, and of make verify GATE=1")
	}
	program := model(t)
	seed, blocks := verifyrecord.Seed(t, 3, 40)
	result := verifyrecord.Result{Kind: verifyrecord.Induction, Name: "random steps of the model of the proof and of the rules", Seed: seed}
	record(t, result, func() induction {
		return inParallel(func(p, processors int) (mine induction) {
			lines, wrong := compare(program, func(m *modelInput) {
				if broken := m.invariants(seed + uint64(p)); len(broken) < sentences {
					mine.wrong = fmt.Sprintf("the states break %d sentences of the invariant only", len(broken))
				}
				for n := p; n < blocks; n += processors {
					mine.add(beyond(seed+uint64(n), block, m.decide(rules.Book.Decide)))
				}
			})
			mine.steps, mine.wrong = lines, cmp.Or(wrong, mine.wrong)
			return mine
		})
	})
}

// others are mistakes in what the model leaves out, such as the basis and the status.
var others = []string{
	"complete: 64 KiB", "complete: a plain refusal", "complete: the result survives the next grant", "M128 complete: the result stays in the entry",
	"inspect invents a fence", "M110 a takeover by a guess", "M111 lost, by a guess", "covered: by an old read", "a start rests on nothing", "an owner has left, by an old read",
	"a renewal that is lost rests on nothing", "a place is enough for a revoked lease's owner",
}

// large are mistakes that show only in states larger than most of these: the rest of the induction, and the comparison with the stores, finds them.
var large = []string{
	"queue: no end", "parked: all places may be parked", "several: the ninth holder is not counted", "several: the number of holders has four bits",
	"several: eight are handed the key at once", "queue: the tenth and the eleventh change places",
}

// The comparison finds each mistake in a rule that the model has.
func TestModelFindsMistakes(t *testing.T) {
	if !verifyrecord.Full() {
		t.Skip("see TestModel")
	}
	program := model(t)
	for n, mistake := range wrongrules.All {
		if verifyrecord.Gate() && n%verifyrecord.GateShare != 0 || slices.Contains(large, mistake.Name) {
			continue
		}
		seeds := uint64(400)
		if slices.Contains(others, mistake.Name) {
			seeds = 5
		}
		_, wrong := compare(program, func(m *modelInput) {
			for seed := uint64(0); seed < seeds && !m.ended; seed++ { // a block ends at its first wrong step, and an Inspect is not compared
				beyond(seed, block/20, m.decide(mistake.Decide))
			}
		})
		if found := strings.HasPrefix(wrong, "step"); found == slices.Contains(others, mistake.Name) {
			t.Errorf("%s: found: %t, %.200s", mistake.Name, found, wrong)
		}
	}
}

// model makes the program that takes the steps of the model.
func model(t *testing.T) (program string) {
	dafny := testservers.Dafny(t)
	dir := t.TempDir()
	source, err := filepath.Abs("testdata/proof")
	if err != nil {
		t.Fatal(err)
	}
	// Dafny exits with 3, because it proves nothing here.
	_, _ = exec.Command(dafny, "/noVerify", "/compile:0", "/compileTarget:go", "/spillTargetCode:3", "/out:"+filepath.Join(dir, "model"), filepath.Join(source, "rules.dfy")).CombinedOutput()
	program = filepath.Join(dir, "model")
	build := exec.Command("go", "build", "-o", program, filepath.Join(source, "main.go"))
	build.Dir = dir
	build.Env = append(os.Environ(), "GO111MODULE=off", "GOWORK=off", "GOFLAGS=", "GOPATH="+filepath.Join(dir, "model-go"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// compare says what the program says is wrong with the lines that write writes.
func compare(program string, write func(*modelInput)) (lines int64, wrong string) {
	cmd := exec.Command(program)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 0, err.Error()
	}
	m := &modelInput{to: bufio.NewWriter(in), names: map[string]int64{"": 0}}
	write(m)
	_ = m.to.Flush() // a program that has ended reads no more
	_ = in.Close()
	if err := cmd.Wait(); err != nil || out.String() != fmt.Sprintln("the same:", m.lines) {
		return m.lines, cmp.Or(out.String(), fmt.Sprint(err))
	}
	return m.lines, ""
}

// modelInput writes what the rule book says as lines of numbers, which testdata/proof/main.go reads.
type modelInput struct {
	to    *bufio.Writer
	line  []byte
	lines int64
	ended bool
	names map[string]int64 // the numbers of owners, texts and results
}

func (m *modelInput) numbers(all ...int64) {
	for _, n := range all {
		m.line = append(strconv.AppendInt(m.line, n, 10), ' ')
	}
}

func (m *modelInput) yes(all ...bool) {
	for _, yes := range all {
		n := int64(0)
		if yes {
			n = 1
		}
		m.numbers(n)
	}
}

func (m *modelInput) name(s string) int64 {
	if _, known := m.names[s]; !known {
		m.names[s] = int64(len(m.names))
	}
	return m.names[s]
}

func (m *modelInput) owners(all []driver.Owner) {
	m.numbers(int64(len(all)))
	for _, o := range all {
		m.numbers(m.name(string(o)))
	}
}

func (m *modelInput) state(s rules.State) {
	m.numbers(int64(s.LastFence), int64(len(s.Holders)))
	for _, h := range s.Holders {
		m.numbers(m.name(string(h.Owner)), int64(h.Fence), int64(h.Seat), int64(h.MaxHolders), h.Since.UnixNano(), int64(h.TTL), m.name(h.Text))
		m.yes(h.HandedOver, h.Revoked, h.Started)
	}
	m.numbers(int64(len(s.Queue)))
	for _, w := range s.Queue {
		m.numbers(m.name(string(w.Owner)), int64(w.MaxHolders), int64(w.Parked), m.name(w.Work), m.name(w.Event))
	}
	m.numbers(int64(len(s.Ended)))
	for _, e := range s.Ended {
		m.numbers(m.name(string(e.Owner)), int64(e.Fence), int64(e.How))
	}
	c := s.Closed
	if m.yes(c.For > 0); c.For > 0 {
		m.numbers(c.Since.UnixNano(), int64(c.For), m.name(string(c.Result)), m.name(c.Text))
	}
}

func (m *modelInput) end() {
	_, err := m.to.Write(append(bytes.TrimSpace(m.line), '\n'))
	m.ended = err != nil // the program ends at the first difference
	m.line = m.line[:0]
	m.lines++
}

// invariant is a state, and whether it satisfies the invariant.
func (m *modelInput) invariant(s rules.State) {
	m.state(s)
	m.yes(s.Broken() == "")
}

// invariants writes random states, half of them damaged, and returns which sentences of the invariant they break.
func (m *modelInput) invariants(seed uint64) (broken map[string]bool) {
	c := &chance{Rand: rand.New(rand.NewPCG(seed, 8)), now: noon, owners: people[:6], holders: 4, places: 6, long: 8 * tick}
	broken = map[string]bool{}
	for n := range block {
		s := c.state()
		if n%2 == 0 {
			c.damage(&s)
		}
		broken[s.Broken()] = true
		m.invariant(s)
		m.end()
	}
	return broken
}

// damage changes one number or owner to another one that the model has, too.
func (c *chance) damage(s *rules.State) {
	if len(s.Holders) > 0 {
		h := &s.Holders[c.IntN(len(s.Holders))]
		switch c.IntN(5) {
		case 0:
			h.Fence += driver.Fence(c.IntN(9) - 4)
		case 1:
			h.Owner = c.owners[c.IntN(len(c.owners))]
		case 2:
			h.Seat = c.IntN(3)
		case 3:
			h.MaxHolders = 1 + c.IntN(3)
		case 4:
			h.Started = !h.Started
		}
	}
	if len(s.Ended) > 0 {
		m := &s.Ended[c.IntN(len(s.Ended))]
		m.Owner, m.Fence = c.owners[c.IntN(len(c.owners))], m.Fence+driver.Fence(c.IntN(12))
	}
	if c.one(8) {
		s.Closed = rules.Closed{Since: c.now, For: tick}
	}
}

// decide is d, and writes each step of it. An Inspect changes nothing, and has no step.
func (m *modelInput) decide(d decide) decide {
	return func(b rules.Book, s rules.State, c rules.Clock, r driver.Request) (rules.State, bool, driver.Answer, rules.Basis) {
		if r.Kind != driver.Inspect {
			m.step(d, b, s, c, r)
		}
		return d(b, s, c, r)
	}
}

func (m *modelInput) step(d decide, b rules.Book, s rules.State, c rules.Clock, r driver.Request) {
	if c.Late.Equal(thisWrite) {
		c.Late = time.Unix(1<<33, 0) // a time.Duration is long enough from all other times until then
	}
	after, changed, a, _ := d(b, s, c, r)
	if !changed {
		after = s
	}
	m.invariant(s)
	m.numbers(int64(b.Places), int64(b.Marks), c.Early.UnixNano(), c.Late.UnixNano())
	m.yes(c.Sure)
	m.numbers(cmp.Or(c.Fences, c.Early).UnixMicro())
	m.numbers(int64(r.Kind-driver.Acquire), m.name(string(r.Owner)), int64(r.Fence), int64(r.TTL), int64(r.MaxHolders), m.name(r.Holder))
	m.yes(r.Join)
	m.numbers(int64(r.Parked), m.name(r.Work), m.name(r.Event))
	m.yes(r.AtOnce, r.Effect)
	m.numbers(m.name(string(r.Result)))
	m.state(after)
	m.owners(a.HandedOver)
	m.owners(a.Wake)
	m.numbers(int64(a.Outcome-driver.Granted), int64(a.Fence), int64(a.Seat), int64(a.TTL), int64(a.Position))
	m.yes(a.Covered)
	m.end()
}
