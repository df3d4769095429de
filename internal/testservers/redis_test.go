package testservers

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServerKeepsItsPortOverRestart(t *testing.T) {
	for _, program := range []string{RedisServer, ValkeyServer} {
		t.Run(program, func(t *testing.T) {
			s := Start(t, program, "--appendonly", "yes")
			answer, err := ask(s.Addr, "SET k v")
			require.NoError(t, err)
			require.Equal(t, "+OK", answer)

			s.Kill()
			_, err = ask(s.Addr, "PING")
			require.Error(t, err, "a killed server must not answer")

			s.Restart()
			answer, err = ask(s.Addr, "GET k")
			require.NoError(t, err)
			require.Equal(t, "v", answer, "the append-only file is read again")
		})
	}
}

func TestPausedServerDoesNotAnswer(t *testing.T) {
	s := Start(t, RedisServer)
	s.Pause()
	_, err := ask(s.Addr, "PING")
	require.Error(t, err)
	s.Resume()
	answer, err := ask(s.Addr, "PING")
	require.NoError(t, err)
	require.Equal(t, "+PONG", answer)
}

func TestClusterOwnsAllSlots(t *testing.T) {
	for _, program := range []string{RedisServer, ValkeyServer} {
		t.Run(program, func(t *testing.T) {
			for _, addr := range Cluster(t, program) {
				info, err := ask(addr, "CLUSTER INFO")
				require.NoError(t, err)
				require.True(t, strings.Contains(info, "cluster_slots_ok:16384"), info)
			}
		})
	}
}

func TestServerThatCannotStartSaysWhy(t *testing.T) {
	s := Start(t, RedisServer)
	s.Kill()
	path := s.spec.command(0, s.Dir).Path
	s.spec.command = func(int, string) *exec.Cmd { return exec.Command(path, "--no-such-setting", "x") }
	err := s.run()
	s.Kill()
	require.ErrorContains(t, err, "no-such-setting")
	require.ErrorIs(t, err, errEnded, "another port is tried")
}
