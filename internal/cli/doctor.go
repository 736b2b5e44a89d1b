package cli

import (
	"github.com/spf13/cobra"
)

// doctorCommand is sandpit doctor.
func (a *App) doctorCommand() *cobra.Command { return &cobra.Command{Use: "doctor"} }
