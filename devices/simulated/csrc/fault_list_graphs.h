// The names of the planted faults of graphs: capture.cpp, graph.cpp, replay.cpp, kernel.cpp, generator.cpp, allocator.cpp.

#pragma once

#define SIMULATED_GRAPH_FAULTS(F)                                           \
  F(capture_runs_work, "graphs.capture_runs_work")                          \
  F(is_capturing_false, "graphs.is_capturing_false")                        \
  F(replay_stale_input, "graphs.replay_stale_input")                        \
  F(replay_once_only, "graphs.replay_once_only")                            \
  F(drop_node, "graphs.drop_node")                                          \
  F(op_runs_at_capture, "graphs.op_runs_at_capture")                        \
  F(output_moves, "graphs.output_moves")                                    \
  F(pool_block_given_away, "graphs.pool_block_given_away")                  \
  F(unshared_pools_overlap, "graphs.unshared_pools_overlap")                \
  F(graph_pool_never_returned, "graphs.pool_never_returned")                \
  F(sync_allowed_in_capture, "graphs.sync_allowed_in_capture")              \
  F(replay_before_capture_silent, "graphs.replay_before_capture_silent")    \
  F(error_lost, "graphs.error_lost")                                        \
  F(stays_capturing, "graphs.stays_capturing")                              \
  F(mode_ignored, "graphs.mode_ignored")                                    \
  F(side_stream_not_captured, "graphs.side_stream_not_captured")            \
  F(unjoined_fork_accepted, "graphs.unjoined_fork_accepted")                \
  F(replay_repeats_random, "graphs.replay_repeats_random")                  \
  F(generator_not_advanced, "graphs.generator_not_advanced")                \
  F(reset_keeps_graph, "graphs.reset_keeps_graph")                          \
  F(destroy_while_queued, "graphs.destroy_while_queued")                    \
  F(nested_capture_accepted, "graphs.nested_capture_accepted")              \
  F(empty_capture_silent, "graphs.empty_capture_silent")                    \
  F(other_index_work_lost, "graphs.other_index_work_lost")                  \
  F(callable_backward_stale, "graphs.callable_backward_stale")
