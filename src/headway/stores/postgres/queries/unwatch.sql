-- unwatch: somebody no longer wants to hear of changes.
-- params  namespace_id, names
DELETE FROM {schema}.watcher WHERE namespace_id = :namespace_id AND name = ANY (:names::text[]);
