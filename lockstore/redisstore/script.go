package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"sync"
)

var (
	//go:embed begin.lua
	beginLua string
	//go:embed free.lua
	freeLua string
	//go:embed alone.lua
	aloneLua string
	//go:embed wake.lua
	wakeLua string
	//go:embed rules.lua
	rulesLua string
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

// decision is a script that reads an entry, changes it by the rules of one kind of request, writes it and answers. short is for a
// release of a lease that nobody waits for, or an Acquire of a free key: it answers without the rules. Without it these requests take 1.7 times as long.
func decision(short, kind string) func() script {
	return newScript(func() string {
		return beginLua + short + wakeLua + rulesLua + "return decide(requests." + kind + ")\n"
	})
}

var scripts = [scriptNames]func() script{
	acquireScript:  decision(freeLua, "acquire"),
	renewScript:    decision("", "renew"),
	releaseScript:  decision(aloneLua, "release"),
	abandonScript:  decision("", "abandon"),
	leaveScript:    decision("", "leave"),
	startedScript:  decision("", "started"),
	completeScript: decision("", "complete"),
	resolveScript:  decision("", "resolve"),
	revokeScript:   decision("", "revoke"),
	inspectScript:  decision("", "inspect"),
	wakeScript:     newScript(func() string { return wakeLua + "wake(KEYS[1], ARGV[2])\nreturn 'R'\n" }),
	addressScript:  newScript(func() string { return addressLua }),
}
