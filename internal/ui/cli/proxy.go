package cli

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) proxy() *cobra.Command {
	var listen string
	var auth bool
	c := &cobra.Command{
		Use: "proxy", Short: "Only the proxy, in the foreground", Args: cobra.NoArgs,
		Long: `Only the proxy, in the foreground, for CI and sidecars. It is cooperative: it sees and judges what clients choose to
send through it, and holds nobody who does not. With --auth the URL that it prints holds a token; without it whoever is on
this computer may ask, so no request gets a credential.`,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			at, err := netip.ParseAddrPort(listen)
			if err != nil {
				return usagef("--listen %q: want ADDRESS:PORT", listen)
			}
			if !at.Addr().IsLoopback() {
				return usagef("--listen %s: beyond loopback it would be everybody's proxy", listen)
			}
			p, err := a.project()
			if err != nil {
				return err
			}
			if err := p.host.Prepare(p.checkout, a.Now()); err != nil {
				return err
			}
			err = a.Serve(cmd.Context(), Serve{
				Host: p.host, Project: p.checkout.Project, Dir: p.checkout.Dir, Listen: listen, Auth: auth,
				Listening: func(url, ca string) {
					fmt.Fprintln(a.Stdout, url)
					a.say("cooperative: it holds nobody who does not use it; QUIC, UDP and what ignores the proxy get out")
					if !auth {
						a.say("no credential is put on a request: anybody on this computer may ask (--auth)")
					}
					a.say("clients must trust %s; fy allow HOST grants", ca)
				},
			})
			if errors.Is(err, control.ErrTaken) {
				return hint(errors.New("this project's supervisor runs"), "fy supervisor stop")
			}
			return err
		}),
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:3128", "`ADDR` to listen on")
	c.Flags().BoolVar(&auth, "auth", false, "want a token, which the printed URL holds")
	return c
}
