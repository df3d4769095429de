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
	//go:embed address.lua
	addressLua string
	//go:embed free.lua
	freeLua string
	//go:embed alone.lua
	aloneLua string
	//go:embed rules.lua
	rulesLua string
)

// script is the Lua script of all requests. Most read an entry, change it by the rules, write it and answer. free.lua and
// alone.lua are for an Acquire of a free key and for a release of a lease that nobody waits for: they answer without the
// rules. Without them these requests take 1.7 times as long. It is made for the first request, and its fields have the
// type any, as command arguments do: so Go converts them once.
var script = sync.OnceValue(func() (s struct{ source, sha any }) {
	text := beginLua + addressLua + freeLua + aloneLua + rulesLua
	sum := sha1.Sum([]byte(text)) // the server's name of a script
	s.source, s.sha = text, hex.EncodeToString(sum[:])
	return s
})
