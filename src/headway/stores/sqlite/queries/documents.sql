-- documents: the documents of a kind, or one of them.
-- params  namespace_id, kind, name
SELECT kind, name, version, body FROM document
 WHERE namespace_id = :namespace_id AND kind = :kind AND (:name IS NULL OR name = :name) ORDER BY name;
