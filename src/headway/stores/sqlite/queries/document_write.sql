-- document_write: write a document.
-- params  namespace_id, kind, name, version, body
INSERT OR REPLACE INTO document (namespace_id, kind, name, version, body)
VALUES (:namespace_id, :kind, :name, :version, :body);
