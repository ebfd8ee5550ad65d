-- park_any: whether anything is parked here, and whether any park is open.
-- params  namespace_id
SELECT bool_or(true) AS parked, bool_or(open) AS opened FROM {schema}.park WHERE namespace_id = :namespace_id;
