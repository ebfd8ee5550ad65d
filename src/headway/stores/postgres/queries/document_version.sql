-- document_version: the version of a document.
-- params  namespace_id, kind, name
SELECT version FROM {schema}.document WHERE namespace_id = :namespace_id AND kind = :kind AND name = :name FOR NO KEY UPDATE;
