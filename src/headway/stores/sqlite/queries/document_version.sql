-- document_version: the version of a document.
-- params  namespace_id, kind, name
SELECT version FROM document WHERE namespace_id = :namespace_id AND kind = :kind AND name = :name;
