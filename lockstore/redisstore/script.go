package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
)

var (
	//go:embed get.lua
	getLua string
	//go:embed alone.lua
	aloneLua string
	//go:embed time.lua
	timeLua string
	//go:embed free.lua
	freeLua string
	//go:embed head.lua
	headLua string
	//go:embed queue.lua
	queueLua string
	//go:embed join.lua
	joinLua string
	//go:embed extend.lua
	extendLua string
	//go:embed next.lua
	nextLua string
	//go:embed left.lua
	leftLua string
	//go:embed entry.lua
	entryLua string
	//go:embed rules.lua
	rulesLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed renew.lua
	renewLua string
	//go:embed release.lua
	releaseLua string
	//go:embed abandon.lua
	abandonLua string
	//go:embed leave.lua
	leaveLua string
	//go:embed started.lua
	startedLua string
	//go:embed complete.lua
	completeLua string
	//go:embed resolve.lua
	resolveLua string
	//go:embed revoke.lua
	revokeLua string
	//go:embed inspect.lua
	inspectLua string
	//go:embed listed.lua
	listedLua string
	//go:embed finish.lua
	finishLua string
	//go:embed wake.lua
	wakeLua string
	//go:embed address.lua
	addressLua string
)

type scriptName int

const (
	acquireScript scriptName = iota
	renewScript
	releaseScript
	abandonScript
	leaveScript
	startedScript
	completeScript
	resolveScript
	revokeScript
	inspectScript
	wakeScript
	addressScript
	scriptNames
)

// script is a Lua script. Its fields have the type any, as command arguments do. So Go
// converts them once, and not for every request.
type script struct{ source, sha any }

// newScript returns a function that makes the script when it is first called: to make all of them takes longer than
// the rest of a store's start.
func newScript(source func() string) func() script {
	return sync.OnceValue(func() script {
		text := source()
		sum := sha1.Sum([]byte(text)) // the server's name of a script
		return script{text, hex.EncodeToString(sum[:])}
	})
}

// decision is a script that reads an entry, changes it by the rules of one kind of request,
// writes it and answers. What is in front of entry.lua may have the answer without all that: it has the rules for common
// requests a second time, and the comparison with the rule book is for both.
func decision(alone, free, most, kind string) func() script {
	return newScript(func() string {
		return getLua + alone + timeLua + free + headLua + wakeLua + queueLua + most +
			entryLua + rulesOf("\nlocal function decide()\n"+kind+"end\n"+finishLua)
	})
}

// rulesOf puts those functions of rules.lua in front of a text that it calls. To make a function takes a server
// as long as a small one runs.
func rulesOf(text string) string {
	parts := strings.Split(rulesLua, "\n\n")
	for _, part := range slices.Backward(parts) { // a function calls those in front of it
		_, behind, is := strings.Cut(part, "local function ")
		if name, _, _ := strings.Cut(behind, "("); !is || strings.Contains(text, name+"(") {
			text = part + "\n\n" + text
		}
	}
	return text
}

var scripts = [scriptNames]func() script{
	acquireScript:  decision("", freeLua, joinLua, acquireLua),
	renewScript:    decision("", "", extendLua, renewLua),
	releaseScript:  decision(aloneLua, "", nextLua, releaseLua),
	abandonScript:  decision("", "", "", abandonLua),
	leaveScript:    decision("", "", leftLua, leaveLua),
	startedScript:  decision("", "", "", startedLua),
	completeScript: decision("", "", "", completeLua),
	resolveScript:  decision("", "", "", resolveLua),
	revokeScript:   decision("", "", "", listedLua+revokeLua),
	inspectScript:  decision("", "", "", listedLua+inspectLua),
	wakeScript:     newScript(func() string { return wakeLua + "wake(KEYS[1], ARGV[2])\nreturn 'R'\n" }),
	addressScript:  newScript(func() string { return addressLua }),
}
