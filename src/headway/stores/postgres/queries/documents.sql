-- documents: the documents of a kind, or one of them.
-- params  namespace_id, kind, name
SELECT kind, name, version, body FROM {schema}.document
 WHERE namespace_id = :namespace_id AND kind = :kind AND (:name::text IS NULL OR name = :name) ORDER BY name;
