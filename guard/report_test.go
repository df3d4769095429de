package guard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Alarms and dashboards match these words.
func TestOutcomesKeepTheirWords(t *testing.T) {
	require.Equal(t, []Outcome{"ok", "error", "panic", "lost", "busy", "deadline", "invalid", "corrupt", "unavailable", "unknown", "replayed", "mismatch", "doubt", "noresult", "acquired", "renewed", "released"},
		[]Outcome{OutcomeOK, OutcomeError, OutcomePanic, OutcomeLost, OutcomeBusy, OutcomeDeadline, OutcomeInvalid, OutcomeCorrupt, OutcomeUnavailable, OutcomeUnknown,
			OutcomeReplayed, OutcomeMismatch, OutcomeInDoubt, OutcomeNoResult,
			outcomeAcquired, outcomeRenewed, outcomeReleased})
}
