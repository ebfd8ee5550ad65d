-- rules_version: the version of the rules, all parts together.
-- params  namespace_id
SELECT rules FROM {schema}.namespace WHERE namespace_id = :namespace_id;
