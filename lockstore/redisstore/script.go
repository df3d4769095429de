package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
)

var (
	//go:embed entry.lua
	entryLua string
	//go:embed save.lua
	saveLua string
	//go:embed queue.lua
	queueLua string
	//go:embed proof.lua
	proofLua string
	//go:embed wake.lua
	wakeLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed renew.lua
	renewLua string
	//go:embed release.lua
	releaseLua string
	//go:embed inspect.lua
	inspectLua string
	//go:embed revoke.lua
	revokeLua string
	//go:embed started.lua
	startedLua string
	//go:embed complete.lua
	completeLua string
	//go:embed resolve.lua
	resolveLua string
)

type scriptName int

const (
	acquireScript scriptName = iota
	renewScript
	releaseScript
	inspectScript
	revokeScript
	wakeScript
	startedScript
	completeScript
	resolveScript
	scriptNames
)

// script is a Lua script. Its fields have the type any, as command arguments do. So Go
// converts them once, and not for every request.
type script struct{ source, sha any }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) // the server's name of a script
	return script{source, hex.EncodeToString(sum[:])}
}

// decision is a script that reads an entry and answers. Whatever it returns, the answer
// rests on a write.
func decision(parts ...string) script {
	return newScript("local wrote = false\nlocal function decide()\n" + entryLua + strings.Join(parts, "") + "end\n" + proofLua)
}

func newScripts() [scriptNames]script {
	return [...]script{
		acquireScript:  decision(queueLua, acquireLua),
		renewScript:    decision(saveLua, renewLua),
		releaseScript:  decision(queueLua, saveLua, wakeLua, releaseLua),
		inspectScript:  decision(queueLua, inspectLua),
		wakeScript:     newScript(wakeLua + "wake(KEYS[1])\nreturn 'R'\n"),
		revokeScript:   decision(queueLua, saveLua, revokeLua),
		startedScript:  decision(saveLua, startedLua),
		completeScript: decision(saveLua, completeLua),
		resolveScript:  decision(saveLua, resolveLua),
	}
}
