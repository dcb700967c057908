package cli

import (
	"context"
	"fmt"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
)

func newSession(a *app) *cobra.Command {
	return group("session", "Look at sessions and end them", "look", `
		mortise session ls
		mortise session revoke --reason 'host is gone' ID`,
		newSessionLs(a), newSessionRevoke(a))
}

// maxSessions is the most that the service lists at once.
const maxSessions = 10_000

type sessionRow struct {
	ID     string `json:"id"`
	Client string `json:"client"`
	TTLMS  uint64 `json:"ttl_ms"`
	Holds  uint64 `json:"holds"`
	Waits  uint64 `json:"waits"`
	Shards uint32 `json:"shards"`
}

func newSessionLs(a *app) *cobra.Command {
	var client string
	var limit uint32
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List live sessions",
		Long:    example("mortise session ls --client payouts-") + "Lists live sessions that have asked for a lock at least once. HOLDS and WAITS are\nwhat they hold and wait for in all shards, SHARDS how many shards know them.\n" + exits(69),
		Aliases: []string{"list"},
		Args:    exactArgs(0, "no argument"),
	}
	a.reading(c)
	c.Flags().StringVar(&client, "client", "", "only clients whose name begins with this")
	c.Flags().Uint32Var(&limit, "limit", 1000, "show at most this many, up to 10000")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 1 || limit > maxSessions {
			return usagef("mortise session ls --limit 1000", "--limit must be 1 to %d; %d is not", maxSessions, limit)
		}
		r, err := call(cmd.Context(), a, "session ls", func(ctx context.Context, cc *grpc.ClientConn) (*lockv1.ListSessionsResponse, error) {
			return locks(cc).ListSessions(ctx, &lockv1.ListSessionsRequest{ClientPrefix: client, MaxSessions: &limit})
		})
		if err != nil {
			return err
		}
		rows := []sessionRow{}
		var table [][]string
		for _, s := range r.Sessions {
			rows = append(rows, sessionRow{s.Id, s.Client, s.TtlMs, s.Holds, s.Waits, s.Shards})
			table = append(table, []string{s.Id, s.Client, ms(s.TtlMs), fmt.Sprint(s.Holds), fmt.Sprint(s.Waits), fmt.Sprint(s.Shards)})
		}
		if r.Truncated {
			a.sayf("more sessions exist; raise --limit above %d, or use --client", limit)
		}
		return a.print(map[string]any{"sessions": rows, "truncated": r.Truncated}, "ID CLIENT TTL HOLDS WAITS SHARDS", table)
	}
	return c
}

func newSessionRevoke(a *app) *cobra.Command {
	var reason string
	var yes bool
	c := &cobra.Command{
		Use:   "revoke --reason TEXT ID",
		Short: "End a session from outside",
		Long:  example("mortise session revoke --reason 'host is gone' 7f2c910000000000000000000000beef") + "Ends the session in every shard, like an expiry: all its locks pass on. The\nclient is told, but may still be running. Session ids are those of mortise\nsession ls.\n" + exits(66, 69),
		Args:  exactArgs(1, "one session id, as session ls shows it"),
	}
	a.asking(c)
	c.Flags().StringVar(&reason, "reason", "", "required: why, for the audit log")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if reason == "" {
			return usagef("mortise session revoke --reason TEXT "+args[0], "--reason is required: it goes to the audit log")
		}
		if err := a.confirm(cmd, yes, "this ends session "+args[0]+" and frees all its locks; the client may still be running"); err != nil {
			return err
		}
		r, err := call(cmd.Context(), a, "session revoke", func(ctx context.Context, cc *grpc.ClientConn) (*lockv1.RevokeSessionResponse, error) {
			return locks(cc).RevokeSession(ctx, &lockv1.RevokeSessionRequest{Id: args[0], Reason: signed(reason)})
		})
		if err != nil {
			return err
		}
		a.sayf("session ended; %s freed", plural(int(r.HoldsReleased), "hold"))
		return nil
	}
	return c
}
