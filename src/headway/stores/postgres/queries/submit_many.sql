-- submit_many: keep a batch of plain jobs.
-- params  namespace_id, now_at, classes, class_id, task, timeout_ms, max_retries, ids, payloads, groups, tasks, timeouts, retries, retry, traces, limits
-- gives   whether that was done
SELECT {schema}.submit_many_{version}(:namespace_id, :now_at, :classes, :class_id, :task, :timeout_ms, :max_retries, :ids, :payloads, :groups, :tasks,
                                      :timeouts, :retries, :retry, :traces, :limits);
