-- document_remove: remove a document.
-- params  namespace_id, kind, name
DELETE FROM {schema}.document WHERE namespace_id = :namespace_id AND kind = :kind AND name = :name;
