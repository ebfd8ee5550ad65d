-- classes: the classes of a namespace.
-- params  namespace_id
SELECT class_id, lane, rung, needs, persist, rewound FROM {schema}.class WHERE namespace_id = :namespace_id;
