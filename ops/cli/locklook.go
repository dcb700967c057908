package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os/user"
	"strings"
	"time"

	lockv1 "github.com/mortise-lock/mortise/proto/mortise/lock/v1"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
)

// holderRow and lockRow are the documented JSON of lock ls, show and watch.
type holderRow struct {
	Client       string `json:"client"`
	Token        uint64 `json:"token"`
	Mode         string `json:"mode"`
	Permits      uint32 `json:"permits"`
	HeldForMS    uint64 `json:"held_for_ms"`
	GrantedSince string `json:"granted_at"`
}

type waiterRow struct {
	Client    string `json:"client"`
	Mode      string `json:"mode"`
	Permits   uint32 `json:"permits"`
	WaitingMS uint64 `json:"waiting_ms"`
}

type lockRow struct {
	Name      string      `json:"name"`
	Mode      string      `json:"mode"`
	Limit     uint32      `json:"limit"`
	Holders   []holderRow `json:"holders"`
	Waiters   uint64      `json:"waiters"`
	Queue     []waiterRow `json:"queue"`
	DelayedMS uint64      `json:"delayed_ms"`
	Shard     uint32      `json:"shard"`
}

func modeName(m lockv1.Mode) string {
	if m == lockv1.Mode_MODE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(m.String(), "MODE_"))
}

func rowOf(d *lockv1.DescribeResponse) lockRow {
	r := lockRow{Name: d.Name, Mode: modeName(d.Mode), Limit: d.Limit, Holders: []holderRow{}, Waiters: d.Waiters, Queue: []waiterRow{}, DelayedMS: d.DelayedMs, Shard: d.Shard}
	for _, h := range d.Holders {
		r.Holders = append(r.Holders, holderRow{h.Client, h.Token, modeName(h.Mode), h.Permits, h.HeldForMs, time.UnixMilli(h.GrantedUnixMs).UTC().Format(time.RFC3339Nano)})
	}
	for _, w := range d.Queue {
		r.Queue = append(r.Queue, waiterRow{w.Client, modeName(w.Mode), w.Permits, w.WaitingMs})
	}
	return r
}

// cells is a lock as table rows, one per holder.
func (r lockRow) cells() [][]string {
	if len(r.Holders) == 0 {
		holder := "-"
		if r.DelayedMS > 0 {
			holder = "(nobody for " + ms(r.DelayedMS) + ": lock-delay)"
		}
		return [][]string{{r.Name, orDash(r.Mode), holder, "-", "-", fmt.Sprint(r.Waiters)}}
	}
	var out [][]string
	for _, h := range r.Holders {
		out = append(out, []string{r.Name, h.Mode, h.Client, fmt.Sprint(h.Token), ms(h.HeldForMS), fmt.Sprint(r.Waiters)})
	}
	return out
}

const lockHeader = "NAME MODE HOLDER TOKEN HELD WAITERS"

func locks(cc *grpc.ClientConn) lockv1.LockServiceClient { return lockv1.NewLockServiceClient(cc) }

func newLockLs(a *app) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:     "ls [PREFIX]",
		Short:   "List the locks in use",
		Long:    example("mortise lock ls invoice/ -o json") + "Lists the locks that are held, waited for or delayed, in order of name; with a\nprefix, those whose names begin with it.\n" + exits(69),
		Aliases: []string{"list"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("mortise lock ls PREFIX", "mortise lock ls takes at most one prefix; it got %d arguments", len(args))
			}
			return nil
		},
	}
	a.reading(c)
	c.Flags().IntVar(&limit, "limit", 1000, "show at most this many")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		prefix := strings.Join(args, "")
		if limit < 1 {
			return usagef("mortise lock ls --limit 1000", "--limit must be 1 or more; %d is not", limit)
		}
		rows := []lockRow{}
		page, more := "", true
		for more && len(rows) < limit {
			r, err := call(cmd.Context(), a, "lock ls", func(ctx context.Context, cc *grpc.ClientConn) (*lockv1.ListResponse, error) {
				return locks(cc).List(ctx, &lockv1.ListRequest{Prefix: prefix, PageToken: page, PageSize: new(uint32(min(limit-len(rows), 1000)))})
			})
			if err != nil {
				return err
			}
			for _, d := range r.Locks {
				rows = append(rows, rowOf(d))
			}
			page, more = r.NextPageToken, r.NextPageToken != ""
		}
		var table [][]string
		for _, r := range rows {
			table = append(table, r.cells()...)
		}
		if more {
			a.sayf("more locks follow; raise --limit above %d, or give a longer prefix", limit)
		}
		return a.print(map[string]any{"locks": rows, "truncated": more}, lockHeader, table)
	}
	return c
}

func (a *app) describe(ctx context.Context, name string) (lockRow, error) {
	d, err := call(ctx, a, "lock show "+name, func(ctx context.Context, cc *grpc.ClientConn) (*lockv1.DescribeResponse, error) {
		return locks(cc).Describe(ctx, &lockv1.DescribeRequest{Name: name})
	})
	if err != nil {
		return lockRow{}, err
	}
	r := rowOf(d)
	r.Name = name
	return r, nil
}

