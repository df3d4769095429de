package operate

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lockstore/pgstore"
)

// Schema is lockctl schema.
func Schema() *cobra.Command {
	var table string
	cmd := &cobra.Command{
		Use:   "schema [flags]",
		Short: "Print the SQL that makes a table of locks in PostgreSQL",
		Long: `Print the SQL that makes a table of locks in PostgreSQL, and the functions that change it.
Run it before the first use, with the rights to create both. Run it again before programs of
another version come: it changes no lock. It sends nothing to a store.`,
		Example: `  lockctl schema | psql -v ON_ERROR_STOP=1 -1 -h HOST -U USER DATABASE`,
		Args:    exit.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := pgstore.Schema(table)
			if err != nil {
				return err
			}
			_, err = io.WriteString(exit.Writer{To: cmd.OutOrStdout()}, text)
			return err
		},
	}
	cmd.Flags().StringVar(&table, "table", string(pgstore.DefaultTable), "`NAME` of the table, as table in the store's URL")
	return cmd
}
