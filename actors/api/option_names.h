// The names of an actor's options, in one table: C takes them as keys of JSON, and Python's skin
// hands them to its core.
// Thread: plain values.
#pragma once

#include "actors/api/options.h"

namespace troupe {

// Calls `visit(name, field)` for each option that is a user's. Times are in seconds.
template <class Visit>
void VisitOptions(ActorOptions& options, Visit&& visit) {
  // A new field does not compile until it is named here.
  auto& [name, get_if_exists, detached, resources, strategy, labels, prefer, node, node_soft,
         placement_group, bundle, priority, max_restarts, backoff, backoff_most, timeout, env,
         plugin, program, max_concurrency, threads, mailbox_depth, mailbox_bytes, overflow,
         runs_tasks, counted_as] = options;
  visit("name", name);
  visit("get_if_exists", get_if_exists);
  visit("detached", detached);
  visit("resources", resources);
  visit("strategy", strategy);
  visit("labels", labels);
  visit("prefer", prefer);
  visit("node", node);
  visit("node_soft", node_soft);
  visit("placement_group", placement_group);
  visit("bundle", bundle);
  visit("priority", priority);
  visit("max_restarts", max_restarts);
  visit("backoff_s", backoff);
  visit("backoff_most_s", backoff_most);
  visit("timeout_s", timeout);
  visit("env", env);
  visit("plugin", plugin);
  visit("program", program);
  visit("max_concurrency", max_concurrency);
  visit("threads", threads);
  visit("mailbox_depth", mailbox_depth);
  visit("mailbox_bytes", mailbox_bytes);
  visit("overflow", overflow);
  (void)runs_tasks;  // The runtime's own, as the next one.
  (void)counted_as;
}

}  // namespace troupe
