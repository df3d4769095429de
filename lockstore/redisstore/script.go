package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
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

// decision is a script that reads an entry, changes it by the rules of one kind of request, writes it and answers. short is for a
// release of a lease that nobody waits for, or an Acquire of a free key: it answers without the rules. Without it these requests take 1.7 times as long.
func decision(short, kind string) func() script {
	return newScript(func() string {
		return getLua + timeLua + short + wakeLua + entryLua + rulesLua + "\nlocal function decide()\n" + kind + "end\n" + finishLua
	})
}

var scripts = [scriptNames]func() script{
	acquireScript:  decision(freeLua, acquireLua),
	renewScript:    decision("", renewLua),
	releaseScript:  decision(aloneLua, releaseLua),
	abandonScript:  decision("", abandonLua),
	leaveScript:    decision("", leaveLua),
	startedScript:  decision("", startedLua),
	completeScript: decision("", completeLua),
	resolveScript:  decision("", resolveLua),
	revokeScript:   decision("", listedLua+revokeLua),
	inspectScript:  decision("", listedLua+inspectLua),
	wakeScript:     newScript(func() string { return wakeLua + "wake(KEYS[1], ARGV[2])\nreturn 'R'\n" }),
	addressScript:  newScript(func() string { return addressLua }),
}
