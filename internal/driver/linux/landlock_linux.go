package linux

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

func landlockABI() int { return 0 }

func landlockSteps(p *sysprog.Program, abi int, writable []string) (sysprog.Reg, error) {
	return 0, sandpit.ErrUnsupported
}
