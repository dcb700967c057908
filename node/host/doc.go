// Package host runs a node: it puts goroutines, disk and network around the
// workers' pure loops and serves what gateways, other nodes and operators ask.
//
// # Life of a node
//
// Open takes the data directory, listens, and gossips. A directory without an
// identity waits for Bootstrap (asked for by `mortise server init` at any
// node); one with an identity starts its replicas at once. A directory that
// is empty although the cluster's map knows a node of that name is refused:
// a replica that has forgotten its votes must not come back under its id.
//
// # Goroutines
//
// One per worker (the loop), one that ticks, per gateway stream a reader and a
// writer, per peer those of package transport, the log store's two, and short
// ones for snapshots. Workers talk to nobody directly: everything reaches a
// worker through its inbox and leaves it as an effect that the loop carries
// out. Nothing waits for the disk but the log store's own goroutines.
//
// # Metrics
//
//	mortise_node_info{version}              1
//	mortise_node_replicas                   replicas hosted
//	mortise_node_leaders                    of these, leading and ready
//	mortise_node_sessions                   sessions registered in any shard hosted
//	mortise_node_holds, _waits              holds and waits in shards led
//	mortise_node_state_bytes                memory of all state machines
//	mortise_node_log_bytes                  memory of all live logs
//	mortise_node_proposals_total            entries proposed
//	mortise_node_commands_total             commands in them
//	mortise_node_applied_entries_total, _applied_commands_total
//	mortise_node_renewals_total             renewals acknowledged
//	mortise_node_reads_total, _read_rounds_total
//	mortise_node_expired_total              registrations that missed their deadline
//	mortise_node_refused_total              commands refused because of a limit
//	mortise_node_outcome_unknown_total      commands whose leader lost its office
//	mortise_node_misdirected_total          raft messages dropped as impossible
//	mortise_node_leader_changes_total       times a replica here came to lead
//	mortise_node_snapshots_written_total, _installed_total, _snapshot_errors_total
//	mortise_node_stalls_total               pauses of the whole process noticed
//	mortise_node_disk_stalls_total          leaderships given up for a slow disk
//	mortise_node_syncs_total                syncs of the log
//	mortise_node_sync_seconds{quantile}     0.5 and 0.99 over the last minute
//	mortise_node_disk_bytes                 size of the data directory
//	mortise_node_low_on_space               1 while new locks are refused for want of disk space
//	mortise_node_gateway_streams            gateways connected
//	mortise_node_slow_gateways_total        disconnected for not reading
//	mortise_node_transport_{sent,received,dropped,breaks,refused}_total
//	mortise_node_map_generation             generation of the placement map in use
package host
