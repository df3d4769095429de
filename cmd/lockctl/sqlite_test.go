package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

// What is wrong with a file is named, with what to do. Who looks at locks makes no file.
func TestFilesOfSQLite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, text := "sqlite://"+filepath.Join(dir, "missing.db"), filepath.Join(dir, "text.db")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("this is no database. ", 100)), 0o600))
	good := at(t, "sqlite://"+filepath.Join(dir, "locks%20of%20a%3Fb.db"))
	lease := good.take("k", "holder")
	tells(t, missing, exit.Config, "there is no such file; lockctl run and serve make it", "show k")
	tells(t, missing, exit.Config, "there is no such file", "list")
	tells(t, missing, exit.Config, "there is no such file", "check")
	tells(t, missing, exit.Config, "there is no such file", "revoke --fence 1 k")
	tells(t, "sqlite://"+dir+"/none/locks.db", exit.Config, "unable to open database file", "run k -- true")
	tells(t, "sqlite://"+text, exit.Damaged, "it is no database", "show k")
	tells(t, "sqlite://locks.db", exit.Config, "sqlite:///FILE", "run k -- true")
	tells(t, good.url+"?mode=ro", exit.Permission, "only reads", "run k2 -- true")
	tells(t, good.url+"?table=other", exit.Config, "lockctl schema", "show k")
	tells(t, good.url, 0, "holder (4f1c)", "show k")
	tells(t, good.url+"?table=other", 0, "", "run k -- true") // another table
	tells(t, good.url, exit.Busy, "held by holder", "run -n k -- true")
	assert.NoFileExists(t, filepath.Join(dir, "missing.db"))
	file, err := os.Stat(filepath.Join(dir, "locks of a?b.db"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), file.Mode(), "the owners are secret")
	require.NoError(t, good.renew(lease))
}
