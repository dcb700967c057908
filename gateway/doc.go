// Package gateway is what clients talk to: session streams and unary calls in,
// one stream per node out.
//
// All decisions are in package core, which one goroutine (the loop) runs. The
// others only move bytes: per client stream a reader and a writer, per node a
// connection with a reader and a writer, one that follows the placement map.
// They post core.Inputs to the loop's inbox and carry out core.Outputs. The
// loop takes everything that gathered in the inbox, steps through it, and then
// flushes one frame per node and stream, so that batches grow by themselves
// with the load.
//
// Nothing here waits while it holds a mutex. Every queue has a bound: the
// inbox (posters wait), a client's outbox (a client that does not read is
// disconnected; its session resumes or expires), a node's outbox (bounded by
// what clients may have outstanding).
//
// # Metrics
//
// All are of the gateway alone, without labels per name, client or session:
//
//	mortise_gateway_streams                    open session streams
//	mortise_gateway_calls                      unary calls in progress
//	mortise_gateway_outstanding_requests       requests accepted and not over, waits included
//	mortise_gateway_inflight_requests          of these, in flight at a node
//	mortise_gateway_unary_sessions             unary sessions remembered
//	mortise_gateway_nodes_connected            nodes whose stream is up
//	mortise_gateway_shards, …_shards_led       shards of the map; those whose leader is reachable
//	mortise_gateway_map_generation             generation of the map in use
//	mortise_gateway_calls_total{method,code}   finished unary calls
//	mortise_gateway_call_seconds{method}       their durations
//	mortise_gateway_stream_ops_total{op}       operations received on streams
//	mortise_gateway_stream_events_total{event} events sent on streams
//	mortise_gateway_slow_readers_total         clients disconnected for not reading
//	mortise_gateway_loop_batch                 inputs per pass of the loop
package gateway