func newLockShow(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a lock and who waits",
		Long:  example("mortise lock show invoice/7") + "Shows who holds the lock and who waits for it, as of now (a linearizable read). A\nlock that is free is shown as such, with exit code 66.\n" + exits(66, 69),
		Args:  exactArgs(1, "one name"),
	}
	a.reading(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := a.describe(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if a.output == "json" {
			err = a.printJSON(r, "  ")
		} else if err = a.print(nil, lockHeader, r.cells()); err == nil && len(r.Queue) > 0 {
			var rows [][]string
			for i, w := range r.Queue {
				rows = append(rows, []string{fmt.Sprint(i), w.Client, w.Mode, ms(w.WaitingMS)})
			}
			fmt.Fprintln(a.Out)
			err = a.print(nil, "PLACE WAITER MODE WAITING", rows)
		}
		if err == nil && len(r.Holders) == 0 && r.Waiters == 0 && r.DelayedMS == 0 {
			return &Error{Kind: NotFound, Err: fmt.Errorf("lock %s is free", r.Name)}
		}
		return err
	}
	return c
}

func newLockWatch(a *app) *cobra.Command {
	var every time.Duration
	c := &cobra.Command{
		Use:   "watch NAME",
		Short: "Show a lock whenever it changes",
		Long:  example("mortise lock watch invoice/7 -o json") + "Looks at the lock again and again and shows it when its holders or queue changed.\nOne JSON line per change with -o json. Ends with INT, TERM or HUP.\n" + exits(69),
		Args:  exactArgs(1, "one name"),
	}
	a.reading(c)
	c.Flags().DurationVar(&every, "interval", 500*time.Millisecond, "how often to look, 100ms or more")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if every < 100*time.Millisecond {
			return usagef("mortise lock watch --interval 500ms NAME", "--interval must be 100ms or more; %v is not", every)
		}
		ctx, stop := a.untilSignal(cmd.Context(), nil)
		defer stop()
		last := ""
		for {
			r, err := a.describe(ctx, args[0])
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			if now := r.identity(); now != last {
				last = now
				if a.output == "json" {
					err = a.printJSON(r, "")
				} else {
					fmt.Fprintln(a.Out, time.Now().Format(time.TimeOnly))
					err = a.print(nil, lockHeader, r.cells())
				}
				if err != nil {
					return err
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(every):
			}
		}
	}
	return c
}

// identity is what must differ for a change: not the times that run.
func (r lockRow) identity() string {
	for i := range r.Holders {
		r.Holders[i].HeldForMS = 0
	}
	kept := append([]waiterRow(nil), r.Queue...)
	for i := range kept {
		kept[i].WaitingMS = 0
	}
	r.Queue, r.DelayedMS = kept, min(r.DelayedMS, 1)
	b, _ := json.Marshal(r) // plain fields only
	return string(b)
}

func newLockRelease(a *app) *cobra.Command {
	var force, yes bool
	var reason string
	var token uint64
	c := &cobra.Command{
		Use:   "release --force --reason TEXT NAME",
		Short: "End a hold against its holder's will",
		Long: example("mortise lock release --force --reason 'worker 17 is gone' invoice/7") + `Ends every hold of the lock, or the one with --token. The holder is told, but it
may still be running, and until it hears of it, it goes on: only a store that
checks fencing tokens refuses its writes. The release is logged for audit. It
shows what it is about to end and asks, unless --yes.
` + exits(66, 69),
		Args: exactArgs(1, "one name"),
	}
	a.asking(c)
	f := c.Flags()
	f.BoolVar(&force, "force", false, "required: a lock is otherwise released by its holder alone")
	f.StringVar(&reason, "reason", "", "required: why, for the audit log")
	f.Uint64Var(&token, "token", 0, "end only the hold with this token")
	f.BoolVar(&yes, "yes", false, "do not ask")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		again := "mortise lock release --force --reason TEXT " + name
		switch {
		case !force:
			return usagef(again, "a lock is released by its holder; ending it from outside takes --force")
		case reason == "":
			return usagef(again, "--reason is required: it goes to the audit log")
		}
		r, err := a.describe(cmd.Context(), name)
		if err != nil {
			return err
		}
		if len(r.Holders) == 0 {
			return &Error{Kind: NotFound, Err: fmt.Errorf("nobody holds %s", name), Next: "mortise lock show " + name}
		}
		plan := "this ends the hold of " + name + " by"
		for _, h := range r.Holders {
			if token == 0 || token == h.Token {
				plan += fmt.Sprintf(" %s (token %d, held for %s)", h.Client, h.Token, ms(h.HeldForMS))
			}
		}
		if err := a.confirm(cmd, yes, plan+"; the holder may still be running"); err != nil {
			return err
		}
		req := &lockv1.ForceReleaseRequest{Name: name, Reason: signed(reason)}
		if token != 0 {
			req.Token = &token
		}
		res, err := call(cmd.Context(), a, "lock release "+name, func(ctx context.Context, cc *grpc.ClientConn) (*lockv1.ForceReleaseResponse, error) {
			return locks(cc).ForceRelease(ctx, req)
		})
		if err != nil {
			return err
		}
		a.sayf("%s of %s ended", plural(len(res.Released), "hold"), name)
		return nil
	}
	return c
}

// signed adds who asked, as far as this machine knows.
func signed(reason string) string {
	if u, err := user.Current(); err == nil {
		return reason + " (by " + u.Username + ")"
	}
	return reason
}
