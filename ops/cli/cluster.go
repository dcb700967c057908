package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	placementv1 "github.com/mortise-lock/mortise/proto/mortise/placement/v1"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
)

func newCluster(a *app) *cobra.Command {
	return group("cluster", "Look at the cluster as a whole", "look", "mortise cluster status", newClusterStatus(a))
}

func newNode(a *app) *cobra.Command {
	return group("node", "Look at nodes", "look", "mortise node ls", newNodeLs(a))
}

func newShard(a *app) *cobra.Command {
	return group("shard", "Look at shards and move their leaders", "look", `
		mortise shard ls
		mortise shard transfer-leader 3 --to n2`,
		newShardLs(a), newShardTransfer(a))
}

func (a *app) clusterStatus(ctx context.Context, doing string) (*placementv1.ClusterStatusResponse, error) {
	return call(ctx, a, doing, func(ctx context.Context, cc *grpc.ClientConn) (*placementv1.ClusterStatusResponse, error) {
		return placementv1.NewPlacementServiceClient(cc).ClusterStatus(ctx, &placementv1.ClusterStatusRequest{})
	})
}

type nodeRow struct {
	ID             uint64 `json:"id"`
	Name           string `json:"name"`
	Region         string `json:"region"`
	Zone           string `json:"zone"`
	Address        string `json:"address"`
	GatewayAddress string `json:"gateway_address"`
	HTTPAddress    string `json:"http_address"`
	Reachable      bool   `json:"reachable"`
	Error          string `json:"error"`
	Version        string `json:"version"`
	PID            uint64 `json:"pid"`
	UptimeMS       uint64 `json:"uptime_ms"`
	Replicas       int    `json:"replicas"`
	Leaders        int    `json:"leaders"`
	DiskBytes      uint64 `json:"disk_bytes"`
	LowOnSpace     bool   `json:"low_on_space"`
	FsyncP50US     uint64 `json:"fsync_p50_us"`
	FsyncP99US     uint64 `json:"fsync_p99_us"`
}

type replicaRow struct {
	Replica uint64 `json:"replica"`
	Node    string `json:"node"`
	Role    string `json:"role"`
	Applied uint64 `json:"applied_index"`
	First   uint64 `json:"first_index"`
	Last    uint64 `json:"last_index"`
}

type shardRow struct {
	ID       uint32       `json:"id"`
	Region   string       `json:"region"`
	Leader   string       `json:"leader"`
	Term     uint64       `json:"term"`
	Commit   uint64       `json:"commit_index"`
	Holds    uint64       `json:"holds"`
	Waits    uint64       `json:"waits"`
	Sessions uint64       `json:"sessions"`
	Replicas []replicaRow `json:"replicas"`
}

// view is a status as rows.
func view(st *placementv1.ClusterStatusResponse) (nodes []nodeRow, shards []shardRow) {
	nodes, shards = []nodeRow{}, []shardRow{} // an empty list in JSON, not null
	names := map[uint64]string{}
	said := map[uint64]*placementv1.NodeStatus{}
	for _, s := range st.Nodes {
		said[s.Node] = s
	}
	for _, n := range st.Map.Nodes {
		names[n.Id] = n.Name
		s := said[n.Id]
		r := nodeRow{ID: n.Id, Name: n.Name, Region: n.Region, Zone: n.Zone, Address: n.Address, GatewayAddress: n.GatewayAddress, HTTPAddress: n.HttpAddress,
			Reachable: s.GetReachable(), Error: s.GetError(), Version: s.GetVersion(), PID: s.GetPid(), UptimeMS: s.GetUptimeMs(),
			Replicas: len(s.GetReplicas()), DiskBytes: s.GetDiskBytes(), LowOnSpace: s.GetLowOnSpace(), FsyncP50US: s.GetFsyncP50Us(), FsyncP99US: s.GetFsyncP99Us()}
		for _, x := range s.GetReplicas() {
			if x.Role == "LEADER" {
				r.Leaders++
			}
		}
		nodes = append(nodes, r)
	}
	for _, m := range st.Map.Shards {
		row := shardRow{ID: m.Id, Region: m.Region, Replicas: []replicaRow{}}
		for _, rep := range m.Replicas {
			r := replicaRow{Replica: rep.Id, Node: names[rep.Node], Role: "UNREACHABLE"}
			for _, x := range said[rep.Node].GetReplicas() {
				if x.Shard != m.Id {
					continue
				}
				r.Role, r.Applied, r.First, r.Last = x.Role, x.AppliedIndex, x.FirstIndex, x.LastIndex
				// A deposed leader may not know it yet: the higher term is right.
				if x.Role == "LEADER" && x.Term >= row.Term {
					row.Leader, row.Term, row.Commit = names[rep.Node], x.Term, x.CommitIndex
					row.Holds, row.Waits, row.Sessions = x.Holds, x.Waits, x.Registrations
				}
			}
			row.Replicas = append(row.Replicas, r)
		}
		shards = append(shards, row)
	}
	return nodes, shards
}

func newClusterStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Say in words how the cluster is",
		Long:  example("mortise cluster status") + "Says in words what is wrong, if anything. A shard without a leader counts as a\ncluster without quorum.\n" + exits(69),
		Args:  exactArgs(0, "no argument"),
	}
	a.reading(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := a.clusterStatus(cmd.Context(), "cluster status")
		if err != nil {
			return err
		}
		nodes, shards := view(st)
		var lost, down, full []string
		var holds, waits uint64
		for _, s := range shards {
			holds, waits = holds+s.Holds, waits+s.Waits
			if s.Leader == "" {
				lost = append(lost, fmt.Sprint(s.ID))
			}
		}
		for _, n := range nodes {
			if !n.Reachable {
				down = append(down, n.Name)
			}
			if n.LowOnSpace {
				full = append(full, n.Name)
			}
		}
		health := "healthy"
		switch {
		case len(lost) > 0:
			health = fmt.Sprintf("%d of %d shards have no leader: %s", len(lost), len(shards), strings.Join(lost, ", "))
		case len(full) > 0:
			health = fmt.Sprintf("new locks are refused by shards that %s lead: the disk is nearly full", strings.Join(full, ", "))
		case len(down) > 0:
			health = fmt.Sprintf("serving; %d of %d nodes don't answer: %s", len(down), len(nodes), strings.Join(down, ", "))
		}
		if a.output == "json" {
			err = a.printJSON(map[string]any{"cluster_id": st.Map.ClusterId, "health": health, "map_generation": st.Map.Generation, "nodes": len(nodes),
				"nodes_down": len(down), "nodes_low_on_space": len(full), "shards": len(shards), "shards_without_leader": len(lost), "holds": holds, "waits": waits}, "  ")
		} else {
			_, err = fmt.Fprintf(a.Out, "cluster %s: %s\n%s, %s, map generation %d\n%s, %s\n", st.Map.ClusterId, health, plural(len(nodes), "node"),
				plural(len(shards), "shard"), st.Map.Generation, plural(int(holds), "hold"), plural(int(waits), "waiter"))
		}
		if err == nil && len(lost) > 0 {
			return &Error{Kind: Unreachable, Err: fmt.Errorf("%s", health), Next: "mortise shard ls"}
		}
		return err
	}
	return c
}

