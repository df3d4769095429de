package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

var (
	//go:embed entry.lua
	entryLua string
	//go:embed keep.lua
	keepLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed renew.lua
	renewLua string
	//go:embed release.lua
	releaseLua string
	//go:embed inspect.lua
	inspectLua string
)

type scriptName int

const (
	acquireScript scriptName = iota
	renewScript
	releaseScript
	inspectScript
	scriptNames
)

// script is a Lua script. Its fields have the type any, as command arguments do. So Go
// converts them once, and not for every request.
type script struct{ source, sha any }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) // the server's name of a script
	return script{source, hex.EncodeToString(sum[:])}
}

func newScripts() [scriptNames]script {
	return [...]script{
		acquireScript: newScript(entryLua + acquireLua),
		renewScript:   newScript(entryLua + keepLua + renewLua),
		releaseScript: newScript(entryLua + keepLua + releaseLua),
		inspectScript: newScript(entryLua + inspectLua),
	}
}
