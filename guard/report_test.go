package guard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Alarms and dashboards match these words.
func TestOutcomesKeepTheirWords(t *testing.T) {
	require.Equal(t, []Outcome{"ok", "error", "panic", "lost", "busy", "deadline", "invalid", "corrupt", "unavailable", "unknown", "acquired", "renewed", "released"},
		[]Outcome{OutcomeOK, OutcomeError, OutcomePanic, OutcomeLost, OutcomeBusy, OutcomeDeadline, OutcomeInvalid, OutcomeCorrupt, OutcomeUnavailable, OutcomeUnknown,
			OutcomeAcquired, OutcomeRenewed, OutcomeReleased})
}
