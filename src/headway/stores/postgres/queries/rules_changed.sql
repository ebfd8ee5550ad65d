-- rules_changed: a part of the rules was written.
-- params  namespace_id
UPDATE {schema}.namespace SET rules = rules + 1 WHERE namespace_id = :namespace_id RETURNING rules;
