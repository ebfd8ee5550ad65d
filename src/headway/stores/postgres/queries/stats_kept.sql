-- stats_kept: the jobs that ended badly and are still kept.
-- params  namespace_id
SELECT o.state, count(*) AS count FROM {schema}.outcome_bad o JOIN {schema}.job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id GROUP BY o.state;
