package tell

import (
	"testing"

	"github.com/lambdalock/lambdalock/internal/watchdog"
)

func TestMain(m *testing.M) {
	watchdog.Start()
	m.Run()
}
