package testservers

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestZooKeeper(t *testing.T) {
	s := ZooKeeper(t)
	require.NoError(t, answers(s.Addr, "srvr", "Mode: standalone"))
	s.Restart()
	require.NoError(t, answers(s.Addr, "srvr", "Mode: standalone"))
}

func TestEnsembleElectsAnotherLeader(t *testing.T) {
	e := ZooKeeperEnsemble(t)
	killed := e.Leader()
	killed.Kill()
	e.AwaitQuorum(killed)
	second := e.Leader()
	require.NotSame(t, killed, second)
	killed.Restart()
	e.AwaitQuorum(nil)
	paused := e.Leader()
	paused.Pause()
	e.AwaitQuorum(paused)
	require.NotSame(t, paused, e.Leader())
	paused.Resume()
	e.AwaitQuorum(nil)
}