func newNodeLs(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List nodes",
		Long:    example("mortise node ls -o json") + "Lists the nodes of the placement map, each with what it says of itself. LEADS is\nthe replicas that lead, of all that the node has.\n" + exits(69),
		Aliases: []string{"list"},
		Args:    exactArgs(0, "no argument"),
	}
	a.reading(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := a.clusterStatus(cmd.Context(), "node ls")
		if err != nil {
			return err
		}
		nodes, _ := view(st)
		var table [][]string
		for _, n := range nodes {
			state, pid, leads, fsync := "up", fmt.Sprint(n.PID), fmt.Sprintf("%d/%d", n.Leaders, n.Replicas), (time.Duration(n.FsyncP99US) * time.Microsecond).String()
			if !n.Reachable {
				state, pid, leads, fsync = "down", "-", "-", "-"
			} else if n.LowOnSpace {
				state = "full"
			}
			table = append(table, []string{fmt.Sprint(n.ID), n.Name, n.Region, orDash(n.Zone), state, n.Address, orDash(n.GatewayAddress), orDash(n.HTTPAddress),
				pid, leads, fsync})
		}
		return a.print(map[string]any{"nodes": nodes}, "ID NAME REGION ZONE STATE ADDRESS GATEWAY HTTP PID LEADS FSYNC-P99", table)
	}
	return c
}

func newShardLs(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List shards",
		Long:    example("mortise shard ls -o json") + "Lists the Raft groups with their leaders and replicas. Shard 0 is the meta shard,\nwhich holds the placement map; the others hold the locks, each those whose names\nhash to it. NODES are the nodes with a replica.\n" + exits(69),
		Aliases: []string{"list"},
		Args:    exactArgs(0, "no argument"),
	}
	a.reading(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := a.clusterStatus(cmd.Context(), "shard ls")
		if err != nil {
			return err
		}
		_, shards := view(st)
		var table [][]string
		for _, s := range shards {
			var on []string
			for _, r := range s.Replicas {
				on = append(on, r.Node)
			}
			table = append(table, []string{fmt.Sprint(s.ID), s.Region, orDash(s.Leader), fmt.Sprint(s.Term), strings.Join(on, ","), fmt.Sprint(s.Holds), fmt.Sprint(s.Waits), fmt.Sprint(s.Sessions)})
		}
		return a.print(map[string]any{"shards": shards}, "ID REGION LEADER TERM NODES HOLDS WAITS SESSIONS", table)
	}
	return c
}

func newShardTransfer(a *app) *cobra.Command {
	var to string
	var yes, wait bool
	c := &cobra.Command{
		Use:   "transfer-leader SHARD --to NODE",
		Short: "Move a shard's leadership to another node",
		Long:  example("mortise shard transfer-leader 3 --to n2") + "Moves the leadership. Holders and waiters notice nothing but a pause of\nmilliseconds. The node must have a replica of the shard; it is named by name or\nid, as mortise node ls shows them.\n" + exits(66, 69),
		Args:  exactArgs(1, "one shard id"),
	}
	a.asking(c)
	c.Flags().StringVar(&to, "to", "", "required: the node that shall lead")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&wait, "wait", true, "return when the node leads; it always does")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return usagef("mortise shard ls", "the shard must be a number; %q is not", args[0])
		}
		if to == "" {
			return usagef("mortise shard transfer-leader "+args[0]+" --to NODE", "--to is required")
		}
		st, err := a.clusterStatus(cmd.Context(), "shard transfer-leader")
		if err != nil {
			return err
		}
		node := uint64(0)
		for _, n := range st.Map.Nodes {
			if n.Name == to || fmt.Sprint(n.Id) == to {
				node = n.Id
			}
		}
		if node == 0 {
			return &Error{Kind: NotFound, Err: fmt.Errorf("--to: there is no node %s", to), Next: "mortise node ls"}
		}
		if err := a.confirm(cmd, yes, fmt.Sprintf("this moves the leadership of shard %d to node %s", id, to)); err != nil {
			return err
		}
		if _, err := call(cmd.Context(), a, "shard transfer-leader", func(ctx context.Context, cc *grpc.ClientConn) (*placementv1.TransferLeaderResponse, error) {
			return placementv1.NewPlacementServiceClient(cc).TransferLeader(ctx, &placementv1.TransferLeaderRequest{Shard: uint32(id), ToNode: node})
		}); err != nil {
			return err
		}
		a.sayf("node %s leads shard %d", to, id)
		return nil
	}
	return c
}
