-- document_write: write a document, unless somebody else did so since its version was read.
-- params  namespace_id, kind, name, version, body
INSERT INTO {schema}.document AS d (namespace_id, kind, name, version, body) VALUES (:namespace_id, :kind, :name, :version, :body)
    ON CONFLICT (namespace_id, kind, name) DO UPDATE SET version = excluded.version, body = excluded.body
       WHERE d.version = excluded.version - 1
RETURNING version;
