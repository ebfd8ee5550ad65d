-- prune_beyond_completed: completed jobs but for those with the highest numbers.
-- params  after, namespace_id, limit, most
-- plan    walks the completed jobs from the highest number on, down to those that were forgotten before
SELECT o.seq FROM {schema}.outcome_completed o JOIN {schema}.job j ON j.seq = o.seq
 WHERE o.seq > :after AND j.namespace_id = :namespace_id ORDER BY o.seq DESC LIMIT :limit OFFSET :most;
