package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) asks() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "asks", Short: "List what is held or was refused, and has no answer", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.Asks(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				if got == nil {
					got = []control.Ask{}
				}
				return a.printJSON(got)
			}
			if len(got) == 0 {
				fmt.Fprintln(a.Stdout, "nothing waits for an answer")
				return nil
			}
			rows := [][]string{{"ID", "HOST", "TIMES", "AGO", "WHO", ""}}
			for _, k := range got {
				held := ""
				if k.Held {
					held = "held"
				}
				rows = append(rows, []string{k.ID, escape(net.JoinHostPort(k.Host, strconv.Itoa(int(k.Port)))), fmt.Sprint(k.Count), ago(a.Now(), k.Since), escape(who(k.Process)), held})
			}
			table(a.Stdout, "", rows, func(row, col int, cell string) string {
				if row == 0 {
					return a.style.dim(cell)
				}
				if col == 5 {
					return a.style.yellow(cell)
				}
				return cell
			})
			fmt.Fprintln(a.Stdout, a.style.dim("fy ask allow ID, or fy ask deny ID"))
			return nil
		},
	})
}

// who names the program of an ask's process, as the box says.
func who(process json.RawMessage) string {
	var p struct {
		PID int    `json:"pid"`
		Exe string `json:"exe"`
	}
	if json.Unmarshal(process, &p) != nil || p.Exe == "" {
		return ""
	}
	return fmt.Sprintf("%s[%d]", filepath.Base(p.Exe), p.PID)
}
