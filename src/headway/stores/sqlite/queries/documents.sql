-- documents: read and write documents, and the version of the rules.

-- name: document_version
-- The version of a document.
-- params  namespace_id, kind, name
SELECT version FROM document WHERE namespace_id = :namespace_id AND kind = :kind AND name = :name;

-- name: document_write
-- Write a document.
-- params  namespace_id, kind, name, version, body
-- gives   its version
INSERT OR REPLACE INTO document (namespace_id, kind, name, version, body)
VALUES (:namespace_id, :kind, :name, :version, :body) RETURNING version;

-- name: documents
-- The documents of a kind, or one of them.
-- params  namespace_id, kind, name
SELECT kind, name, version, body FROM document
 WHERE namespace_id = :namespace_id AND kind = :kind AND (:name IS NULL OR name = :name) ORDER BY name;

-- name: rules_changed
-- A part of the rules was written.
-- params  namespace_id
UPDATE namespace SET rules = rules + 1 WHERE namespace_id = :namespace_id;
