package operate

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

var dialects = map[string]*sqlstore.Dialect{"postgres": sqlstore.PostgreSQL, "dsql": sqlstore.DSQL, "mysql": sqlstore.MySQL, "sqlite": sqlstore.SQLite}

func Schema() *cobra.Command {
	var dialect, table string
	cmd := &cobra.Command{
		Use:   "schema [flags]",
		Short: "Print the SQL that makes a table of locks",
		Long: `Print the SQL that makes a table of locks. Run it before the first use, with the right to create
tables. If it runs again it changes nothing. It sends nothing to a store. lockctl run and serve make
a file of SQLite, and the table in it, themselves.`,
		Example: `  lockctl schema | psql -v ON_ERROR_STOP=1 -1 -h HOST -U USER DATABASE
  lockctl schema --dialect mysql | mariadb -h HOST -u USER DATABASE`,
		Args: exit.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := dialects[dialect]
			if d == nil {
				return exit.WrongUsage("--dialect is %.40q; want one of %s", dialect, strings.Join(slices.Sorted(maps.Keys(dialects)), ", "))
			}
			text, err := sqlstore.Table{Dialect: d, Name: table}.Schema()
			if err != nil {
				return err
			}
			_, err = io.WriteString(exit.Writer{To: cmd.OutOrStdout()}, text)
			return err
		},
	}
	cmd.Flags().StringVar(&dialect, "dialect", "postgres", "`NAME` of the SQL: postgres, dsql, mysql (also MariaDB) or sqlite")
	cmd.Flags().StringVar(&table, "table", sqlstore.DefaultTable, "`NAME` of the table, as table in the store's URL")
	return cmd
}
