package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

var (
	//go:embed entry.lua
	entryLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed renew.lua
	renewLua string
	//go:embed release.lua
	releaseLua string
	//go:embed inspect.lua
	inspectLua string
)

// script is a Lua script. Its fields are of type any because they are command
// arguments: so they are boxed once and not in every request.
type script struct{ source, sha any }

func newScript(source string) script {
	source = entryLua + source
	sum := sha1.Sum([]byte(source)) // how the server names a script
	return script{source, hex.EncodeToString(sum[:])}
}
