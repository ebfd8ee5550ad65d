-- stats_kept: the jobs that ended badly and are still kept.
-- params  namespace_id
SELECT o.state, count(*) FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.state <> 'completed' AND j.namespace_id = :namespace_id GROUP BY o.state;
