-- documents: read and write documents, and the version of the rules.

-- name: document_version
-- The version of a document.
-- params  namespace_id, kind, name
SELECT version FROM {schema}.document WHERE namespace_id = :namespace_id AND kind = :kind AND name = :name
   FOR NO KEY UPDATE;

-- name: document_write
-- Write a document, unless another process did so since its version was read.
-- params  namespace_id, kind, name, version, body
INSERT INTO {schema}.document AS d (namespace_id, kind, name, version, body)
VALUES (:namespace_id, :kind, :name, :version, :body)
    ON CONFLICT (namespace_id, kind, name) DO UPDATE SET version = excluded.version, body = excluded.body
       WHERE d.version = excluded.version - 1
RETURNING version;

-- name: documents
-- The documents of a kind, or one of them.
-- params  namespace_id, kind, name
SELECT kind, name, version, body FROM {schema}.document
 WHERE namespace_id = :namespace_id AND kind = :kind AND (:name::text IS NULL OR name = :name) ORDER BY name;

-- name: rules_changed
-- A part of the rules was written.
-- params  namespace_id
UPDATE {schema}.namespace SET rules = rules + 1 WHERE namespace_id = :namespace_id RETURNING rules;
