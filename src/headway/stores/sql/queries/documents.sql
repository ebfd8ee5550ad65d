-- documents: read and write documents, and the version of the rules.

-- name: document_remove
-- Remove a document.
-- params  namespace_id, kind, name
DELETE FROM {schema}.document WHERE namespace_id = :namespace_id AND kind = :kind AND name = :name;

-- name: rules_version
-- The version of the rules, all parts together.
-- params  namespace_id
SELECT rules FROM {schema}.namespace WHERE namespace_id = :namespace_id;
